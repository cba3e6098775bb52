"""What one pair of axes shows, as plain numbers: curves, maps, arrows and markers.

Shapes: m points on a curve; a map is (ny, nx) over x (nx) and y (ny); arrows are (my, mx).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgewise.arrays import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Curve:
    """A line or points (x, y), each (m,). The group chooses its colour, the role how it is drawn.

    Roles: line, second, third, fit, thin (one of many runs), steps, orbit, boundary, second_boundary; of what was
    measured: points, hollow, cross (what did not get there), median (a short stroke across points).
    An error is drawn as a bar of that half-length, a band as a shade from its first values to its second.
    """

    label: str
    x: Array
    y: Array
    group: int = 0
    role: str = "line"
    error: Array | None = None
    x_error: Array | None = None
    band: tuple[Array, Array] | None = None


@dataclass(frozen=True, eq=False)
class Map:
    """Numbers over a plane: signed ones around zero, or classes when `classes` names them."""

    label: str
    x: Array
    y: Array
    values: Array
    limit: float = 1.0  # colours run from -limit to limit
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Dots:
    """Measured numbers at the points (x, y) of a map, in the map's own colours: where they agree they vanish in it."""

    label: str
    x: Array
    y: Array
    values: Array


@dataclass(frozen=True, eq=False)
class Arrows:
    """A field of directions (u, v) in axis units at the points x (mx), y (my); colour is the speed."""

    x: Array
    y: Array
    u: Array
    v: Array
    speed: Array
    label: str = ""


@dataclass(frozen=True)
class Marker:
    """One point with a name."""

    label: str
    x: float
    y: float
    role: str = "here"  # here | stable | unstable


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes; the note under it says the number the picture stands for."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...] = ()
    note: str = ""
    legend: bool = True
    legend_at: str = ""  # a corner, as matplotlib names it; else where it hides least
    log_x: bool = False
    log_y: bool = False
    linear_x: float = 0.0  # x of both signs: linear up to this size, logarithmic beyond; 0: as log_x says
    x_names: tuple[str, ...] = ()  # of the places 0, 1, ... on an axis without numbers
    y_names: tuple[str, ...] = ()
    y_range: tuple[float, float] | None = (
        None  # the same for panels that are compared; else what the curves need
    )
    levels: tuple[float, ...] = ()  # dotted lines for the eye at these heights: chance, a goal, a budget
    places: tuple[float, ...] = ()  # and at these x
    complement: str = ""  # a second reading of the same axis, 1 - y, with this label
    background: Map | None = None
    dots: Dots | None = None
    arrows: Arrows | None = None
    markers: tuple[Marker, ...] = ()


def finite_limit(values: Sequence[Array], share: float = 98.0) -> float:
    """A colour limit that a few extreme points do not spoil: a percentile of the finite sizes."""
    sizes = np.concatenate([np.abs(array[np.isfinite(array)]) for array in values])
    return float(np.percentile(sizes, share)) if sizes.size and sizes.max() > 0 else 1.0


@dataclass(frozen=True, eq=False)
class Sheet:
    """A whole figure: panels side by side (or `columns` to a row), a headline above, the scale stated below."""

    title: str
    panels: tuple[Panel, ...]
    scale: str = ""
    columns: int | None = None

    def curve(self, panel: int, label: str) -> Curve:
        """The curve of that label, for reading numbers back."""
        return next(curve for curve in self.panels[panel].curves if curve.label == label)

    def draw(self) -> Figure:
        """A matplotlib figure, without touching pyplot's global state."""
        from edgewise import present

        return present.draw_sheet(self.title, self.panels, self.scale, self.columns)

    def save(self, path: str | Path) -> Path:
        """Write a .png, .svg or .pdf, whole or not at all."""
        from edgewise import present

        return present.save_figure(self.draw(), present.check_path(path))

    def _repr_png_(self) -> bytes:
        from edgewise import present

        return present.figure_png(self.draw())
