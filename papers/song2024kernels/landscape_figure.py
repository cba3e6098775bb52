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
    figure = Figure(figsize=(13, 10.5), layout="constrained")
    first = min(results, key=lambda r: r.case["seed"])
    x = np.linspace(-1, 1, first.case["points"])
    low, high = _levels(first)
    for column, (arm, name) in enumerate(NAMES.items()):
        z = np.array(first.value[arm]["losses"])
        surface = figure.add_subplot(3, 4, column + 1, projection="3d")
        surface.plot_surface(*np.meshgrid(x, x), z, cmap="viridis", vmin=low, vmax=high, linewidth=0, antialiased=True)
        surface.set(zlim=(low, high), xlabel="W^Q", ylabel="W^K", title=name)
        contour = figure.add_subplot(3, 4, column + 5)
        drawn = contour.contour(x, x, z, levels=np.linspace(low, high, 16), cmap="viridis")
        contour.plot(0, 0, "k+")
        contour.set(xlabel="along W^Q", ylabel="along W^K", aspect="equal")
        figure.colorbar(drawn, ax=contour, shrink=0.8)
    for column, (name, label) in enumerate(NUMBERS.items()):
        _numbers(figure.add_subplot(3, 4, column + 9), results, name, label)
    words = "Loss over queries against keys; the same scale in every picture. Seed 0, direction seed 0. " + scale
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
    axes.set_xticks(range(len(NAMES)), [n.replace(", ", ",\n") for n in NAMES.values()], fontsize=7)
    axes.set(title=label, ylim=(0, None))
