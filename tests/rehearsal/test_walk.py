"""The ladder of rates on functions whose minimum and edge are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from edgewise.rehearsal.ladder import FACTOR, TIE, Rung, between, lowest, next_rung, score, vertex
from edgewise.rehearsal.learning_rate import _Search


def climb(score: Callable[[float], float], edge: float, start: float, most: int = 6) -> dict[float, Rung]:
    steps: dict[float, Rung] = {}
    while (rung := next_rung(steps, most)) is not None:
        rate = start * FACTOR**rung
        steps[rung] = Rung(score(rate), rate > edge)
    return steps


@pytest.mark.parametrize("start", [1e-4, 1e-3, 3e-3, 1e-2])
def test_the_minimum_of_a_parabola_is_met_from_anywhere(start: float) -> None:
    def score(rate: float) -> float:
        return (math.log(rate) - math.log(2e-3)) ** 2

    steps = climb(score, 1e-2, start, most=9)
    rates = [start * FACTOR**k for k in steps]
    assert vertex(rates, [step.score for step in steps.values()]) == pytest.approx(2e-3, rel=1e-9)
    bracket = between(rates, [step.too_large for step in steps.values()], 2e-3)
    assert bracket is not None
    assert bracket[0] <= 1e-2 < bracket[1]
    assert bracket[1] / bracket[0] == pytest.approx(math.sqrt(FACTOR))


def test_the_budget_is_kept_and_a_half_rung_narrows_the_edge() -> None:
    steps = climb(lambda rate: abs(math.log(rate / 1e-3)), 5e-3, 1e-3)
    assert len(steps) <= 6
    assert any(rung != round(rung) for rung in steps)
    assert len(climb(lambda rate: -rate, math.inf, 1.0)) == 6  # would climb without end


def test_rates_that_all_diverge_are_divided_on() -> None:
    steps = climb(lambda rate: math.inf if rate > 1e-3 else (rate - 5e-4) ** 2, 1e-3, 0.1)
    assert min(steps) == -5
    assert vertex([1.0, 2.0], [math.inf, math.inf]) is None


def test_a_minimum_at_an_end_is_that_rate() -> None:
    assert vertex([1.0, 2.0, 4.0], [3.0, 2.0, 1.0]) == 4.0
    assert vertex([1.0, 2.0, 4.0], [1.0, 1.0, 1.0]) == 1.0
    assert between([1.0, 2.0], [False, False], 1.0) is None


def test_the_edge_lies_below_the_first_rate_that_was_too_large() -> None:
    """Rates beyond it may have learned by luck: they do not count."""
    rates, bad = [1.0, 2.0, 4.0, 8.0, 16.0], [False, False, True, False, True]
    assert between(rates, bad, 1.0) == (2.0, 4.0)
    assert between(rates[::-1], bad[::-1], 1.0) == (2.0, 4.0)
    assert between(rates, bad, 8.0) == (8.0, 16.0)
    assert between([4.0, 8.0], [True, True], 2.0) == (2.0, 4.0)


def test_lower_rates_are_tried_before_none_is_said_to_learn() -> None:
    """After one rate on either side the ladder goes down, farther each time; a rate that diverged is not passed."""
    steps: dict[float, Rung] = {}
    while (rung := next_rung(steps, 6)) is not None:
        steps[rung] = Rung(1.0 + abs(rung), False, learned=False)
    assert list(steps) == [0, -1, 1, -3, -6, -10]
    diverged = {0.0: Rung(9.0, True, False), -1.0: Rung(8.0, True, False), -2.0: Rung(7.0, True, False)}
    assert next_rung(diverged, 6) == -4.0
    assert next_rung({0.0: Rung(1.0, False), -1.0: Rung(2.0, False), 1.0: Rung(2.0, True)}, 6) == 0.5


def test_a_tie_goes_to_the_smaller_rate() -> None:
    level = {0.0: Rung(1.0, False), 1.0: Rung(1.0 - 0.9 * TIE, False), 2.0: Rung(3.0, False)}
    assert lowest(level) == 0.0 and lowest({**level, 1.0: Rung(1.0 - 1.1 * TIE, False)}) == 1.0
    assert vertex([1.0, 2.5, 6.25], [1.0, 1.0 - 0.9 * TIE, 3.0]) == 1.0


def test_a_score_is_the_loss_in_units_of_its_noise_and_the_distance_from_what_was_known() -> None:
    assert score(1e-3, 2.0, 0.08, 1e-3) == pytest.approx(25.0)
    assert score(1e-3 * math.e, 0.0, 1.0, 1e-3, width=0.5) == pytest.approx(2.0)


def test_ctrl_c_is_raised_as_itself_where_one_process_trains() -> None:
    class Alarm(Exception): ...

    def check() -> None:
        raise Alarm

    search = SimpleNamespace(plan=SimpleNamespace(group=None), interrupts=SimpleNamespace(check=check))
    with pytest.raises(Alarm):
        _Search._check(search)  # type: ignore[arg-type]


@pytest.mark.parametrize("stopped", [0.0, 1.0])
def test_where_several_train_one_that_is_stopped_stops_all(stopped: float) -> None:
    plan = SimpleNamespace(group="two", over_processes=lambda own: max(own, stopped))
    search = SimpleNamespace(plan=plan, interrupts=SimpleNamespace(check=lambda: None))
    if not stopped:
        return _Search._check(search)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        _Search._check(search)  # type: ignore[arg-type]
