"""Measured points on paper: bars as long as their errors, dots in the colours of the map below, rows that wrap."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.container import ErrorbarContainer

from edgewise.view import Curve, Dots, Map, Panel, Sheet

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
