"""Panels on paper, in one style: the thin layer that knows matplotlib, and nothing about transformers."""

from __future__ import annotations

import io
import math
import tempfile
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import BoundaryNorm, ListedColormap, LogNorm, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.nouns.card import Arrows, Dots, Map, Panel

# Colors that color-blind readers tell apart [Okabe 2008], without its yellow (too pale for lines on white).
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
OUTCOMES = ("#CFE6F5", "#F5D08A", "#C8603C")  # trains, risky, fails; they differ in lightness too
DIVERGING = "PuOr_r"
SPEED = "cividis"
INK = "#222222"
QUIET = "#666666"
PANEL_WIDTH, PANEL_HEIGHT = 4.3, 3.3  # inches
SMALLEST_WIDTH = 6.2  # of a figure: its headline must fit
NAME_HEIGHT = 0.21  # inches of a row of names
NAME_WIDTH = 0.075  # inches of one character of them
NAMES_ACROSS = 44  # characters that fit side by side under one panel
SETTINGS = {
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.labelsize": 10.0,
    "legend.fontsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 2.0,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
}
ROLES: dict[str, dict[str, Any]] = {
    "line": {"linestyle": "-"},
    "second": {"linestyle": (0, (4, 2)), "linewidth": 1.4, "alpha": 0.9},
    "third": {"linestyle": (0, (1, 1.5)), "linewidth": 2.0, "alpha": 0.9},
    "thin": {"linestyle": "-", "linewidth": 0.9, "alpha": 0.4},
    "steps": {"linestyle": "-", "linewidth": 1.4, "drawstyle": "steps-mid"},
    "points": {
        "linestyle": "none",
        "marker": "o",
        "markersize": 4.5,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    },
    "hollow": {
        "linestyle": "none",
        "marker": "s",
        "markersize": 4.5,
        "markerfacecolor": "white",
        "markeredgewidth": 1.3,
    },
    "cross": {"linestyle": "none", "marker": "x", "markersize": 6.5, "markeredgewidth": 1.8},
    "median": {"linestyle": "none", "marker": "|", "markersize": 13.0, "markeredgewidth": 2.0},
    "fit": {"linestyle": "-", "linewidth": 7.0, "alpha": 0.22, "solid_capstyle": "butt"},
    "boundary": {"linestyle": "-", "linewidth": 2.2},
    "second_boundary": {"linestyle": (0, (3, 2)), "linewidth": 2.2},  # the two edges often lie on each other
    "orbit": {"linestyle": "-", "linewidth": 1.6, "marker": "o", "markersize": 3.0},
}
DOT: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.6, "s": 42}
MARKS: dict[str, dict[str, Any]] = {
    "here": {"marker": "*", "s": 190.0, "facecolor": "white", "edgecolor": INK, "linewidth": 1.2},
    "stable": {"marker": "o", "s": 70.0, "facecolor": INK, "edgecolor": "white", "linewidth": 1.2},
    "unstable": {"marker": "o", "s": 60.0, "facecolor": "white", "edgecolor": INK, "linewidth": 1.6},
}


