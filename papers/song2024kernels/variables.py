"""Which weights are trained, and with which kernel: queries alone, values alone, or all of them [Song 2024, poster].

One layer from one draw, the same targets, and in every run the step 1/lambda_max of the weights that are trained. Fixed
before any run: a factor decides when it changes the loss that is left ten times, in the mean of logs over seeds, by two
standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.laboratory.kernel_theorems import random_layer
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Claim, Result, rounded, select

from .descent import descend

TOLERANCE = 0.008  # of the largest number in an entry; seeds scatter by 0.08 or more
KERNELS = ("softmax", "gaussian")
TRAINED = {"all": ("query", "key", "value"), "queries": ("query",), "values": ("value",)}
FACTOR, LONG = 10.0, 300  # what counts as a difference; steps that can decide
POINTS, FLOOR = 40, 1e-24


def cases(scale: str = "small") -> list[dict[str, Any]]:
    seeds, steps = (32, 300) if scale == "full" else (1, 5)
    size = {"samples": 3, "tokens": 5, "width": 16, "heads": 4, "head_width": 16}
    return [
        size | {"kernel": kernel, "trained": trained, "seed": seed, "steps": steps}
        for seed in range(seeds)
        for kernel in KERNELS
        for trained in TRAINED
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The share of the loss that is left, at the end and along the run."""
    sizes = (case[name] for name in ("samples", "tokens", "width", "heads", "head_width"))
    layer = random_layer(*sizes, case["kernel"], seed=case["seed"])
    left = descend(layer, case["steps"], TRAINED[case["trained"]]).losses.numpy()
    left = left / left[0]
    kept = np.unique(np.geomspace(1, len(left), POINTS).astype(int)) - 1
    return {"left": float(left[-1]), "at": kept.tolist(), "loss": rounded(left[kept], 4)}


def claim(results: Sequence[Result]) -> Claim:
    return Claim.all([_variables(results), _kernel(results)])


def scale_of(results: Sequence[Result]) -> str:
    case, seeds = results[0].case, len({r.case["seed"] for r in results})
    rows, width = case["samples"] * case["tokens"], case["heads"] * case["width"]
    return f"{rows} targets, heads times width {width}, at most {case['steps']} steps, {seeds} seeds"


def _ends(results: Sequence[Result], kernel: str, trained: str) -> np.ndarray:
    """log10 of the share that is left, in the order of the seeds."""
    runs = sorted(select(results, kernel=kernel, trained=trained), key=lambda r: r.case["seed"])
    return np.log10([max(r.value["left"], FLOOR) for r in runs])


def _larger(gaps: np.ndarray) -> bool | None:
    """Whether the mean is above the factor; None within two standard errors of it."""
    error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    off = gaps.mean() - math.log10(FACTOR)
    return bool(off > 0) if abs(off) > 2 * error else None


def _said(results: Sequence[Result], trained: Sequence[str]) -> str:
    return "; ".join(
        f"{name} trained: "
        + ", ".join(
            f"{kernel.replace('g', 'G', 1) if kernel == 'gaussian' else kernel} "
            f"10^{_ends(results, kernel, name).mean():.1f}"
            for kernel in KERNELS
        )
        for name in trained
    )


def _outcome(judged: Sequence[bool | None], results: Sequence[Result]) -> bool | None:
    held = False if False in judged else None if None in judged else True
    return held if results[0].case["steps"] >= LONG else None


def _variables(results: Sequence[Result]) -> Claim:
    judged = [
        _larger(_ends(results, kernel, "queries") - _ends(results, kernel, "all")) for kernel in KERNELS
    ]
    return Claim(
        "The variables to be optimized are a key factor in the optimization of Transformer models [poster].",
        f"Share of the loss that is left, mean of logs: {_said(results, tuple(TRAINED))}. Held: with both kernels ten "
        "times as much is left when queries alone are trained as when all are; undecided within two standard errors.",
        scale_of(results),
        _outcome(judged, results),
        {},
        rows=("B9",),
    )


def _kernel(results: Sequence[Result]) -> Claim:
    gaps = _ends(results, "gaussian", "queries") - _ends(results, "softmax", "queries")
    error = gaps.std(ddof=1) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    return Claim(
        "The activation function, softmax or Gaussian, is a key factor in the optimization of Transformer models "
        "[poster]; read as: when queries alone are trained.",
        f"log10 of what is left, Gaussian minus softmax, in pairs: {gaps.mean():+.2f} ± {error:.2f}. Held: ten times, "
        "either way; undecided within two standard errors.",
        scale_of(results),
        _outcome([_larger(np.sign(gaps.mean()) * gaps)], results),
        {},
        rows=("B9",),
    )


def draw(results: Sequence[Result]) -> Figure:
    panels = tuple(_panel(results, name) for name in TRAINED)
    return Sheet("The same layer with other weights trained", panels, scale_of(results)).draw()


def _panel(results: Sequence[Result], trained: str) -> Panel:
    curves = []
    for group, kernel in enumerate(KERNELS):
        for run in select(results, kernel=kernel, trained=trained):
            label = "Gaussian" if kernel == "gaussian" else kernel
            x, y = np.array(run.value["at"]) + 1.0, np.maximum(run.value["loss"], 1e-12)
            curves.append(Curve(label, x, y, group, "thin"))
    title = "all are trained" if trained == "all" else f"{trained} alone"
    return Panel(
        title,
        "step + 1",
        "loss over the first loss",
        tuple(curves),
        log_x=True,
        log_y=True,
        y_range=(1e-18, 3.0),
        legend_at="lower left",
    )
