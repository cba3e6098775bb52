"""Is the landscape evidence for Theorem 2? Planes of layers that train their queries alone, and where descent rests.

The poster says that landscape visualization provides evidence for Theorem 2, in which only W^Q is trained: softmax may
end at a local solution, the Gaussian does not. Here both are known: layers of `local_solutions`, whose targets can be
reached. Fixed before the run: gradient descent with the best of three fixed steps (0.1, 0.3 and 1 over the largest
eigenvalue of the tangent kernel), 5,000 steps; a run that ends above a millionth of its first loss did not arrive.
Around its end (and its start) five planes of two random directions in W^Q, every head as long as the head of W^Q at
the start, from -2 to 2, 31 x 31 points; minima inside the picture beside the first.
Read as (1) softmax shows more minima than the Gaussian: the mean over planes, in pairs of the same draw, its 95 %
interval over seeds above zero; (2) the picture tells who arrives: the minima at the end rank runs that did not arrive
above those that did, AUROC with its 95 % interval (bootstrap over seeds) above a half. Against it if the interval is on
the other side, open otherwise; each for both sizes together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import vmap

from edgewise.laboratory.kernel_theorems import KernelLayer, check_theorem2, random_layer
from edgewise.landscape.loss_grid import roughness
from edgewise.present import Curve, Map, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select
from edgewise.study.train import Stack, descend_stack

from .descent import unchecked
from .local_solutions import KERNELS, SCALES, SIZES, SOLVED

TOLERANCE = 0.02  # of the largest number in an entry
SHARES = (0.1, 0.3, 1.0)  # fixed steps, in units of 1 / lambda_max
REACH, LONG = 2.0, 5_000
PLACES = ("start", "end")


def cases(scale: str = "small") -> list[dict[str, Any]]:
    full = scale == "full"
    how = (
        dict(seeds=16, steps=LONG, planes=5, points=31)
        if full
        else dict(seeds=2, steps=5, planes=1, points=5)
    )
    return [
        how | {"samples": 3, "tokens": 5, "size": size, "kernel": kernel, "query_key_scale": scale_of_queries}
        for size in SIZES
        for scale_of_queries in SCALES
        for kernel in KERNELS
    ]


def layers(case: dict[str, Any]) -> list[KernelLayer]:
    """As in `local_solutions`, seeds of their own: targets are the outputs with another draw of the queries."""
    shape = (case["samples"], case["tokens"], *SIZES[case["size"]], case["kernel"])
    made = []
    for seed in range(100, 100 + case["seeds"]):
        first, other = (
            random_layer(*shape, query_key_scale=case["query_key_scale"], seed=seed + more)
            for more in (0, 1000)
        )
        made.append(first.with_weights(targets=first.with_weights(query=other.query).outputs()))
    return made


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """By seed: where the best of the fixed steps ends, and the minima of every plane around start and end."""
    made = layers(case)
    names = ("inputs", "targets", "key", "value", "output")
    data = [torch.stack([getattr(layer, name) for layer in made]) for name in names]

    def loss(weights: Stack, *tensors: Tensor) -> Tensor:
        """(S,) of one layer with S queries."""

        def one(query: Tensor) -> Tensor:
            layer = unchecked(case["kernel"], query=query, **dict(zip(names, tensors, strict=True)))
            return 0.5 * layer.residual().square().sum()

        return vmap(one)(weights["query"])

    first = torch.stack([layer.query for layer in made])
    units = torch.tensor([check_theorem2(layer).step for layer in made], dtype=torch.float64)
    losses, last = descend_stack(
        loss,
        {"query": first[:, None].expand(-1, len(SHARES), -1, -1, -1)},
        lambda _: data,
        optimizer="sgd",
        rates=units[:, None] * torch.tensor(SHARES, dtype=torch.float64),
        steps=case["steps"],
    )
    ends = torch.nan_to_num(loss_at(loss, last["query"], data), nan=math.inf)
    best = ends.argmin(1)
    queries = {"start": first, "end": last["query"][torch.arange(len(made)), best]}
    found: dict[str, Any] = {
        "fell_to": rounded((ends.amin(1) / losses[0, :, 0]).tolist(), 5),
        "share": [SHARES[int(k)] for k in best],
    }
    axis = np.linspace(-REACH, REACH, case["points"])
    for place, centers in queries.items():
        grids = [
            planes(loss, case, center, layer, [d[k] for d in data], axis)
            for k, (center, layer) in enumerate(zip(centers, made, strict=True))
        ]
        found[place] = [[roughness((axis, axis), grid).minima for grid in each] for each in grids]
        found[f"picture, {place}"] = rounded(np.log10(np.maximum(grids[0][0], 1e-12)).tolist(), 3)
    return found


def loss_at(loss: Any, queries: Tensor, data: Sequence[Tensor]) -> Tensor:
    return vmap(loss)({"query": queries}, *data)


def planes(
    loss: Any,
    case: dict[str, Any],
    center: Tensor,
    layer: KernelLayer,
    data: Sequence[Tensor],
    axis: np.ndarray,
) -> list[np.ndarray]:
    """Losses over two random directions, each head as long as it was at the start; the same draws for both kernels."""
    generator, length = torch.Generator().manual_seed(7), layer.query.flatten(1).norm(dim=1)[:, None, None]
    steps, found = torch.from_numpy(axis), []
    for _ in range(case["planes"]):
        x, y = (torch.randn(center.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        x, y = (d / d.flatten(1).norm(dim=1)[:, None, None] * length for d in (x, y))
        points = center + (steps[:, None, None, None] * x)[None] + (steps[:, None, None, None] * y)[:, None]
        found.append(loss({"query": points.flatten(0, 1)}, *data).reshape(len(axis), len(axis)).numpy())
    return found


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([*(_more(results, place) for place in PLACES), _tells(results)])


def scale_of(results: Sequence[Result]) -> str:
    case = results[0].case
    size = (
        f"{case['samples'] * case['tokens']} targets within reach, 16 and 1,024 weights, queries x 0.3 to 2"
    )
    planes_of = f"{case['planes']} planes of {case['points']} x {case['points']}"
    return f"{size}, {case['steps']:,} steps, {planes_of}, {case['seeds']} seeds"


def extra(results: Sequence[Result], place: str, **where: Any) -> np.ndarray:
    """Minima beside the first, mean over planes and settings, by seed."""
    rows = [np.maximum(np.array(r.value[place]) - 1, 0).mean(1) for r in select(results, **where)]
    return np.mean(rows, 0)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean and its 95 % interval over seeds."""
    from scipy.stats import t

    if len(values) < 3:
        return float(values.mean()), -math.inf, math.inf
    half = float(t.ppf(0.975, len(values) - 1)) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def _side(low: float, high: float, middle: float, results: Sequence[Result]) -> bool | None:
    if results[0].case["steps"] < LONG or low <= middle <= high:
        return None
    return low > middle