def draw_sheet(title: str, panels: Sequence[Panel], scale: str = "", columns: int | None = None) -> Figure:
    """Draw all panels side by side in one figure; no window, no global state."""
    lines = title.count("\n") + 1
    notes = max(panel.note.count("\n") + 1 for panel in panels)
    legends_above = 0.7 if any(panel.arrows is not None and not panel.legend_at for panel in panels) else 0.0
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    named = [[len(name) for panel in panels[k::columns] for name in panel.y_names] for k in range(columns)]
    names = sum(NAME_WIDTH * max(lengths, default=0) for lengths in named)
    width = max(PANEL_WIDTH * columns, SMALLEST_WIDTH) + 0.3 + names
    panel_height = max(PANEL_HEIGHT, *(NAME_HEIGHT * len(panel.y_names) for panel in panels))
    height = 0.25 * lines + rows * (panel_height + 0.2 * notes + legends_above)
    with matplotlib.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _panel(axes, panel)
        for empty in grid[len(panels) :]:
            empty.set_axis_off()
        named_rows = [
            axes for axes, panel in zip(grid, panels, strict=False) if panel.y_names and panel.legend
        ]
        if named_rows:  # they have no empty corner: their legend is above the figure, once
            handles = named_rows[0].get_legend_handles_labels()[0]
            figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
        if scale:
            _foot(figure, scale)
        figure.draw_without_rendering()  # ticks are made late, and the style must still hold then
        for axes, panel in zip(grid, panels, strict=False):
            if axes.get_xscale() == "linear" and not panel.x_names:
                boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
                if any(right.x0 < left.x1 + right.height / 2 for left, right in pairwise(boxes)):
                    # fewer numbers below an axis on which they would run into each other
                    axes.xaxis.set_major_locator(MaxNLocator(nbins=max(len(boxes) // 2, 2)))
            if (
                panel.background is None
                and panel.arrows is None
                and not panel.complement
                and not panel.y_names
            ):
                _make_room(axes)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # settled once: saving would settle it again, which is slow
    return figure


def _foot(figure: Figure, scale: str) -> None:
    """Write the scale below the panels; one that is wider than the figure in lines of about equal length."""
    text = figure.supxlabel(scale, fontsize=9, color=QUIET, x=0.99, ha="right")
    share = text.get_window_extent().width / (0.98 * figure.bbox.width)
    if share > 1:
        lines = scale.split("\n")
        most = max(map(len, lines)) / share  # letters that fit
        widths = [min(most, len(line) / math.ceil(max(len(line), 1) / most) + 10) for line in lines]
        text.set_text("\n".join(textwrap.fill(line, int(w)) for line, w in zip(lines, widths, strict=True)))


def _panel(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left")
    axes.set_ylabel(panel.y_label)
    axes.set_xlabel(panel.x_label)
    if panel.note:
        axes.set_xlabel(f"{panel.x_label}\n{panel.note}", loc="left", fontsize=9.5, linespacing=1.3)
    if panel.background is not None:
        _background(axes, panel.background, panel.dots)
    if panel.arrows is not None:
        _arrows(axes, panel.arrows)
    for curve in panel.curves:
        label = "_" + curve.label if curve.role == "fit" else curve.label
        color, error, x_error = LINES[curve.group % len(LINES)], curve.error, curve.x_error
        axes.errorbar(
            curve.x, curve.y, error, x_error, color=color, label=label, elinewidth=1.0, **ROLES[curve.role]
        )
        if curve.band is not None:
            axes.fill_between(curve.x, *curve.band, color=color, alpha=0.2, linewidth=0)
    for draw_line, values in ((axes.axhline, panel.levels), (axes.axvline, panel.places)):
        for value in values:
            draw_line(value, color=QUIET, linestyle=":", linewidth=1.2, zorder=1)
    for mark in panel.markers:
        axes.scatter([mark.x], [mark.y], label=mark.label, zorder=5, clip_on=False, **MARKS[mark.role])
    _scales(axes, panel)
    if panel.legend and not panel.y_names:
        _legend(axes, panel)


def _scales(axes: Axes, panel: Panel) -> None:
    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        _plain_if_short(axes.xaxis, *np.log10(axes.get_xlim()))
    elif panel.linear_x:
        axes.set_xscale("symlog", linthresh=panel.linear_x)
    elif panel.x_label == "block":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.y_label == "block":
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
        if panel.background is None and panel.arrows is None:
            low, high = np.log10(axes.get_ylim())  # at least one decade: a curve that hardly moves looks so
            missing = max(1.0 - (high - low), 0.0)
            above = 0.0 if bool(panel.complement) else missing / 2
            axes.set_ylim(10 ** (low - missing + above), 10 ** (high + above))
            axes.yaxis.set_major_locator(LogLocator(numticks=6))
            _plain_if_short(axes.yaxis, low - missing, high)
            axes.yaxis.set_minor_formatter(NullFormatter())
    if panel.complement:
        _complement(axes, panel.complement)
    if panel.x_names:
        slanted = max(map(len, panel.x_names)) * len(panel.x_names) > NAMES_ACROSS
        turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
        axes.set_xticks(range(len(panel.x_names)), panel.x_names, **turned)
        axes.set_xlim(-0.6, len(panel.x_names) - 0.4)
    if panel.y_names:
        axes.set_yticks(range(len(panel.y_names)), panel.y_names)
        axes.set_ylim(len(panel.y_names) - 0.4, -0.6)  # the first on top
    if panel.y_range:
        axes.set_ylim(*panel.y_range)


def _make_room(axes: Axes) -> None:
    """No legend over data: where every corner is taken, the axis grows upwards until the legend stands above it."""
    legend = axes.get_legend()
    if legend is None or not _covers(axes, legend.get_window_extent()):
        return
    low, high = axes.transScale.transform([(1.0, end) for end in axes.get_ylim()])[:, 1]
    share = min(legend.get_window_extent().height / axes.get_window_extent().height + 0.04, 0.6)
    top = axes.transScale.inverted().transform([(1.0, low + (high - low) / (1 - share))])[0, 1]
    axes.set_ylim(axes.get_ylim()[0], top)
    legend.set_loc("upper right")


def _covers(axes: Axes, box: Bbox) -> bool:
    """Return whether a curve of these axes runs through a box of the window, or a point lies in it."""
    paths = (
        line.get_transform().transform_path(line.get_path()).cleaned(remove_nans=True) for line in axes.lines
    )
    return any(
        path.intersects_bbox(box, filled=False) or box.count_contains(path.vertices) > 0 for path in paths
    )


def _plain_if_short(axis: Axis, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis that is too short for powers of ten alone."""
    if high - low < 1.6:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _complement(axes: Axes, label: str) -> None:
    """Let the right axis read the same curve as 1 - y, so that 0.001 there is an overlap of 0.999."""

    def one_minus(value: float, _: int | None) -> str:
        if value < 1e-4:
            return f"1−{value:.0e}".replace("e-0", "e-")
        return f"{1 - value:.10f}".rstrip("0").rstrip(".")

    right = axes.twinx()
    right.set_yscale("log")
    right.set_ylim(axes.get_ylim())
    shown = [tick for tick in axes.get_yticks() if axes.get_ylim()[0] <= tick <= min(axes.get_ylim()[1], 1.0)]
    right.yaxis.set_major_locator(FixedLocator(shown))
    right.yaxis.set_major_formatter(FuncFormatter(one_minus))
    right.yaxis.set_minor_locator(FixedLocator([]))
    right.set_ylabel(label, color=QUIET)
    right.tick_params(colors=QUIET, length=0)
    right.grid(False)


def _background(axes: Axes, background: Map, dots: Dots | None = None) -> None:
    plane = background.x, background.y, background.values
    if background.classes:
        norm = BoundaryNorm(np.arange(len(background.classes) + 1) - 0.5, len(background.classes))
        axes.pcolormesh(*plane, cmap=ListedColormap(OUTCOMES), norm=norm, shading="nearest", rasterized=True)
        return
    signed = TwoSlopeNorm(0.0, -background.limit, background.limit)
    mesh = axes.pcolormesh(*plane, cmap=DIVERGING, norm=signed, shading="nearest", rasterized=True)
    if dots is not None:
        axes.scatter(dots.x, dots.y, c=dots.values, cmap=DIVERGING, norm=signed, label=dots.label, **DOT)
    axes.figure.colorbar(mesh, ax=axes, label=background.label, pad=0.02, extend="both")


def _arrows(axes: Axes, arrows: Arrows) -> None:
    fastest = max(float(np.nanmax(arrows.speed)), 1e-12)
    norm = LogNorm(fastest * 1e-4, fastest, clip=True)
    colors = ListedColormap(matplotlib.colormaps[SPEED](np.linspace(0.0, 0.8, 128)))  # without its pale end
    field = (arrows.x, arrows.y, arrows.u, arrows.v, arrows.speed)
    quiver = axes.quiver(*field, cmap=colors, norm=norm, pivot="mid", angles="uv", scale=28, width=0.005)
    axes.figure.colorbar(quiver, ax=axes, label=arrows.label, pad=0.02)


def _legend(axes: Axes, panel: Panel) -> None:
    handles, _ = axes.get_legend_handles_labels()
    if panel.background is not None and panel.background.classes:
        names = panel.background.classes
        handles += [Patch(facecolor=c, label=name) for c, name in zip(OUTCOMES, names, strict=True)]
    on_map = panel.background is not None or panel.arrows is not None
    if len(handles) > 1 or (on_map and handles):
        named = {str(handle.get_label()): handle for handle in handles}  # a boundary in pieces is named once
        place: dict[str, Any] = {"loc": panel.legend_at or "best"}
        if panel.arrows is not None and not panel.legend_at:  # no corner of a flow is empty
            place = {"loc": "lower left", "bbox_to_anchor": (-0.08, 1.0), "ncols": 3, "columnspacing": 1.0}
        legend = axes.legend(handles=list(named.values()), frameon=on_map, framealpha=0.85, **place)
        legend.get_frame().set_edgecolor("none")


SUFFIXES = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 160


def check_path(path: str | Path) -> Path:
    """Return the path; raise `BadInput` before anything is computed if it cannot be written."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(
            f"a figure cannot be written as {path.name!r}: its name must end in {', '.join(SUFFIXES)}."
        )
    if not path.parent.is_dir():
        raise BadInput(f"the folder {str(path.parent)!r} for the figure does not exist. Make it first.")
    try:
        # permissions alone do not tell: some file systems take no files
        with tempfile.TemporaryFile(dir=path.parent):
            writable = not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise BadInput(f"the figure {str(path)!r} cannot be written. Name a file in a folder you may change.")
    return path


def save_figure(figure: Figure, path: Path) -> Path:
    """Write beside the goal, then rename: a reader never sees half a picture."""
    suffix = path.suffix.lower()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # the same numbers give the same bytes
    with whole_file(path) as file, matplotlib.rc_context({"svg.hashsalt": "edgewise"}):
        figure.savefig(file, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=undated.get(suffix, {}))
    return path


def figure_png(figure: Figure) -> bytes:
    """Return the picture for a notebook."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()
