"""The price on a clock that is set by hand: steps and samples that cost what real ones do, the first ones more."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest

import edgewise
from edgewise.monitor.budget import GAPS, MEMORY, START, TOTAL, Budget, Clock
from tests.monitor.subjects import encoder


class Hand(Clock):
    """A clock that shows what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.now = lambda: self.time

    def passes(self, seconds: float) -> None:
        self.time += seconds


def fail(error: Exception) -> None:
    raise error


def trained(
    step: float,
    sample: float,
    slow: float,
    steps: int = 200,
    together: bool = False,
    near: int = -99,
    jump: int = -99,
) -> tuple[Budget, list[int]]:
    """A run as `watch` makes it: first step and first sample `slow` times as long, later samples scatter by a third.

    near, jump: steps at which a detector is close to an alarm, for 40 steps, and at which the loss jumps, for 4.
    """
    clock = Hand()
    budget, following, due, taken = Budget(0.02, clock, together), 0, True, []
    for i in range(steps):
        clock.passes(step * (slow if i == 0 else 1.0))
        if due:
            cost = sample * (slow if i == 0 else (1.0, 1.3, 0.8)[budget.samples % 3])
            clock.run(clock.passes, (cost,), fail)
            gap = budget.proposal()
            budget.sampled(gap)
            following = i + gap
            taken.append(i)
        budget.stepped()
        due = (
            i + 1 >= following if together else budget.due(near in range(i - 40, i), jump in range(i - 4, i))
        )
    return budget, taken


def allowed(budget: Budget) -> float:
    """Seconds that may have been spent: the share, or half of the total and half of the share."""
    return max(0.02 * budget.elapsed, TOTAL / 2 + 0.01 * budget.elapsed)


@pytest.mark.parametrize("slow", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("sample", [0.0001, 0.001, 0.004, 0.1])
@pytest.mark.parametrize("together", [False, True])
def test_the_budget_is_kept_though_the_first_step_says_little_about_the_others(
    sample: float, slow: float, together: bool
) -> None:
    budget, _ = trained(0.004, sample, slow, together=together)
    assert budget.spent <= allowed(budget)


@pytest.mark.parametrize(("step", "sample"), [(0.004, 0.004), (0.002, 0.01), (0.03, 0.015)])
def test_short_runs_of_small_models_have_rows(step: float, sample: float) -> None:
    """All of the first ten steps and 40 of the first 250, though a sample costs as much as a step or five of them."""
    _, taken = trained(step, sample, 2.0, 250)
    assert taken[:10] == list(range(10)) and len(taken) >= 40
    assert sum(step >= 125 for step in taken) >= 5


@pytest.mark.parametrize(("step", "sample"), [(0.03, 0.003), (0.03, 0.03), (0.3, 0.03), (0.3, 0.3)])
def test_two_minutes_cost_less_than_three_seconds(step: float, sample: float) -> None:
    assert trained(step, sample, 2.0, int(120 / step))[0].spent < TOTAL


def test_the_share_holds_in_long_runs() -> None:
    for sample in (0.003, 0.03, 0.1):
        budget, taken = trained(0.1, sample, 2.0, 5000)
        assert budget.price <= 0.02 and len(taken) > 50
        late = [step for step in taken if step > 2500]
        assert len(late) * sample * 1.1 <= 0.02 * 2500 * 0.1 * 1.2


def test_the_budget_is_used() -> None:
    assert trained(0.1, 0.004, 2.0, 5000)[0].price > 0.01
    assert trained(0.1, 0.0001, 2.0)[0].samples >= 199  # every step, where that costs a thousandth


def test_what_was_saved_is_spent_when_it_matters() -> None:
    """Rows at every step where a detector is close, or the loss has jumped, and fewer in between."""
    _, calm = trained(0.3, 0.03, 2.0, 2000)
    budget, near = trained(0.3, 0.03, 2.0, 2000, near=1800)
    assert len(set(near) & set(range(1802, 1814))) == 12 > 3 * len(set(calm) & set(range(1802, 1814)))
    assert budget.price <= 0.02
    budget, jumped = trained(0.3, 0.03, 2.0, 2000, near=1700, jump=1800)
    assert {1802, 1803, 1804} <= set(jumped) and budget.price <= 0.02


def test_several_processes_sample_the_steps_they_agreed_on() -> None:
    budget, taken = trained(0.004, 0.002, 4.0, together=True)
    assert set(np.diff(taken)) <= set(GAPS) and budget.spent <= allowed(budget)


def test_a_full_garbage_collection_is_not_the_price_of_watching() -> None:
    clock = Hand()

    def work(generation: int) -> None:
        clock.passes(1.0)
        clock.collection("start", {"generation": generation})
        clock.passes(50.0)
        clock.collection("stop", {"generation": generation})

    clock.run(work, (2,), fail)
    assert clock.spent == 1.0
    clock.run(work, (0,), fail)
    assert clock.spent == 52.0
    clock.collection("start", {"generation": 2})  # outside it is not ours
    clock.passes(50.0)
    clock.collection("stop", {"generation": 2})
    assert clock.total == 52.0


def test_the_collector_is_left_as_it_was() -> None:
    before = list(gc.callbacks)
    handle = edgewise.watch(encoder(), quiet=True)
    assert len(gc.callbacks) == len(before) + 1
    handle.close()
    assert gc.callbacks == before


def test_a_sample_that_is_overdue_is_not_said_to_be_taken_at_every_step() -> None:
    for share, words in ((0.02, "sampled 1 of 320 steps, now one step in 320;"), (None, "now every step;")):
        budget = Budget(share, Clock())
        budget.sampled(1)
        for _ in range(320):
            budget.stepped()
        assert words in budget.sentence()


def test_counting_anew_does_not_make_the_next_sample_a_first_one() -> None:
    """The first sample ever counts a fourth, because it is dearer than others; one after `restart` counts whole."""
    clock = Clock()
    budget = Budget(0.02, clock)
    for spent, expected in ((0.08, 0.02), (0.10, 0.02), (0.12, 0.02)):
        clock.spent = spent
        budget.sampled(1)
        assert budget.sample_seconds == pytest.approx(expected)
        if spent == 0.10:
            budget.restart()


def test_the_price_of_a_sample_is_a_running_mean() -> None:
    """The first counts a fourth, because it is dearer than all others; the second stands for itself; later ones count
    with their share, and the dearest fades."""
    budget = SimpleNamespace(
        clock=SimpleNamespace(total=0.0),
        _at_sample=0.0,
        samples=0,
        sample_seconds=0.0,
        _dear=0.0,
        _dearest=0.0,
        gap=1,
    )
    for total, mean in ((9.0, 2.25), (11.0, 2.0), (15.0, (1 - MEMORY) * 2.0 + MEMORY * 4.0)):
        budget.clock.total = total
        Budget.sampled(budget, 5)  # type: ignore[arg-type]
        assert budget.sample_seconds == pytest.approx(mean) and budget.gap == 5
    assert budget._dear == pytest.approx(4.0) and budget.samples == 3


def test_a_sample_that_cannot_be_paid_for_is_waited_for_and_not_raised() -> None:
    """200 to the power of 1,000 was: the monitor died of it in short runs, and "no alarm" was said."""
    for age in (START, 50, 199):
        budget = Budget(0.02, Hand())
        budget._age, budget.sample_seconds = age, 1.0
        assert budget._wait(left=0.0, pay=0.02) > 1000 - age
