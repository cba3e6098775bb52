"""Measured points on paper: bars as long as their errors, dots in the colours of the map below, rows that wrap."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.container import ErrorbarContainer

from edgewise.present import Curve, Dots, Map, Panel, Sheet

X = np.array([1.0, 2.0, 3.0])


def test_bars_are_as_long_as_the_errors() -> None:
    curve = Curve("measured", X, X**2, role="points", error=np.full(3, 0.25), x_error=np.full(3, 0.5))
    (axes,) = Sheet("", (Panel("", "x", "y", (curve,)),)).draw().axes
    (container,) = (c for c in axes.containers if isinstance(c, ErrorbarContainer))
    across, along = (np.array(lines.get_segments()) for lines in container.lines[2])
    assert np.allclose(np.diff(across[:, :, 0]), 1.0)
    assert np.allclose(np.diff(along[:, :, 1]), 0.5)


def test_dots_share_the_colours_of_their_map() -> None:
    plane = Map("", X, X, np.linspace(-1, 1, 9).reshape(3, 3), limit=2.0)
    dots = Dots("measured", X, X, np.array([-1.0, 0.0, 1.0]))
    axes = Sheet("", (Panel("", "x", "y", background=plane, dots=dots),)).draw().axes[0]
    (mesh,) = (c for c in axes.collections if isinstance(c, QuadMesh))
    (points,) = (c for c in axes.collections if isinstance(c, PathCollection))
    assert np.allclose(points.get_facecolor(), mesh.to_rgba(dots.values))


def test_panels_wrap_into_rows() -> None:
    panel = Panel("", "x", "y", (Curve("a", X, X),))
    figure = Sheet("", (panel,) * 5, columns=3).draw()
    tops = sorted({round(axes.get_position().y1, 3) for axes in figure.axes}, reverse=True)
    assert len(tops) == 2
    assert [axes.axison for axes in figure.axes] == [True] * 5 + [False]


def test_numbers_below_an_axis_do_not_run_into_each_other() -> None:
    curve = Curve("", np.array([-0.0495, -0.0095]), np.array([0.0, 1.0]))
    names = ("low rank + diagonal", "block diagonal")
    for axes in Sheet("", (Panel("", "x", "y", (curve,), y_names=names, legend=False),) * 3).draw().axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        assert len(boxes) > 1
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def crowded(corner_free: bool) -> Panel:
    """Curves everywhere, or none in the upper right corner."""
    x = np.linspace(0.0, 1.0, 30)
    named = (Curve("falling", x, 1.0 - x), Curve("flat", x, 0 * x, 1))
    lines = () if corner_free else tuple(Curve("", x, 0 * x + k / 10, 2) for k in range(11))
    return Panel("", "x", "y", (*named, *lines))


@pytest.mark.parametrize("corner_free", [True, False])
def test_no_legend_stands_over_a_curve(corner_free: bool) -> None:
    figure = Sheet("", (crowded(corner_free),)).draw()
    (axes,) = figure.axes
    legend = axes.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    for line in axes.lines:
        points = axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]))
        assert box.count_contains(points) == 0
    assert (axes.get_ylim()[1] > 1.2) == (not corner_free)  # the axis grows only where it must


def test_rows_with_names_have_the_first_on_top_and_one_legend_above() -> None:
    points = Curve("seeds", X, np.array([0.0, 1.0, 2.0]), role="points")
    means = Curve("medians", X, np.array([0.0, 1.0, 2.0]), 1, "median")
    panel = Panel("", "loss", "", (points, means), y_names=("plain", "clipped", "a much longer name"))
    figure = Sheet("title", (panel, panel)).draw()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(panel.y_names)
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["seeds", "medians"]
    assert legend.get_window_extent().y0 >= axes.get_window_extent().y1


def test_a_band_has_the_height_it_is_given() -> None:
    curve = Curve("mean", X, X, band=(X - 0.5, X + 1.0))
    (axes,) = Sheet("", (Panel("", "x", "y", (curve,)),)).draw().axes
    (shade,) = (c for c in axes.collections if isinstance(c, PolyCollection))
    low, high = shade.get_paths()[0].get_extents().get_points()[:, 1]
    assert (low, high) == (0.5, 4.0)
