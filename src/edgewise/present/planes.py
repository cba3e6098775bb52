"""Planes as figures: exponents over two knobs, what one block does to (norm, overlap), loss landscapes."""

from __future__ import annotations

import html
import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import Document, json_values, whole_file
from edgewise.nouns.architecture import Perceptron
from edgewise.nouns.card import Arrows, Curve, Map, Marker, Panel
from edgewise.present.figures import Sheet, finite_limit
from edgewise.present.html import digest
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.perceptron.edge_of_chaos import boundary, length_fixed_point
from edgewise.theory.perceptron.maps import summary
from edgewise.theory.perceptron.step import chi_1

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from edgewise.critical.phase_diagram import PhaseDiagram
    from edgewise.critical.stream_flow import VectorField
    from edgewise.landscape import LossLine, Plane


OUTCOME_NAMES = ("trains", "risky", "will not train")
EDGES = {  # label, group, role
    "angle": ("angle exponent 0", 6, "boundary"),
    "gradient": ("gradient exponent 0", 2, "second_boundary"),
}


def phase_diagram(diagram: PhaseDiagram) -> Sheet:
    """Return three planes: both exponents of nearly identical tokens, and the network's own outcome with both edges."""
    if diagram.outcome is None:
        raise BadInput("this diagram was not judged; edgewise.phase_diagram makes one that is.")
    limit = finite_limit([diagram.near_angle, diagram.near_gradient])
    outcome = Map("", diagram.x, diagram.y, np.asarray(diagram.outcome, float), classes=OUTCOME_NAMES)
    shares = [f"{name} {np.mean(diagram.outcome == k):.0%}" for k, name in enumerate(OUTCOME_NAMES)]
    near = None  # the grid point nearest to the given network
    if diagram.marker is not None:
        x, y = diagram.marker
        near = int(np.argmin(np.abs(diagram.y - y))), int(np.argmin(np.abs(diagram.x - x)))
    panels = []
    for name, values in (("angle", diagram.near_angle), ("gradient", diagram.near_gradient)):
        background = Map("log-rate per block", diagram.x, diagram.y, values, limit)
        note = f"from {np.nanmin(values):+.3f} to {np.nanmax(values):+.3f} per block"
        if near is not None:
            note = f"{_name(diagram)}: {values[near]:+.3f} per block"
        panels.append(_panel(diagram, f"{name} exponent of near tokens", background, (name,), note))
    panels.append(_panel(diagram, "outcome", outcome, ("angle", "gradient"), ", ".join(shares)))
    network = diagram.architecture
    title = f"{_name(diagram)}, {network.depth} blocks: where it trains"
    size = f"n = {network.tokens:,} tokens, d = {network.width:,}"
    scale = f"theory, {size}, {len(diagram.x)} × {len(diagram.y)} networks"
    return Sheet(title, tuple(panels), scale + (" (extrapolated)" if diagram.extrapolated else ""))


def _panel(diagram: PhaseDiagram, title: str, background: Map, edges: tuple[str, ...], note: str) -> Panel:
    curves = []
    for label, group, role, lines in ((*EDGES[name], diagram.boundaries.get(name, ())) for name in edges):
        curves += [Curve(label, line[:, 0], line[:, 1], group, role) for line in lines]
    markers = () if diagram.marker is None else (Marker(_name(diagram), *diagram.marker),)
    return Panel(
        title,
        words(diagram.x_name),
        words(diagram.y_name),
        tuple(curves),
        note,
        background=background,
        markers=markers,
        log_x=geometric(diagram.x),
        log_y=geometric(diagram.y),
    )


def _name(diagram: PhaseDiagram) -> str:
    return diagram.architecture.name or "this network"


def words(knob: str) -> str:
    return knob.replace("_", " ")


def geometric(values: Array) -> bool:
    """Return whether the values step by a constant factor, so that a logarithmic axis shows them evenly."""
    if len(values) < 3 or not (values > 0).all():
        return False
    return bool(np.ptp(np.diff(np.log(values))) < 1e-6 * np.ptp(np.log(values)))


def vector_field(field: VectorField, title: str = "") -> Sheet:
    """Arrows of unit length point where one block moves (norm, overlap); their color says how far."""
    panel = Panel(
        "",
        "q, mean square per coordinate",
        "overlap (mean cosine)",
        tuple(
            Curve(f"from overlap {orbit[0, 1]:.2g}", orbit[:, 0], orbit[:, 1], 1 + index, "orbit")
            for index, orbit in enumerate(field.trajectories)
        ),
        _note(field),
        log_x=True,
        arrows=_arrows(field),
        markers=tuple(
            Marker(f"{kind} fixed point", point.norm, point.overlap, kind)
            for point in field.fixed_points
            for kind in ["stable" if point.stable else "unstable"]
        ),
    )
    network = field.architecture
    default = f"{network.name or 'this network'}: what one block does to norm and overlap"
    return Sheet(title or default, (panel,), f"theory, n = {network.tokens:,} tokens, d = {network.width:,}")


