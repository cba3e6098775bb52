"""Theorem 1 along runs: all of W^Q, W^K, W^V trained, the promised rate beside the loss [Song 2024].

Starts: `constructive` (W^V = 0, W^O ten times its size: queries and keys hardly move), `zero` (W^V = 0), `generic`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.kernel_theorems import check_theorem1, random_layer
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .descent import descend

TOLERANCE = 0.003  # of the largest number in an entry; seeds scatter by 0.033 or more
KERNELS = ("softmax", "gaussian")
STARTS = {"constructive": (0.0, 10.0), "zero": (0.0, 1.0), "generic": (1.0, 1.0)}  # scales of W^V and W^O
FACTOR = 1e-6  # by which the loss has to fall in a comparison of step counts
NARROW = 4  # width at which H D = 16 < N n = 24
POINTS = 60  # of a curve that are kept
FLOOR, RANGE = 1e-24, (1e-25, 30.0)  # of the losses drawn
A_BIT = 0.1  # of a matrix: what "a bit" may be, fixed before the numbers were seen


def cases(scale: str = "small") -> list[dict[str, Any]]:
    widths, seeds, steps = ((6, 8, 16, 32), 3, 1500) if scale == "full" else ((16,), 1, 20)
    shared = {"samples": 4, "tokens": 6, "heads": 4, "head_width": 8, "steps": steps}
    variants = [("constructive", width) for width in widths] + [
        ("zero", 16),
        ("generic", 16),
        ("generic", NARROW),
    ]
    return [
        shared | {"kernel": kernel, "start": start, "width": width, "seed": seed}
        for seed in range(seeds)
        for start, width in variants
        for kernel in KERNELS
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    value_scale, output_scale = STARTS[case["start"]]
    sizes = (case[name] for name in ("samples", "tokens", "width", "heads", "head_width"))
    layer = random_layer(
        *sizes, case["kernel"], value_scale=value_scale, output_scale=output_scale, seed=case["seed"]
    )
    found = check_theorem1(layer)
    run = descend(layer, case["steps"], step=found.step)  # the theorem's step does not change on the way
    promised = found.iterations(1 / FACTOR)
    losses = run.losses.numpy()
    literal = losses[0] * (1 - found.step * found.beta_literal) ** np.arange(len(losses))
    kept = np.unique(np.geomspace(1, len(run.losses), POINTS).astype(int)) - 1
    return {
        "applies": found.applies,
        "smallest_singular": found.smallest_singular,
        "rate": found.step * found.beta_safe,
        "promised": promised if math.isfinite(promised) else None,
        "needed": run.first_below(FACTOR),
        "violations": run.violations,
        "literal_violations": int((losses > literal * (1 + 1e-9)).sum()),
        "beta_kept": float(run.betas.min() / run.betas[0]) if found.applies else None,
        "moved": run.moved,
        "at": kept.tolist(),
        "loss": rounded((losses / losses[0])[kept], 4),
        "bound": rounded((run.initial_bound / run.losses[0])[kept], 4),
        "fell_to": float(losses[-1] / losses[0]),
    }


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_bound(results), _moves(results), _size(results), _necessary(results), _width(results)])


def scale_of(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    widths = ", ".join(map(str, sorted({r.case["width"] for r in results})))
    rows = case["samples"] * case["tokens"]
    sizes = f"{rows} targets (samples times tokens), {case['heads']} heads, width {widths}"
    return f"{sizes}, at most {case['steps']} steps, {seeds} seeds"


def _bound(results: Sequence[Result]) -> Claim:
    safe = {}
    literal = {}
    for start in STARTS:
        runs = [r for r in select(results, start=start) if r.value["applies"]]
        safe[start] = [sum(r.value["violations"] > 0 for r in runs), len(runs)]
        literal[start] = [sum(r.value["literal_violations"] > 0 for r in runs), len(runs)]
    words = "; ".join(
        f"{start}: {safe[start][0]} of {safe[start][1]}, literal {literal[start][0]}" for start in STARTS
    )
    return Claim(
        "If H D >= N n there are a start and a step with f_t <= (1 - eta beta)^t f_0, for both kernels [Theorem 1].",
        f"Runs with a step above the bound, by start, with the safe and with the literal beta: {words}.",
        scale_of(results),
        safe["constructive"][0] == 0,
        {"safe": safe, "literal": literal},
        rows=("B1", "B4"),
    )


def _moves(results: Sequence[Result]) -> Claim:
    """Of the queries and keys, in the runs from the theorem's own start."""
    runs = [r for r in results if r.value["applies"] and r.case["start"] == "constructive"]
    most = {name: max(r.value["moved"][name] for r in runs) for name in runs[0].value["moved"]}
    said = ", ".join(f"{name} {share:.2g}" for name, share in most.items())
    return Claim(
        "Weights need to move 'a bit' in the near convex region to converge to the global solution [poster].",
        f"Largest |W - W_0| / |W_0| of {len(runs)} runs from the constructive start: {said}. Held: below {A_BIT:g}.",
        scale_of(results),
        max(most.values()) < A_BIT if len(runs) > 3 else None,
        most,
        rows=("B5",),
    )


