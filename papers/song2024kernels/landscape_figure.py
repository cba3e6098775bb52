"""The figure: surfaces and contours of one network per arm, and roughness of all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from edgewise.present.draw import INK, LINES, QUIET, SETTINGS
from edgewise.study import Result

NAMES = {
    "kept": "softmax",
    "swapped": "softmax, then Gaussian",
    "gaussian": "Gaussian",
    "kept, rebalanced": "softmax, QK rebalanced",
}
COLOURS = dict(zip(NAMES, (LINES[0], LINES[1], LINES[2], LINES[4]), strict=True))
PATHS = {  # of two stages: name and colour by the kernel before and after
    ("softmax", "softmax"): ("softmax", COLOURS["kept"]),
    ("softmax", "gaussian"): ("softmax, then Gaussian", COLOURS["swapped"]),
    ("gaussian", "gaussian"): ("Gaussian", COLOURS["gaussian"]),
    ("gaussian", "softmax"): ("Gaussian, then softmax", LINES[3]),
}
NUMBERS = {
    "residual": "distance from the best\nquadratic, share of the range",
    "minima": "interior minima",
    "range": "range of the loss",
    "sharpness": "largest curvature",
}
HEIGHTS, LEVELS = "viridis", 25
TICKS = (-1.0, -0.5, 0.0, 0.5, 1.0)
ROOM = 0.3  # of the height of a picture, for its legend


def pictures(results: Sequence[Result], scale: str, stages: Sequence[Result] = ()) -> Figure:
    """Rows: surfaces, contours (first network, first directions), numbers (points: networks; bars: mean, error).

    With runs of two stages a fourth row shows their test loss.
    """
    first = min(results, key=lambda r: r.case["seed"])
    with matplotlib.rc_context(
        SETTINGS | {"font.size": 12.0, "axes.titlesize": 13.0, "axes.labelsize": 12.0}
    ):  # type: ignore[arg-type]
        figure = Figure(figsize=(14, 14 if stages else 11), layout="constrained")
        task = scale.partition(",")[0].partition(";")[0]
        figure.suptitle(
            f"{task}: the loss over queries and keys, by attention kernel",
            fontweight="bold",
            x=0.01,
            ha="left",
        )
        grid = figure.add_gridspec(
            3 + bool(stages), 4, height_ratios=(1.15, 1.0, 0.75, 0.85)[: 3 + bool(stages)]
        )
        _planes(figure, grid, first)
        for column, (name, label) in enumerate(NUMBERS.items()):
            _numbers(figure.add_subplot(grid[2, column]), results, name, label)
        if stages:
            _first_stage(figure.add_subplot(grid[3, :2]), stages)
            _second_stage(figure.add_subplot(grid[3, 2:]), stages)
        words = (
            "Above: first network, first directions, one scale of colours; white lines by each picture's own range. "
            f"Below: every network (mean over directions), mean and standard error. {scale}"
        )
        figure.supxlabel("\n".join(textwrap.wrap(words, 150)), fontsize=11, color=QUIET, x=0.99, ha="right")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _planes(figure: Figure, grid: Any, first: Result) -> None:
    x = np.linspace(-1, 1, first.case["points"])
    low, high = _range(first)
    contours = []
    for column, (arm, name) in enumerate(NAMES.items()):
        losses = np.array(first.value[arm]["losses"])
        surface: Any = figure.add_subplot(grid[0, column], projection="3d")
        surface.plot_surface(
            *np.meshgrid(x, x),
            losses,
            cmap=HEIGHTS,
            vmin=low,
            vmax=high,
            linewidth=0.1,
            edgecolor="#0003",
            rcount=len(x),
            ccount=len(x),
        )
        surface.set(zlim=(low, high), title=name)
        surface.set_box_aspect(None, zoom=1.0)
        surface.tick_params(labelsize=9, pad=-2)
        surface.set_xlabel("queries", fontsize=10, labelpad=-4)
        surface.set_ylabel("keys", fontsize=10, labelpad=0)
        surface.set_zlabel("loss", fontsize=10, labelpad=1)
        contour = figure.add_subplot(grid[1, column])
        filled = contour.contourf(x, x, losses, levels=np.linspace(low, high, LEVELS), cmap=HEIGHTS)
        own = np.linspace(losses.min(), losses.max(), 10)
        contour.contour(x, x, losses, levels=own, colors="white", linewidths=0.6)
        contour.plot(0, 0, "*", color="white", markeredgecolor=INK, markersize=12)
        contour.set(
            xlabel="along the queries", ylabel="along the keys" if column == 0 else "", aspect="equal"
        )
        contour.set(xticks=TICKS, yticks=TICKS)
        contour.grid(False)
        contours.append(contour)
    figure.colorbar(filled, ax=contours, shrink=0.8, label="loss", format="%.2f")


def _range(result: Result) -> tuple[float, float]:
    every = np.concatenate([np.ravel(result.value[arm]["losses"]) for arm in NAMES])
    return float(every.min()), float(every.max())


def _numbers(axes: Any, results: Sequence[Result], name: str, label: str) -> None:
    for place, arm in enumerate(NAMES):
        values = np.array([np.mean(r.value[arm][name]) for r in results])
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        axes.plot(np.full(len(values), place), values, "o", color=COLOURS[arm], alpha=0.45, markersize=5)
        axes.errorbar(place, values.mean(), error, fmt="_", color=COLOURS[arm], markersize=22, capsize=4)
    words = ("softmax", "swapped", "Gaussian", "rebalanced")
    axes.set_xticks(range(len(NAMES)), words, fontsize=10, rotation=20, ha="right", rotation_mode="anchor")
    axes.set(title=label, xlim=(-0.6, len(NAMES) - 0.4))
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])


def _first_stage(axes: Any, runs: Sequence[Result]) -> None:
    """One line per network, by its kernel."""
    for run in runs:
        step, loss, _ = np.array(run.value["curve"]).T
        kernel = run.case["kernel"]
        axes.plot(step, loss, color=PATHS[kernel, kernel][1], linewidth=1.5, label=PATHS[kernel, kernel][0])
    axes.set(title="stage one", xlabel="step", ylabel="test loss")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    _legend(axes)


def _second_stage(axes: Any, runs: Sequence[Result]) -> None:
    """One line per network and kernel; the first point is right after the swap."""
    for run in runs:
        for kernel, found in run.value["stage_two"].items():
            label, colour = PATHS[run.case["kernel"], kernel]
            step, loss, _ = np.array(found["curve"]).T
            axes.plot(step, loss, color=colour, linewidth=1.5, label=label)
    axes.set(title="stage two, from the same weights", xlabel="step", ylabel="test loss")
    _legend(axes)


def _legend(axes: Any) -> None:
    """Every name once, in room of its own above the curves."""
    handles, names = axes.get_legend_handles_labels()
    once = dict(zip(names, handles, strict=True))
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + ROOM * (high - low))
    axes.legend(once.values(), once.keys(), loc="upper right", ncols=2)
