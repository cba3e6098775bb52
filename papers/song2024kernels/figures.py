"""Curves over training with bands over seeds: blue softmax, red Gaussian; dashed where the kernel was swapped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgewise.study import Result

from .compare import ACCURACY, LOSS, by_seed, curves, kernels_of

COLOURS = {"softmax": "tab:blue", "gaussian": "tab:red", "normalized_gaussian": "tab:purple", "linear": "tab:green"}
LABELS = {LOSS: "test loss", ACCURACY: "test accuracy"}


def band(axis: Axes, rows: np.ndarray, column: int, colour: str, **style: Any) -> None:
    """Mean over seeds with a band of one standard error, and every seed as a thin line; rows (seeds, points, 3)."""
    steps, values = rows[0, :, 0], rows[:, :, column]
    mean = values.mean(0)
    error = values.std(0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0 * mean
    axis.plot(steps, values.T, color=colour, alpha=0.2, linewidth=0.6)
    axis.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.25, linewidth=0)
    axis.plot(steps, mean, color=colour, **style)


def stage_one(axes: Sequence[Axes], results: Sequence[Result]) -> None:
    """Loss and accuracy of stage one in two panels."""
    for axis, column in zip(axes, LABELS, strict=True):
        for kernel in kernels_of(results):
            band(axis, curves(results, kernel), column, COLOURS[kernel], label=kernel)
        axis.set(xlabel="step of stage one", ylabel=LABELS[column])
    axes[0].legend(fontsize=8)


def stage_two(axis: Axes, results: Sequence[Result]) -> None:
    """Test loss after the swap; the colour is the kernel in use."""
    for first in kernels_of(results):
        runs = by_seed(results, first)
        for second in runs[0].value["stage_two"]:
            rows = np.array([run.value["stage_two"][second]["curve"] for run in runs], dtype=float)
            style = "-" if first == second else "--"
            band(axis, rows, LOSS, COLOURS[second], linestyle=style, label=f"{first}, then {second}")
    axis.set(xlabel="step of stage two", ylabel=LABELS[LOSS])
    axis.legend(fontsize=8)


def one_stage_figure(results: Sequence[Result], title: str) -> Figure:
    """Loss and accuracy; a dotted line where the easy level of the curriculum ends, and one at chance."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    stage_one(axes, results)
    axes[0].set_yscale("log")
    axes[1].axhline(0.5, color="0.6", linewidth=0.8, linestyle=":")
    for axis in axes:
        axis.axvline(results[0].case["easy_steps"], color="0.6", linewidth=0.8, linestyle=":")
    figure.suptitle(title, fontsize=9)
    return figure


def two_stage_figure(results: Sequence[Result], title: str) -> Figure:
    figure = Figure(figsize=(12, 4), layout="constrained")
    axes = figure.subplots(1, 3)
    stage_one(axes[:2], results)
    stage_two(axes[2], results)
    figure.suptitle(title, fontsize=9)
    return figure