def _arrows(field: VectorField) -> Arrows:
    """Directions in fractions of the axes, so that an arrow points where the eye sees it point."""
    u = field.d_log_norm / max(np.ptp(np.log(field.norm)), 1e-12)
    v = field.d_overlap / max(np.ptp(field.overlap), 1e-12)
    length = np.hypot(u, v)
    safe = np.where(length > 0, length, 1.0)
    speed = np.hypot(field.d_log_norm, field.d_overlap)
    label = "step of one block, |Δ(log q, overlap)|"
    return Arrows(field.norm, field.overlap, u / safe, v / safe, speed, label)


def _note(field: VectorField) -> str:
    if not field.fixed_points:
        return "no fixed point: the stream grows without bound"
    return "\n".join(
        f"{'stable' if p.stable else 'unstable'} at q = {p.norm:.3g}, overlap {p.overlap:.4g}, "
        f"eigenvalues {p.eigenvalues[0]:.3f}, {p.eigenvalues[1]:.3f}"
        for p in field.fixed_points
    )


Range = tuple[float, float, int]


def perceptron_plane(
    source: Perceptron | str | Callable[..., Any],
    weight_variance: Range = (0.05, 4.0, 80),
    bias_variance: Range = (0.0, 1.0, 60),
) -> Sheet:
    """log chi_1 over (weight variance, bias variance), its zero line, and the perceptron when one is given.

    source: a Perceptron (marked in the plane), or an activation's name or function. Ranges are (low, high, count).
    """
    perceptron = source if isinstance(source, Perceptron) else None
    phi = activation(source.activation if isinstance(source, Perceptron) else source)
    x, y = _variances("weight_variance", weight_variance), _variances("bias_variance", bias_variance)
    sw2, sb2 = np.meshgrid(x, y)
    with np.errstate(divide="ignore"):
        rates = np.log(chi_1(phi, sw2, length_fixed_point(phi, sw2, sb2)))
    line = boundary(phi, largest_bias_variance=float(y[-1]))
    inside = (line[0] >= x[0]) & (line[0] <= x[-1])
    edge = Curve("χ₁ = 1, edge of chaos", line[0][inside], line[1][inside], group=6, role="boundary")
    background = Map("log χ₁: gradient growth per layer", x, y, rates, finite_limit([rates], share=70))
    markers: tuple[Marker, ...] = ()
    if perceptron is not None:
        at = (perceptron.weight_variance, perceptron.bias_variance)
        if x[0] <= at[0] <= x[-1] and y[0] <= at[1] <= y[-1]:
            markers = (Marker(perceptron.name or "this network", *at),)
    panel = Panel(
        "ordered (log χ₁ < 0) and chaotic (log χ₁ > 0)",
        "weight variance σ_w²",
        "bias variance σ_b²",
        (edge,),
        _perceptron_note(perceptron, line),
        background=background,
        markers=markers,
    )
    function = source.activation if isinstance(source, Perceptron) else source
    name = function if isinstance(function, str) else getattr(function, "__name__", "these")
    return Sheet(f"{name} perceptrons: order and chaos", (panel,), "theory, infinite width")


def _variances(name: str, bounds: Range) -> Array:
    low, high, count = bounds
    if not (0 <= low < high < math.inf and count >= 2):
        raise BadInput(
            f"{name} must be (low, high, count) with 0 <= low < high and count >= 2, got {bounds!r}."
        )
    return np.linspace(low, high, count)


def _perceptron_note(perceptron: Perceptron | None, line: tuple[Array, Array]) -> str:
    if perceptron is None:
        return (
            f"edge from σ_w² = {line[0][0]:.4g} at σ_b² = {line[1][0]:g}"
            if len(line[0])
            else "no edge of chaos"
        )
    limits = summary(perceptron)
    depth = limits.trainable_depth
    reach = f"trainable to about {depth:.0f} layers" if math.isfinite(depth) else "trainable at any depth"
    return f"{perceptron.name or 'this network'}: χ₁ = {limits.chi_1:.4f}, {limits.phase}, {reach}"


HEIGHTS = "viridis"
LEVELS = 17
COLUMN, SURFACE, CONTOUR = 4.2, 3.4, 4.2  # inches