def _size(results: Sequence[Result]) -> Claim:
    """Promised over needed iterations, where both are known."""
    ratios = {
        kernel: sorted(
            r.value["promised"] / r.value["needed"]
            for r in select(results, kernel=kernel)
            if r.value["promised"] and r.value["needed"]
        )
        for kernel in KERNELS
    }
    words = "; ".join(
        f"{kernel} {np.median(found):.0f} in the median, {found[0]:.0f} to {found[-1]:.0f} ({len(found)} runs)"
        for kernel, found in ratios.items()
        if found
    )
    held = None if not all(ratios.values()) else bool(max(np.median(found) for found in ratios.values()) < 10)
    return Claim(
        "(our question) The bound tells the number of steps within a factor of ten.",
        f"Promised over needed steps to a millionth of the loss: {words or 'no run was long enough'}.",
        scale_of(results),
        held,
        ratios,
        rows=("B4",),
    )


def _necessary(results: Sequence[Result]) -> Claim:
    runs = [r for r in results if not r.value["applies"]]
    fell = {kernel: sorted(r.value["fell_to"] for r in select(runs, kernel=kernel)) for kernel in KERNELS}
    words = "; ".join(f"{kernel} {found[0]:.2g} to {found[-1]:.2g}" for kernel, found in fell.items())
    many = max(r.case["seed"] for r in results) >= 2
    return Claim(
        "(our question) H D >= N n is needed.",
        f"With H D = 16 < 24 the loss falls to {words} of its start (queries and keys fit too).",
        scale_of(results),
        not any(found[0] < FACTOR for found in fell.values()) if many else None,
        fell,
        rows=("B5",),
    )


def _width(results: Sequence[Result]) -> Claim:
    widths = sorted({r.case["width"] for r in select(results, start="constructive") if r.value["applies"]})
    needed = {kernel: [_median_needed(results, kernel, width) for width in widths] for kernel in KERNELS}
    words = "; ".join(
        f"{kernel} {', '.join('-' if n is None else f'{n:.0f}' for n in found)}"
        for kernel, found in needed.items()
    )
    ends = [found for found in needed.values() if len(found) > 1 and found[-1] is not None]
    held = (
        all(found[0] is None or found[0] > found[-1] for found in ends) if len(ends) == len(KERNELS) else None
    )
    return Claim(
        "Global optima are reached especially when the input embedding dimension is large [abstract].",
        f"Median steps to a millionth at D = {', '.join(map(str, widths))}: {words} (-: not within the run).",
        scale_of(results),
        held,
        needed,
        rows=("B5",),
    )


def _median_needed(results: Sequence[Result], kernel: str, width: int) -> float | None:
    """Over seeds; None where at least half of the runs are not long enough."""
    found = [r.value["needed"] for r in select(results, kernel=kernel, width=width, start="constructive")]
    middle = float(np.median([math.inf if n is None else n for n in found]))
    return middle if math.isfinite(middle) else None


def draw(results: Sequence[Result]) -> Figure:
    label = "loss over the first loss"
    panels = tuple(
        Panel(
            f"{start} start",
            "step + 1",
            label,
            _curves(results, start),
            log_x=True,
            log_y=True,
            y_range=RANGE,
        )
        for start in STARTS
    )
    return Sheet(
        "Theorem 1: the loss of every run and the promised rate",
        panels,
        f"D = 16, every seed; {scale_of(results)}",
    ).draw()


def _curves(results: Sequence[Result], start: str) -> tuple[Curve, ...]:
    """Every run and its bound; the legend names the first of each kernel."""
    curves = []
    for group, kernel in enumerate(KERNELS):
        for run in select(results, kernel=kernel, start=start, width=16):
            x = np.array(run.value["at"]) + 1.0
            curves.append(
                Curve(kernel.replace("gauss", "Gauss"), x, np.maximum(run.value["loss"], FLOOR), group)
            )
            bound = np.array(run.value["bound"], dtype=float)
            curves.append(Curve(f"bound, {kernel}".replace("gauss", "Gauss"), x, bound, group, "third"))
    return tuple(curves)
