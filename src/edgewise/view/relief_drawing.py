"""Planes on paper: what knows matplotlib's surfaces and contours."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from edgewise.view.relief import how
from edgewise.view.style import INK, QUIET, SETTINGS

if TYPE_CHECKING:
    from edgewise.landscape import Plane
    from edgewise.view.relief import Relief

HEIGHTS = "viridis"
LEVELS = 17
COLUMN, SURFACE, CONTOUR = 4.2, 3.4, 4.2  # inches


def draw(relief: Relief) -> Figure:
    """One column per plane."""
    count = len(relief.planes)
    with matplotlib.rc_context(SETTINGS | {"axes.grid": False}):  # type: ignore[arg-type]
        width = max(COLUMN * count, 5.5)
        figure = Figure(figsize=(width, SURFACE + CONTOUR), layout="constrained")
        title = "\n".join(textwrap.wrap(relief.title, int(11 * width)))
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        grid = figure.add_gridspec(2, count, height_ratios=(SURFACE, CONTOUR))
        for column, (name, plane) in enumerate(relief.planes.items()):
            limits = relief.limits if np.isfinite(relief.limits[0]) else _own(plane)
            _surface(figure.add_subplot(grid[0, column], projection="3d"), plane, name, limits)
            _contour(figure, figure.add_subplot(grid[1, column]), plane, limits)
        figure.supxlabel(how(relief.planes), fontsize=9, color=QUIET, x=0.99, ha="right")
        for _ in range(2):  # an equal aspect moves what the first layout has placed
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _own(plane: Plane) -> tuple[float, float]:
    finite = plane.losses[np.isfinite(plane.losses)]
    return float(finite.min()), float(finite.max())


def _surface(axes: Any, plane: Plane, name: str, limits: tuple[float, float]) -> None:
    heights = np.where(np.isfinite(plane.losses), plane.losses, np.nan)
    axes.plot_surface(
        *np.meshgrid(plane.x, plane.y), heights, cmap=HEIGHTS, vmin=limits[0], vmax=limits[1], linewidth=0.2,
        edgecolor="#00000030", rcount=len(plane.y), ccount=len(plane.x),
    )  # fmt: skip
    axes.set_zlim(*_apart(limits))
    axes.set_title(name or "loss", loc="left")
    axes.tick_params(labelsize=7, pad=-2)
    axes.view_init(elev=32, azim=-58)


def _contour(figure: Figure, axes: Any, plane: Plane, limits: tuple[float, float]) -> None:
    levels = np.linspace(*_apart(limits), LEVELS)
    heights = np.ma.masked_invalid(plane.losses)
    filled = axes.contourf(plane.x, plane.y, heights, levels=levels, cmap=HEIGHTS, extend="both")
    axes.contour(plane.x, plane.y, heights, levels=levels, colors="white", linewidths=0.4, alpha=0.7)
    if plane.path is not None:
        axes.plot(*plane.path.T, "o-", color="#D55E00", markersize=3, linewidth=1.2, label="training")
        axes.legend(loc="upper right", frameon=True, framealpha=0.85)
    axes.plot(0, 0, "*", color="white", markeredgecolor=INK, markersize=12)
    note = "\n".join(textwrap.wrap(str(plane.roughness), 52))
    if math.isclose(*plane.reach):
        axes.set_aspect("equal")
    axes.set_xlabel(f"along {plane.names[0]}\n{note}", fontsize=9)
    axes.set_ylabel(f"along {plane.names[1]}")
    figure.colorbar(filled, ax=axes, shrink=0.85, label="loss")


def _apart(limits: tuple[float, float]) -> tuple[float, float]:
    """A flat plane still has two ends to its scale."""
    low, high = limits
    margin = 0.0 if high > low else max(1e-6, 1e-3 * abs(low))
    return low - margin, high + margin
