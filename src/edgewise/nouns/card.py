"""What is said about one result, written once: the words and numbers that every renderer shows.

A panel is one pair of axes as plain numbers: curves, maps, arrows and markers. Shapes: m points on a curve; a map is
(ny, nx) over x (nx) and y (ny); arrows are (my, mx).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from edgewise.arrays import Array
from edgewise.files import Document
from edgewise.nouns.verdict import Outcome


@dataclass(frozen=True, eq=False)
class Curve:
    """A line or points (x, y), each (m,). The group chooses its color, the role how it is drawn.

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
    limit: float = 1.0  # colors run from -limit to limit
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Dots:
    """Measured numbers at the points (x, y) of a map, in the map's own colors: if they agree they vanish in it."""

    label: str
    x: Array
    y: Array
    values: Array


@dataclass(frozen=True, eq=False)
class Arrows:
    """A field of directions (u, v) in axis units at the points x (mx), y (my); color is the speed."""

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
    y_range: tuple[float, float] | None = None  # the same for compared panels; else what the curves need
    levels: tuple[float, ...] = ()  # dotted lines for the eye at these heights: chance, a goal, a budget
    places: tuple[float, ...] = ()  # and at these x
    complement: str = ""  # a second reading of the same axis, 1 - y, with this label
    background: Map | None = None
    dots: Dots | None = None
    arrows: Arrows | None = None
    markers: tuple[Marker, ...] = ()


class Line(NamedTuple):
    """One line; the first `length` characters (all, if None) have the style: an outcome, `dim`, `bold` or none."""

    text: str
    style: str = ""
    length: int | None = None


@dataclass(frozen=True)
class CardTable:
    """Rows of text below a header. The kind says how they are laid out: fixes, numbers, rates, plan or knobs."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    kind: str = ""
    outcomes: tuple[Outcome, ...] = ()  # what each row leads to, for its color and shape

    def json(self) -> Document:
        return {"header": list(self.header), "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True, eq=False)
class Card:
    """A result as it is shown: in the shell, in a notebook, in a report, as JSON and as a figure.

    >>> Card("gpt2 · 12 blocks", "trains", Outcome.TRAINS, sentences=("Tokens stay distinct.",)).json()["answer"]
    'trains'
    """

    title: str  # what the result is about
    answer: str  # in a few words
    outcome: Outcome = Outcome.UNDECIDED  # its color and shape
    reasons: tuple[str, ...] = ()  # beside the answer
    source: str = ""  # theory or measured, and how long it took
    warnings: tuple[str, ...] = ()  # before all other sentences: errors, and what could not be observed
    sentences: tuple[str, ...] = ()
    advice: str = ""  # what to do
    tables: tuple[CardTable, ...] = ()
    figures: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()  # what the numbers do not vouch for, and what they cost

    def __repr__(self) -> str:
        return f"<Card {self.title[:120]}: {self.answer[:120]}, {len(self.sentences)} sentences>"

    def json(self) -> Document:
        """Return the card as plain values, its figures left out."""
        names = ("title", "answer", "source", "advice")
        lists = ("reasons", "warnings", "sentences", "notes")
        return {
            **{name: getattr(self, name) for name in names},
            "outcome": self.outcome.value,
            **{name: list(getattr(self, name)) for name in lists},
            "tables": [table.json() for table in self.tables],
        }
