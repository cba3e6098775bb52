"""Loss landscapes as figures: surfaces above contours for planes, a page to turn with the mouse, curves for lines."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.nouns.figure import Curve, Marker, Panel, Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from edgewise.landscape import LossLine, Plane

HEIGHTS = "viridis"
LEVELS = 17
COLUMN, SURFACE, CONTOUR = 4.2, 3.4, 4.2  # inches


@dataclass(frozen=True, eq=False)
class Relief:
    """Planes side by side on one scale of colours and heights, with their roughness below."""

    title: str
    planes: dict[str, Plane]
    limits: tuple[float, float]

    def draw(self) -> Figure:
        """A matplotlib figure: surfaces in the first row, contours in the second."""
        return _figure(self)

    def save(self, path: str | Path) -> Path:
        """Write a .png, .svg or .pdf, or as .html a page that needs no network and can be turned with the mouse."""
        from edgewise.present.draw import check_path, save_figure

        if Path(path).suffix.lower() == ".html":
            return write_page(Path(path), self.title, self.limits, self.planes)
        return save_figure(self.draw(), check_path(path))

    def _repr_png_(self) -> bytes:
        from edgewise.present.draw import figure_png

        return figure_png(self.draw())


def landscape(planes: Plane | Mapping[str, Plane], title: str = "", shared_scale: bool = True) -> Relief:
    """One plane, or several by name; with a shared scale their heights can be compared, else each has its own."""
    named = _named(planes, 2)
    heights = np.concatenate([_finite(plane.losses) for plane in named.values()])
    limits = (float(heights.min()), float(heights.max())) if shared_scale else (np.nan, np.nan)
    axes = " against ".join(next(iter(named.values())).names)
    return Relief(title or f"loss over {axes}", named, limits)


def landscape_line(lines: LossLine | Mapping[str, LossLine], title: str = "") -> Sheet:
    """The loss along a direction, one curve per line, and the place of the model."""
    named = _named(lines, 1)
    curves = tuple(Curve(name, line.x, line.losses, k) for k, (name, line) in enumerate(named.items()))
    marks = tuple(Marker("the model", 0.0, line.centre) for line in named.values())
    noted = [textwrap.wrap(f"{name}: {line.roughness}".lstrip(": "), 72) for name, line in named.items()]
    along = ", ".join(dict.fromkeys(line.names[0] for line in named.values()))
    panel = Panel(
        "", f"along {along}", "loss", curves, "\n".join(row for rows in noted for row in rows), markers=marks
    )
    return Sheet(title or f"loss along {along}", (panel,), how(named))


def how(grids: Mapping[str, Plane | LossLine]) -> str:
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
    finite = losses[np.isfinite(losses)]
    if not finite.size:
        raise BadInput("no point of the plane has a finite loss: there is nothing to draw.")
    return finite


def _figure(relief: Relief) -> Figure:
    """One column per plane."""
    import matplotlib
    from matplotlib.figure import Figure

    from edgewise.present.draw import QUIET, SETTINGS

    count = len(relief.planes)
    with matplotlib.rc_context(SETTINGS | {"axes.grid": False}):  # type: ignore[arg-type]
        width = max(COLUMN * count, 5.5)
        figure = Figure(figsize=(width, SURFACE + CONTOUR), layout="constrained")
        title = "\n".join(textwrap.wrap(relief.title, int(11 * width)))
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        grid = figure.add_gridspec(2, count, height_ratios=(SURFACE, CONTOUR))
        for column, (name, plane) in enumerate(relief.planes.items()):
            limits = relief.limits if np.isfinite(relief.limits[0]) else _range(plane)
            _surface(figure.add_subplot(grid[0, column], projection="3d"), plane, name, limits)
            _contour(figure, figure.add_subplot(grid[1, column]), plane, limits)
        figure.supxlabel(how(relief.planes), fontsize=9, color=QUIET, x=0.99, ha="right")
        for _ in range(2):  # an equal aspect moves what the first layout has placed
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def _range(plane: Plane) -> tuple[float, float]:
    finite = _finite(plane.losses)
    return float(finite.min()), float(finite.max())


def _surface(axes: Any, plane: Plane, name: str, limits: tuple[float, float]) -> None:
    heights = np.where(np.isfinite(plane.losses), plane.losses, np.nan)
    axes.plot_surface(
        *np.meshgrid(plane.x, plane.y),
        heights,
        cmap=HEIGHTS,
        vmin=limits[0],
        vmax=limits[1],
        linewidth=0.2,
        edgecolor="#00000030",
        rcount=len(plane.y),
        ccount=len(plane.x),
    )
    axes.set_zlim(*_apart(limits))
    axes.set_title(name or "loss", loc="left")
    axes.tick_params(labelsize=7, pad=-2)
    axes.view_init(elev=32, azim=-58)


def _contour(figure: Figure, axes: Any, plane: Plane, limits: tuple[float, float]) -> None:
    from edgewise.present.draw import INK

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


TEMPLATE = "relief_page.html"
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_IN_SCRIPT = str.maketrans({"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"})


def write_page(path: Path, title: str, limits: tuple[float, float], planes: Mapping[str, Plane]) -> Path:
    """The page, whole or not at all."""
    if not path.parent.is_dir():
        raise BadInput(f"the folder {str(path.parent)!r} for the page does not exist. Make it first.")
    with whole_file(path) as file:
        file.write(
            page(title, limits, planes).encode(errors="replace")
        )  # a lone surrogate in a name is no text
    return path


def page(title: str, limits: tuple[float, float], planes: Mapping[str, Plane]) -> str:
    """The template with its policy, title and numbers."""
    template = files("edgewise.present").joinpath(TEMPLATE).read_text(encoding="utf-8")
    scale = list(limits) if np.isfinite(limits[0]) else None
    data = {"title": title, "limits": scale, "planes": [_data(name, plane) for name, plane in planes.items()]}
    pieces = {"policy": policy(template), "title": html.escape(title), "data": script_json(data)}
    return _PLACE.sub(lambda place: pieces[place[1]], template)


def script_json(data: Any) -> str:
    """JSON in ASCII without <, > and &: no end of the script, no comment, no U+2028."""
    return json.dumps(data, allow_nan=False, ensure_ascii=True).translate(_IN_SCRIPT)


def policy(template: str) -> str:
    """Nothing is loaded or sent; only the script and the style of the template run."""
    script, style = (_source(template, f"<{tag}>", f"</{tag}>") for tag in ("script", "style"))
    return f"default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'; form-action 'none'"


def _source(template: str, start: str, end: str) -> str:
    """'sha256-...' of the text between two tags."""
    text = template.partition(start)[2].partition(end)[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(name: str, plane: Plane) -> dict[str, Any]:
    # All digits: the range can be tiny beside the loss.
    rows = [[float(v) if np.isfinite(v) else None for v in row] for row in plane.losses]
    path = None if plane.path is None else [[float(f"{c:.5g}") for c in point] for point in plane.path]
    return {
        "name": name or "loss",
        "x": plane.x.tolist(),
        "y": plane.y.tolist(),
        "z": rows,
        "path": path,
        "axes": list(plane.names),
        "note": str(plane.roughness),
    }
