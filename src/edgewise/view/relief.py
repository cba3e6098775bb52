"""Loss landscapes as figures: surfaces above contours for planes, curves for lines, a page to turn for planes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.view.sheet import Curve, Marker, Panel, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from edgewise.landscape import Line, Plane


@dataclass(frozen=True, eq=False)
class Relief:
    """Planes side by side on one scale of colours and heights, with their roughness below."""

    title: str
    planes: dict[str, Plane]
    limits: tuple[float, float]

    def draw(self) -> Figure:
        """A matplotlib figure: surfaces in the first row, contours in the second."""
        from edgewise.view.relief_drawing import draw

        return draw(self)

    def save(self, path: str | Path) -> Path:
        """Write a .png, .svg or .pdf, or as .html a page that needs no network and can be turned with the mouse."""
        from edgewise.view.files import check_path, save
        from edgewise.view.relief_page import write_page

        if Path(path).suffix.lower() == ".html":
            return write_page(self, Path(path))
        return save(self.draw(), check_path(path))

    def _repr_png_(self) -> bytes:
        from edgewise.view.files import png

        return png(self.draw())


def landscape(planes: Plane | Mapping[str, Plane], title: str = "", shared_scale: bool = True) -> Relief:
    """One plane, or several by name; with a shared scale their heights can be compared, else each has its own."""
    named = _named(planes, 2)
    heights = np.concatenate([_finite(plane.losses) for plane in named.values()])
    limits = (float(heights.min()), float(heights.max())) if shared_scale else (np.nan, np.nan)
    axes = " against ".join(next(iter(named.values())).names)
    return Relief(title or f"loss over {axes}", named, limits)


def landscape_line(lines: Line | Mapping[str, Line], title: str = "") -> Sheet:
    """The loss along a direction, one curve per line, and the place of the model."""
    named = _named(lines, 1)
    curves = tuple(Curve(name, line.x, line.losses, k) for k, (name, line) in enumerate(named.items()))
    marks = tuple(Marker("the model", 0.0, line.centre) for line in named.values())
    noted = [textwrap.wrap(f"{name}: {line.roughness}".lstrip(": "), 72) for name, line in named.items()]
    along = ", ".join(dict.fromkeys(line.names[0] for line in named.values()))
    panel = Panel("", f"along {along}", "loss", curves, "\n".join(row for rows in noted for row in rows), markers=marks)
    return Sheet(title or f"loss along {along}", (panel,), how(named))


def how(grids: Mapping[str, Plane | Line]) -> str:
    """Size, normalization and seeds, as far as all have them."""
    first = next(iter(grids.values()))
    size = " x ".join(str(len(axis)) for axis in first.axes) + " points"
    if first.path is not None:
        return f"{size} in the plane of the training path"
    seeds = " ".join(dict.fromkeys(str(grid.seed) for grid in grids.values()))
    kinds = ", ".join(dict.fromkeys(grid.normalization for grid in grids.values()))
    balanced = [name for name, grid in grids.items() if grid.rebalanced]
    extra = f", queries and keys rebalanced {' and '.join(balanced)}".rstrip() if balanced else ""
    return f"{size}, normalization: {kinds}, direction seed {seeds}{extra}"


def _named(grids: object, axes: int) -> dict[str, Any]:
    named = dict(grids) if isinstance(grids, Mapping) else {"": grids}
    wrong = next((g for g in named.values() if len(getattr(g, "axes", ())) != axes), None)
    if not named or wrong is not None:
        kind = "plane" if axes == 2 else "line"
        raise BadInput(f"expected a landscape {kind} or several by name, got {type(wrong).__name__}.")
    return named


def _finite(losses: Array) -> Array:
    found = losses[np.isfinite(losses)]
    if not found.size:
        raise BadInput("no point of the plane has a finite loss: there is nothing to draw.")
    return found
