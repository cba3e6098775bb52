"""Structure-aware descent against SGD, GD and Adam from one N(0, 1) point, without parts [Goel 2026, Fig. 2]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result

from .common import BASELINES, HARD, NAMES, curve, end, middle, run, scale_of, tuned

TOLERANCE = 0.008  # of the largest number in an entry; seeds scatter by 0.076 or more
PARTS = ("all parts", "no preconditioner", "no balancing", "no renormalization")
FORMS = ("first version", "preconditioner only", "ScaledGD")  # what else one could run
GRID = {
    "SGD": (0.001, 0.003, 0.01, 0.03, 0.1),
    "GD": (0.003, 0.01, 0.03, 0.1),
    "Adam": (0.01, 0.03, 0.1, 0.3),
}
GRID |= dict.fromkeys(
    (*PARTS[1:], *FORMS), (0.01, 0.03, 0.1, 0.3, 0.8, 1.6)
)  # all parts: the default, 0.8, alone
GRID["ScaledGD"] = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)
RANGE = (5e-4, 3e3)  # of the losses drawn


def cases(scale: str = "small") -> list[dict[str, Any]]:
    tokens, steps, seeds = (400, 200, 3) if scale == "full" else (60, 30, 2)
    shared = HARD | {"tokens": tokens, "steps": steps, "every": max(steps // 40, 1), "start": "gaussian"}
    grid = {method: GRID.get(method, (None,)) for method in (*BASELINES, *PARTS, *FORMS)}
    return [
        shared | {"method": method, "step": step, "seed": seed}
        for method, steps_of in grid.items()
        for step in (steps_of if scale == "full" else steps_of[-3:-1] or steps_of)
        for seed in range(seeds)
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return run(case)


def claim(results: Sequence[Result]) -> Claim:
    found = {method: tuned(results, method=method) for method in (*BASELINES, *PARTS, *FORMS)}
    ours = found["all parts"]
    ratios = sorted(end(found["Adam"][seed]) / end(ours[seed]) for seed in ours)
    ends = {method: middle(runs) for method, runs in found.items()}
    words = ", ".join(f"{m} {ends[m]:.2g}" for m in BASELINES)
    first = Claim(
        "From the same random start the algorithm converges where SGD stalls.",
        f"After {results[0].case['steps']} steps the median loss is {ends['all parts']:.2g} with ours; {words}, each "
        f"at its best step. Adam's over ours: median {np.median(ratios):.0f}, {ratios[0]:.0f} to {ratios[-1]:.0f}.",
        scale_of(results),
        bool(np.median(ratios) >= 20),
        {"ends": _finite(ends), "adam_over_ours": ratios},
        rows=("D11", "D1"),
    )
    second = Claim(
        "(ours) Every part is needed.",
        _ablation(found, PARTS),
        scale_of(results),
        all(ends[m] > 2 * ends["all parts"] for m in PARTS[1:]),
        _finite({m: ends[m] for m in PARTS}),
        rows=("D5", "D4"),
    )
    third = Claim(
        "(ours) No simpler form does as well: the first version, the preconditioner alone, ScaledGD.",
        _ablation(found, ("all parts", *FORMS)),
        scale_of(results),
        all(ends[m] > 2 * ends["all parts"] for m in FORMS),
        _finite({m: ends[m] for m in FORMS}),
        rows=("D5",),
    )
    return Claim.all([first, second, third])


def _ablation(found: dict[str, dict[int, Result]], methods: Sequence[str]) -> str:
    """The median loss of each, and in how many seeds it ran away."""
    words = []
    for m in methods:
        lost = sum(bool(np.isinf(end(r))) for r in found[m].values())
        gone = f"diverges in {lost} of {len(found[m])}" if lost else ""
        value = middle(found[m])
        words.append(f"{m} " + ", ".join(w for w in ("" if np.isinf(value) else f"{value:.2g}", gone) if w))
    return f"Median loss: {'; '.join(words)}."


def _finite(ends: dict[str, float]) -> dict[str, float | None]:
    return {m: None if np.isinf(v) else v for m, v in ends.items()}


def draw(results: Sequence[Result]) -> Figure:
    panels = (
        ("against the usual methods", ("all parts", *BASELINES)),
        ("without one of its parts", PARTS),
        ("other forms of it", ("all parts", *FORMS)),
    )
    return Sheet(
        "Descent on softmax regression from the same random start",
        tuple(
            Panel(title, "step", "loss on the sample", _curves(results, methods), log_y=True, y_range=RANGE)
            for title, methods in panels
        ),
        f"start N(0, 1); {scale_of(results)}; medians at the best step; above 1000 not drawn",
    ).draw()


def _curves(results: Sequence[Result], methods: Sequence[str]) -> tuple[Curve, ...]:
    curves = []
    for k, method in enumerate(methods):
        steps, values = curve(tuned(results, method=method))
        name = NAMES.get(method, method) + ("" if np.isfinite(values[-1]) else " (diverges)")
        curves.append(Curve(name, np.asarray(steps), np.where(values < 1e3, values, np.nan), k))
    return tuple(curves)