@dataclass(frozen=True, eq=False)
class Relief:
    """Planes side by side on one scale of colors and heights, with their roughness below."""

    title: str
    planes: dict[str, Plane]
    limits: tuple[float, float]

    def draw(self) -> Figure:
        """Draw a matplotlib figure: surfaces in the first row, contours in the second."""
        import matplotlib
        from matplotlib.figure import Figure

        from edgewise.present.draw import QUIET, SETTINGS

        count = len(self.planes)
        with matplotlib.rc_context(SETTINGS | {"axes.grid": False}):  # type: ignore[arg-type]
            width = max(COLUMN * count, 5.5)
            figure = Figure(figsize=(width, SURFACE + CONTOUR), layout="constrained")
            title = "\n".join(textwrap.wrap(self.title, int(11 * width)))
            figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
            grid = figure.add_gridspec(2, count, height_ratios=(SURFACE, CONTOUR))
            for column, (name, plane) in enumerate(self.planes.items()):
                limits = self.limits if np.isfinite(self.limits[0]) else _range(plane)
                _surface(figure.add_subplot(grid[0, column], projection="3d"), plane, name, limits)
                _contour(figure, figure.add_subplot(grid[1, column]), plane, limits)
            figure.supxlabel(how(self.planes), fontsize=9, color=QUIET, x=0.99, ha="right")
            for _ in range(2):  # an equal aspect moves what the first layout has placed
                figure.draw_without_rendering()
            figure.set_layout_engine("none")
        return figure

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
    """Return one plane, or several by name; with a shared scale their heights can be compared."""
    named = _named(planes, 2)
    heights = np.concatenate([_finite(plane.losses) for plane in named.values()])
    limits = (float(heights.min()), float(heights.max())) if shared_scale else (np.nan, np.nan)
    axes = " against ".join(next(iter(named.values())).names)
    return Relief(title or f"loss over {axes}", named, limits)


def landscape_line(lines: LossLine | Mapping[str, LossLine], title: str = "") -> Sheet:
    """Return the loss along a direction, one curve per line, and the place of the model."""
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


def _range(plane: Plane) -> tuple[float, float]:
    finite = _finite(plane.losses)
    return float(finite.min()), float(finite.max())


def _surface(axes: Any, plane: Plane, name: str, limits: tuple[float, float]) -> None:
    heights = np.where(np.isfinite(plane.losses), plane.losses, np.nan)
    scale = {
        "cmap": HEIGHTS,
        "vmin": limits[0],
        "vmax": limits[1],
        "linewidth": 0.2,
        "edgecolor": "#00000030",
    }
    counts = {"rcount": len(plane.y), "ccount": len(plane.x)}
    axes.plot_surface(*np.meshgrid(plane.x, plane.y), heights, **scale, **counts)
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
    """Return two different ends of a scale, also of a flat plane."""
    low, high = limits
    margin = 0.0 if high > low else max(1e-6, 1e-3 * abs(low))
    return low - margin, high + margin


TEMPLATE = "relief_page.html"
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_IN_SCRIPT = str.maketrans({"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"})


def write_page(path: Path, title: str, limits: tuple[float, float], planes: Mapping[str, Plane]) -> Path:
    """Write the page, whole or not at all."""
    if not path.parent.is_dir():
        raise BadInput(f"the folder {str(path.parent)!r} for the page does not exist. Make it first.")
    with whole_file(path) as file:
        # a lone surrogate in a name is not text
        file.write(page(title, limits, planes).encode(errors="replace"))
    return path


def page(title: str, limits: tuple[float, float], planes: Mapping[str, Plane]) -> str:
    """Return the template with its policy, title and numbers."""
    template = files("edgewise.present").joinpath(TEMPLATE).read_text(encoding="utf-8")
    scale = list(limits) if np.isfinite(limits[0]) else None
    data = {"title": title, "limits": scale, "planes": [_data(name, plane) for name, plane in planes.items()]}
    pieces = {"policy": policy(template), "title": html.escape(title), "data": script_json(data)}
    return _PLACE.sub(lambda place: pieces[place[1]], template)


def script_json(data: object) -> str:
    """JSON in ASCII without <, > and &: no end of the script, no comment, no U+2028."""
    return json.dumps(data, allow_nan=False, ensure_ascii=True).translate(_IN_SCRIPT)


def policy(template: str) -> str:
    """Nothing is loaded or sent; only the script and the style of the template run."""
    parts = (template.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0] for tag in ("script", "style"))
    script, style = map(digest, parts)
    return f"default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'; form-action 'none'"


def _data(name: str, plane: Plane) -> Document:
    path = None if plane.path is None else [[float(f"{c:.5g}") for c in point] for point in plane.path]
    return {
        "name": name or "loss",
        "x": plane.x.tolist(),
        "y": plane.y.tolist(),
        "z": json_values(plane.losses),  # all digits: the range can be tiny beside the loss
        "path": path,
        "axes": list(plane.names),
        "note": str(plane.roughness),
    }
