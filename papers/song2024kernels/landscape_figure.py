"""The figure: surfaces and contours of one network per arm, and roughness of all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from edgewise.study import Result

NAMES = {"kept": "softmax", "swapped": "softmax, then Gaussian", "gaussian": "Gaussian", "kept, rebalanced":
         "softmax, QK rebalanced"}  # fmt: skip
COLOURS = {"kept": "#0072B2", "swapped": "#D55E00", "gaussian": "#009E73", "kept, rebalanced": "#56B4E9"}
NUMBERS = {"residual": "distance from the\nbest quadratic / range", "minima": "interior minima",
           "range": "range of the loss", "sharpness": "largest curvature"}  # fmt: skip


def pictures(results: Sequence[Result], scale: str) -> Figure:
    """Rows: surfaces, contours (first network, first directions), numbers (points: networks; bars: mean, error)."""
    figure = Figure(figsize=(14, 11), layout="constrained")
    grid = figure.add_gridspec(3, 4, height_ratios=(1.15, 1.0, 0.75))
    first = min(results, key=lambda r: r.case["seed"])
    x = np.linspace(-1, 1, first.case["points"])
    low, high = _levels(first)
    contours = []
    for column, (arm, name) in enumerate(NAMES.items()):
        z = np.array(first.value[arm]["losses"])
        surface: Any = figure.add_subplot(grid[0, column], projection="3d")
        surface.plot_surface(*np.meshgrid(x, x), z, cmap="viridis", vmin=low, vmax=high, linewidth=0.1,
                             edgecolor="#0003", rcount=len(x), ccount=len(x))  # fmt: skip
        surface.set(zlim=(low, high), title=name)
        surface.set_box_aspect(None, zoom=1.1)
        surface.tick_params(labelsize=7, pad=-2)
        contour = figure.add_subplot(grid[1, column])
        filled = contour.contourf(x, x, z, levels=np.linspace(low, high, 25), cmap="viridis")
        contour.contour(x, x, z, levels=np.linspace(z.min(), z.max(), 10), colors="white", linewidths=0.6)
        contour.plot(0, 0, "w*", markeredgecolor="k", markersize=10)
        contour.set(xlabel="along W^Q", ylabel="along W^K", aspect="equal")
        contours.append(contour)
    figure.colorbar(filled, ax=contours, shrink=0.8, label="loss", format="%.3f")
    for column, (name, label) in enumerate(NUMBERS.items()):
        _numbers(figure.add_subplot(grid[2, column]), results, name, label)
    words = (
        "Loss over queries against keys: first network, first directions, one scale of colours, white lines by each "
        "picture's own range. Below: every network (mean over directions), mean and standard error. " + scale
    )
    figure.suptitle("\n".join(textwrap.wrap(words, 150)), fontsize=10)
    return figure


def _levels(result: Result) -> tuple[float, float]:
    every = np.concatenate([np.ravel(result.value[arm]["losses"]) for arm in NAMES])
    return float(every.min()), float(every.max())


def _numbers(axes: Any, results: Sequence[Result], name: str, label: str) -> None:
    for place, arm in enumerate(NAMES):
        values = np.array([np.mean(r.value[arm][name]) for r in results])
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        axes.plot(np.full(len(values), place), values, ".", color=COLOURS[arm], alpha=0.5)
        axes.errorbar(place, values.mean(), error, fmt="_", color=COLOURS[arm], markersize=22, capsize=4)
    axes.set_xticks(range(len(NAMES)), [n.replace(", ", ",\n") for n in NAMES.values()], fontsize=7, rotation=20)
    axes.set(title=label, ylim=(0, None))
