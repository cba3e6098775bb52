"""Does theorem 1 start in a near convex region? The Hessian along the segment from the start to where descent ends.

The poster says that the initialization ensures a near convex region in which the weights need to move a bit. Read as,
and fixed before the run: from the theorem's own start (W^V = 0, W^O as large as one likes) the most negative curvature
of the loss in all of W^Q, W^K, W^V is below a hundredth of the largest at every point of the segment, for both kernels,
and the loss itself is convex along it. A look at one case at ten times the usual W^O gave 2 and 3 %, so that sizes of
10, 30 and 100 are run and the last decides. A generic start is beside it. With one more reading, which the proof uses:
the gradient dominates the loss, |grad f|^2 >= 2 beta f, at every point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import grad, jacrev

from edgewise.laboratory.kernel_theorems import TRAINED, KernelLayer, check_theorem1, random_layer
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .descent import descend, unchecked
from .theorem1 import KERNELS

TOLERANCE = 0.01  # of the largest number in an entry
NEAR = 0.01  # share of the largest curvature that the most negative one may have
POINTS = 9  # of a segment
SIZES = (10.0, 30.0, 100.0)  # of W^O, over its usual one; the last decides
STARTS = {f"W^O x {size:g}": (0.0, size) for size in SIZES} | {"generic": (1.0, 1.0)}  # scales of W^V and W^O
OWN = f"W^O x {SIZES[-1]:g}"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    size = {"samples": 3, "tokens": 4, "width": 12, "heads": 3, "head_width": 4, "steps": 1500}
    if not full:
        size |= {"samples": 2, "tokens": 2, "width": 4, "heads": 2, "head_width": 2, "steps": 20}
    return [
        size | {"kernel": kernel, "start": start, "seed": seed}
        for seed in range(6 if full else 1)
        for start in (STARTS if full else (OWN, "generic"))
        for kernel in KERNELS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """At points of the segment: both ends of the spectrum, the loss, and |grad f|^2 / (2 f)."""
    value_scale, output_scale = STARTS[case["start"]]
    sizes = (case[name] for name in ("samples", "tokens", "width", "heads", "head_width"))
    layer = random_layer(
        *sizes, case["kernel"], value_scale=value_scale, output_scale=output_scale, seed=case["seed"]
    )
    promise = check_theorem1(layer)
    last = descend(layer, case["steps"], step=promise.step).last
    first, end = _flat(layer), _flat(last)

    def loss(weights: Tensor) -> Tensor:
        return 0.5 * _layer(layer, weights).residual().square().sum()

    found: dict[str, Any] = {"lowest": [], "highest": [], "loss": [], "slope": []}
    for share in np.linspace(0, 1, POINTS):
        at = first + float(share) * (end - first)
        curvatures = torch.linalg.eigvalsh(jacrev(grad(loss), chunk_size=64)(at))
        value = float(loss(at))
        found["lowest"].append(float(curvatures[0]))
        found["highest"].append(float(curvatures[-1]))
        found["loss"].append(value)
        found["slope"].append(float(grad(loss)(at).square().sum()) / max(2 * value, 1e-300))
    return {name: rounded(values) for name, values in found.items()} | {"beta": promise.beta_safe}


def _flat(layer: KernelLayer) -> Tensor:
    return torch.cat([getattr(layer, name).flatten() for name in TRAINED])


def _layer(layer: KernelLayer, weights: Tensor) -> KernelLayer:
    """The layer with other weights, in the order of `_flat`."""
    shape = layer.query.shape
    parts = {name: part.reshape(shape) for name, part in zip(TRAINED, weights.chunk(3), strict=True)}
    fixed = {name: getattr(layer, name) for name in ("inputs", "targets", "output")}
    return unchecked(layer.kernel, **fixed, **parts)


def negative(result: Result) -> np.ndarray:
    """Size of the most negative curvature over the largest, along the segment."""
    return np.maximum(-np.array(result.value["lowest"]), 0) / np.array(result.value["highest"])


def convex(result: Result) -> bool:
    """No second difference of the loss along the segment is negative beyond rounding."""
    loss = np.array(result.value["loss"])
    return bool(np.diff(loss, 2).min() >= -1e-5 * loss.max())


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_near(results), _dominates(results)])


def _scale(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    count = 3 * case["heads"] * case["width"] * case["head_width"]
    rows = case["samples"] * case["tokens"]
    return f"N n = {rows}, H D = {case['heads'] * case['width']}, {count} weights, {POINTS} points, {seeds} seeds"


def _near(results: Sequence[Result]) -> Claim:
    table = {
        f"{start}, {kernel}": float(
            np.max([negative(r) for r in select(results, start=start, kernel=kernel)])
        )
        for start in STARTS
        if any(r.case["start"] == start for r in results)
        for kernel in KERNELS
    }
    own = select(results, start=OWN)
    straight = sum(convex(r) for r in own)
    said = ", ".join(f"{value:.2g} ({name})" for name, value in table.items())
    held = max(table[f"{OWN}, {kernel}"] for kernel in KERNELS) < NEAR and straight == len(own)
    return Claim(
        "The initialization ensures that the variables start from a near convex region [poster].",
        f"Most negative curvature over the largest, the worst of a segment: {said}. From the theorem's start the loss "
        f"is convex along {straight} of {len(own)} segments. Held: below {NEAR:g} with both kernels and "
        f"{OWN}, and all segments.",
        _scale(results),
        held if len(own) > 4 else None,
        table,
        rows=("B5",),
    )


def _dominates(results: Sequence[Result]) -> Claim:
    """In the middle of the segment too, where no step of the descent was."""
    own = [r for r in results if r.case["start"] != "generic"]
    shares = [float(np.min(r.value["slope"][:-1]) / r.value["beta"]) for r in own]
    return Claim(
        "(ours) Along the whole segment the gradient dominates the loss with the theorem's beta.",
        f"Least |grad f|^2 / (2 f) over beta, by run from the theorem's start: {min(shares):.2g} to {max(shares):.2g}. "
        "Held: at least one.",
        _scale(results),
        min(shares) >= 1 if len(own) > 4 else None,
        {"least": shares},
        rows=("B4", "B5"),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels, x = [], np.linspace(0, 1, POINTS)
    for start in dict.fromkeys(r.case["start"] for r in results):
        curves = []
        for group, kernel in enumerate(KERNELS):
            for k, r in enumerate(select(results, start=start, kernel=kernel)):
                name = kernel.replace("gauss", "Gauss") if k == 0 else "_"
                curves.append(Curve(name, x, np.maximum(negative(r), 1e-6), group, "thin"))
        panels.append(
            Panel(
                start,
                "share of the way from the start to the end",
                "most negative curvature / largest",
                tuple(curves),
                log_y=True,
                y_range=(5e-7, 1.0),
                levels=(NEAR,),
            )
        )
    curves = []
    for group, kernel in enumerate(KERNELS):
        for k, r in enumerate(select(results, start=OWN, kernel=kernel)):
            loss = np.array(r.value["loss"])
            name = kernel.replace("gauss", "Gauss") if k == 0 else "_"
            curves.append(Curve(name, x, loss / loss[0], group, "thin"))
    panels.append(
        Panel(f"loss along it, {OWN}", "share of the way", "loss over the first loss", tuple(curves))
    )
    return Sheet(
        "The region between the start of theorem 1 and its end", tuple(panels), _scale(results), columns=3
    ).draw()
