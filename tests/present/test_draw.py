"""What is on the paper can be read: every role is visible, names and notes have room, short axes have plain numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edgewise.nouns.card import Curve, Panel
from edgewise.nouns.verdict import Exponent
from edgewise.present.draw import PANEL_HEIGHT, ROLES, _plain_if_short, draw_sheet
from edgewise.present.figures import _second_half

X = np.array([0.0, 1.0, 2.0])


@pytest.fixture(scope="module")
def roles() -> Figure:
    """Every role in a panel with names below and numbers of less than two decades."""
    curves = tuple(Curve(role, X, 2.0 + X + k, k, role) for k, role in enumerate(ROLES))
    names = Panel("", "", "", curves, "one line", legend=False, x_names=("a", "b", "c"), log_y=True)
    return draw_sheet("title", (names,))


def test_every_role_leaves_ink(roles: Figure) -> None:
    shown = {bars.get_label().lstrip("_"): bars.lines[0] for bars in roles.axes[0].containers}
    assert set(shown) == set(ROLES)
    for line in shown.values():
        assert 0.15 < (line.get_alpha() or 1.0) <= 1
        assert line.get_linestyle() != "None" or (line.get_marker() != "None" and line.get_markersize() > 2)


def test_names_stand_within_the_axis_with_room_on_both_sides(roles: Figure) -> None:
    low, high = roles.axes[0].get_xlim()
    assert low == pytest.approx(-0.6) and high == pytest.approx(2.6)


def test_a_short_logarithmic_axis_has_plain_numbers_and_a_long_one_powers() -> None:
    for decades, plain in ((1.5, True), (1.7, False)):
        axes: Axes = Figure().subplots()
        axes.set_yscale("log")
        axes.set_ylim(1.0, 10**decades)
        _plain_if_short(axes.yaxis, 0.0, decades)
        assert ("2" in [axes.yaxis.get_major_formatter()(t) for t in axes.get_yticks()]) is plain


def test_each_line_of_a_note_makes_the_figure_taller_and_the_panel_keeps_its_height(roles: Figure) -> None:
    """A fifth of an inch a line; what is written below the axes stays on the paper."""
    panel = Panel("", "x", "", (Curve("", X, X),), "one\ntwo\nthree\nfour", legend=False)
    noted = draw_sheet("title", (panel,))
    assert noted.get_figheight() - roles.get_figheight() == pytest.approx(0.6)
    assert noted.axes[0].xaxis.label.get_window_extent().y0 >= 0
    assert noted.axes[0].get_position().height * noted.get_figheight() > 0.7 * PANEL_HEIGHT


def test_a_scale_wider_than_the_figure_is_broken_into_lines() -> None:
    panel = Panel("", "x", "", (Curve("", X, X),), legend=False)
    long = draw_sheet("title", (panel,), "what was measured " * 8 + "\nand what was not")
    foot = long._supxlabel  # type: ignore[attr-defined]
    assert foot.get_window_extent().x0 >= 0 and foot.get_window_extent().y0 >= 0
    first, *others, last = foot.get_text().split("\n")
    assert last == "and what was not" and " ".join((first, *others)) == ("what was measured " * 8).strip()
    assert min(map(len, others)) > 0.7 * len(first)


def test_the_line_of_the_second_half_ends_at_the_last_value() -> None:
    """change / depth per block, whatever happened on the way; none where the end is not a number."""
    half = Exponent(0.0, 0.0, change=4.0)
    y = np.array([1.0, math.inf, 1.0, 2.0, 3.0])
    (line,) = _second_half("a", y, half, 0)
    assert line.x.tolist() == [2.0, 4.0] and line.y == pytest.approx([3 * math.exp(-2.0), 3.0])
    (back,) = _second_half("a", y, half, 0, towards_input=True)
    assert back.y == pytest.approx([3 * math.exp(2.0), 3.0])
    assert _second_half("a", y[::-1] * np.array([math.nan] * 5), half, 0) == []
    assert _second_half("a", y, Exponent(0.0, 0.0, change=math.inf), 0) == []
    assert _second_half("a", y[:2], half, 0) == []


@pytest.mark.parametrize(
    "legend, names", [(True, ()), (False, ()), (True, ("a", "b", "c")), (False, ("a", "b", "c"))]
)
def test_a_panel_has_a_legend_of_its_own_where_it_asks_for_one_and_its_rows_have_no_names(
    legend: bool, names: tuple[str, ...]
) -> None:
    curves = (Curve("one", X, X), Curve("other", X, X + 1, 1))
    figure = draw_sheet("", (Panel("", "x", "y", curves, legend=legend, y_names=names),))
    assert (figure.axes[0].get_legend() is not None) == (legend and not names)