def _more(results: Sequence[Result], place: str) -> Claim:
    softmax, gaussian = (extra(results, place, kernel=kernel) for kernel in KERNELS)
    mean, low, high = interval(softmax - gaussian)
    each = "; ".join(
        f"{size}, x {qk:g}: {extra(results, place, kernel='softmax', size=size, query_key_scale=qk).mean():.2g} and "
        f"{extra(results, place, kernel='gaussian', size=size, query_key_scale=qk).mean():.2g}"
        for size in SIZES
        for qk in SCALES
    )
    return Claim(
        "Landscape visualization provides evidence for Theorem 2 [poster]: with softmax the loss over the queries has "
        f"more local minima; around the {place} of a descent.",
        f"Minima beside the first in a plane, softmax and Gaussian: {each}. Difference in pairs {mean:+.3f} (95 % "
        f"{low:+.3f} to {high:+.3f} over seeds).",
        scale_of(results),
        _side(low, high, 0.0, results),
        {"difference": mean, "interval": [low, high]},
        rows=("B6", "B7", "B15"),
    )


def auroc(runs: Sequence[tuple[float, bool]]) -> float:
    """How often a run that did not arrive shows more minima than one that did; ties count half."""
    yes, no = (np.array([x for x, stays in runs if stays is kind]) for kind in (True, False))
    if not len(yes) or not len(no):
        return math.nan
    return float((yes[:, None] > no).mean() + 0.5 * (yes[:, None] == no).mean())


