"""Curves over training with bands over seeds: one colour per kernel, dashed where the kernel was swapped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from edgewise.arrays import Array
from edgewise.present import Curve, Panel, Sheet
from edgewise.study import Result

from .compare import ACCURACY, LOSS, by_seed, curves, kernels_of

GROUPS = {"softmax": 0, "gaussian": 1, "normalized_gaussian": 3, "linear": 2}  # of colours
NAMES = {
    "softmax": "softmax",
    "gaussian": "Gaussian",
    "normalized_gaussian": "normalized Gaussian",
    "linear": "linear",
}
LABELS = {LOSS: "test loss", ACCURACY: "test accuracy"}
CHANCE = 0.5


def band(label: str, rows: Array, column: int, kernel: str, role: str = "line") -> tuple[Curve, ...]:
    """Mean over seeds with a band of one standard error, and every seed as a thin line; rows (seeds, points, 3)."""
    steps, values = rows[0, :, 0], rows[:, :, column]
    mean = values.mean(0)
    error = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0 * mean
    thin = tuple(Curve("", steps, one, GROUPS[kernel], "thin") for one in values)
    return (*thin, Curve(label, steps, mean, GROUPS[kernel], role, band=(mean - error, mean + error)))


def stage_one(results: Sequence[Result], column: int, easy: int | None = None) -> Panel:
    """Loss or accuracy of stage one; a dotted line where the easy level of a curriculum ends, and one at chance."""
    lines = [band(NAMES[kernel], curves(results, kernel), column, kernel) for kernel in kernels_of(results)]
    every, x_label = tuple(curve for line in lines for curve in line), "step" if easy else "step of stage one"
    return Panel(
        LABELS[column],
        x_label,
        LABELS[column],
        every,
        places=(easy,) if easy else (),
        levels=(CHANCE,) if easy and column == ACCURACY else (),
        note="dotted: where the harder images begin" if easy else "",
    )


def stage_two(results: Sequence[Result]) -> Panel:
    """Test loss after the swap; the colour is the kernel in use."""
    lines = []
    for first in kernels_of(results):
        runs = by_seed(results, first)
        for second in runs[0].value["stage_two"]:
            rows = np.array([run.value["stage_two"][second]["curve"] for run in runs], dtype=float)
            role = "line" if first == second else "second"
            lines.append(band(f"{NAMES[first]}, then {NAMES[second]}", rows, LOSS, second, role))
    return Panel(
        "after the swap", "step of stage two", LABELS[LOSS], tuple(c for line in lines for c in line)
    )


def one_stage_figure(results: Sequence[Result], title: str, scale: str) -> Figure:
    """Loss and accuracy under a curriculum."""
    easy = results[0].case["easy_steps"]
    return Sheet(title, tuple(stage_one(results, column, easy) for column in LABELS), scale).draw()


def two_stage_figure(results: Sequence[Result], title: str, scale: str) -> Figure:
    return Sheet(
        title, (*(stage_one(results, column) for column in LABELS), stage_two(results)), scale
    ).draw()