def _runs(results: Sequence[Result], kernel: str | None = None) -> list[list[tuple[float, bool]]]:
    """By seed: minima at the end of each run, and whether it did not arrive."""
    chosen = [r for r in results if kernel in (None, r.case["kernel"])]
    return [
        [
            (float(np.maximum(np.array(r.value["end"][k]) - 1, 0).mean()), not r.value["fell_to"][k] < SOLVED)
            for r in chosen
        ]
        for k in range(results[0].case["seeds"])
    ]


def _tells(results: Sequence[Result]) -> Claim:
    by_seed = _runs(results)
    value = auroc([run for seed in by_seed for run in seed])
    generator = np.random.default_rng(0)
    draws = [
        auroc([run for k in generator.integers(0, len(by_seed), len(by_seed)) for run in by_seed[k]])
        for _ in range(1000)
    ]
    low, high = np.nanquantile(draws, [0.025, 0.975]) if np.isfinite(draws).any() else (0.0, 1.0)
    alone = {k: auroc([run for seed in _runs(results, k) for run in seed]) for k in KERNELS}
    left = {k: sum(stays for seed in _runs(results, k) for _, stays in seed) for k in KERNELS}
    count = sum(map(len, _runs(results, KERNELS[0])))
    return Claim(
        "Landscape visualization provides evidence for Theorem 2 [poster]: the picture tells which runs do not arrive.",
        f"Did not arrive: softmax {left['softmax']} and Gaussian {left['gaussian']} of {count} each. Their planes have "
        f"more minima than those of runs that did: AUROC {value:.2f} (95 % {low:.2f} to {high:.2f}); softmax alone "
        f"{alone['softmax']:.2f}, Gaussian alone {alone['gaussian']:.2f}.",
        scale_of(results),
        _side(float(low), float(high), 0.5, results) if math.isfinite(value) else None,
        {
            "auroc": value if math.isfinite(value) else None,
            "interval": [float(low), float(high)],
            "left": left,
        },
        rows=("B6", "B7", "B15"),
    )


def draw(results: Sequence[Result]) -> Figure:
    axis = np.linspace(-REACH, REACH, results[0].case["points"])
    maps = []
    for size, qk in (("tight", 1.0), ("tight", 2.0), ("wide", 2.0)):
        for kernel in KERNELS:
            run = select(results, kernel=kernel, size=size, query_key_scale=qk)[0]
            heights = np.array(run.value["picture, end"])
            title = f"{kernel.replace('gauss', 'Gauss')}, {size}, queries x {qk:g}"
            colors = Map("log10 of the loss less its median", axis, axis, heights - np.median(heights), 1.0)
            maps.append(Panel(title, "first direction", "second direction", background=colors))
    return Sheet(
        "Queries alone: planes around where descent ends",
        (*maps, _counts(results)),
        scale_of(results),
        columns=4,
    ).draw()


def _counts(results: Sequence[Result]) -> Panel:
    """Mean extra minima, of runs that arrived and that did not."""
    curves = []
    for group, kernel in enumerate(KERNELS):
        runs = [run for seed in _runs(results, kernel) for run in seed]
        for place, kind in enumerate((False, True)):
            y = np.array([minima for minima, stays in runs if stays is kind])
            if len(y):
                x = np.full(len(y), place + 0.2 * group - 0.1)
                curves.append(
                    Curve(kernel.replace("gauss", "Gauss") if not place else "_", x, y, group, "points")
                )
    return Panel(
        "minima and arrival",
        "",
        "minima beside the first, at the end",
        tuple(curves),
        x_names=("arrived", "did not"),
    )
