"""The loss of every step: whether it falls, whether it jumped, and the batch that passed between two rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.monitor.capture import LossRing
from edgewise.monitor.causes import Diagnosis
from edgewise.monitor.columns import fast_columns
from edgewise.monitor.series import History, Losses
from tests.monitor.subjects import encoder, train
from tests.support.covering import covering

COLUMNS = fast_columns(2)
NAMES = [column.name for column in COLUMNS]


def seen(logs: list[float]) -> Losses:
    losses = Losses()
    for step, log in enumerate(logs):
        losses.see(step, log)
    return losses


def test_a_loss_falls_by_two_standard_errors_or_does_not() -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(80)
    assert seen(list(noise[:79])).falls() is None
    assert seen(list(noise)).falls() is False
    assert seen(list(noise - 0.003 * np.arange(80))).falls() is True


def test_a_loss_far_above_its_past_is_restless_until_it_is_back() -> None:
    logs = list(0.05 * np.random.default_rng(0).standard_normal(60))
    assert not any(seen(logs[:n]).restless for n in range(60))
    assert seen([*logs, 0.5]).restless and not seen([*logs, 0.5, 0.0]).restless
    assert seen([*logs, math.inf]).restless


def alarms(changes: dict[int, float], gap: int, every: bool = True) -> list[str]:
    """Kinds of alarm of a run of 400 steps with a row every `gap` steps and after a restless loss.

    every: whether the loss of steps without a row is seen.
    """
    history, rng, raised = History(COLUMNS), np.random.default_rng(0), []
    diagnosis = Diagnosis(history)
    for step in range(400):
        loss = 2.0 * changes.get(step, 1.0) * math.exp(0.03 * rng.standard_normal())
        row = np.exp(0.03 * rng.standard_normal(len(NAMES))) * 0.5
        row[NAMES.index("loss")] = loss
        if step % gap == 0 or (every and history.losses.restless):
            history.see(step, row)
            raised += [alarm.kind.value for alarm in diagnosis.see(step, np.zeros((0, 0, 0)))]
        elif every:
            history.losses.see(step, math.log(loss))
    return raised


@pytest.mark.parametrize("gap", [5, 12])
def test_a_bad_batch_between_two_rows_is_named_by_its_loss(gap: int) -> None:
    assert alarms({}, gap) == []
    assert alarms({351: 3.0}, gap) == ["bad_batch"]
    assert alarms(dict.fromkeys(range(351, 400), 3.0), gap) == ["loss_spike"]
    assert alarms({351: 1.15}, gap) == []
    assert alarms({351: 3.0}, gap, every=False) == []


def test_a_loss_that_only_rows_show_is_not_called_that_of_a_step_between_them() -> None:
    """On another device: the row itself has the jump, and no gradient jumped with it."""
    assert alarms({350: 3.0}, 5, every=False) == []


def test_windows_of_rows_far_apart_reach_back_160_steps_but_hold_14_rows() -> None:
    sizes = {}
    for gap in (1, 4, 8, 40):
        history = History(COLUMNS)
        for step in range(0, 60 * gap, gap):
            history.see(step, np.ones(len(NAMES)))
        sizes[gap] = history.rows
    assert sizes == {1: 40, 4: 40, 8: 20, 40: 14}


def test_what_lasts_thirty_steps_is_seen_in_ten_rows_or_in_those_of_sixty_steps() -> None:
    for gap, rows in ((1, 30), (2, 16), (5, 10), (12, 6), (100, 4)):
        history = History(COLUMNS)
        assert history.lasting(30) == 0
        for step in range(0, 60 * gap, gap):
            history.see(step, np.ones(len(NAMES)))
        assert history.lasting(30) == rows


def test_the_loss_of_steps_without_a_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.monitor.budget.TOTAL", 0.0)
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, budget=1e-6, criterion=criterion, quiet=True) as handle:
        losses = train(model, 12, criterion)
    assert handle.budget.samples == 1 and list(handle.history.losses.steps) == list(range(12))
    assert np.exp(handle.history.losses.last(12)) == pytest.approx(losses, rel=1e-5)
    with edgewise.watch(model, budget=1e-6, quiet=True) as reported:
        for number in (3.0, 2.0):
            reported.log(loss=number)
            train(model, 1, criterion)
    assert np.exp(reported.history.losses.last(2)) == pytest.approx([3.0, 2.0])


def test_a_loss_that_is_not_a_number_is_said_though_the_budget_pays_for_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.monitor.budget.TOTAL", 0.0)

    class Ends(nn.CrossEntropyLoss):
        calls = 0

        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(input, target) * (math.nan if self.calls > 20 else 1.0)

    model, criterion = encoder(), Ends()
    with edgewise.watch(model, tmp_path / "run", budget=1e-6, criterion=criterion, quiet=True) as handle:
        train(model, 40, criterion)
    assert [(alarm.kind.value, alarm.step) for alarm in handle.alarms] == [("not_a_number", 20)]
    assert handle.dossiers.paths == []  # the batch of that step is not known


def test_a_handle_says_what_it_does() -> None:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, everything=True, criterion=criterion, quiet=True) as handle:
        train(model, 2, criterion)
        assert repr(handle).startswith(
            "<watch of Sequential, at step 2: sampled 2 of 2 steps, now every step;"
        )
    assert "closed" in repr(handle) and repr(handle).endswith("0 alarms>")


def test_a_run_without_a_loss_is_watched_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    history = History(COLUMNS)
    diagnosis = Diagnosis(history)
    for step in range(60):
        row = np.full(len(NAMES), 0.5)
        row[NAMES.index("loss")] = math.nan
        history.see(step, row)
        assert diagnosis.see(step, np.zeros((0, 0, 0))) == []
    assert history.stalled and len(history.losses) == 0 and not recwarn.list


def test_steps_whose_loss_nobody_reports_do_not_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.monitor.budget.TOTAL", 0.0)
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, budget=1e-6, quiet=True) as handle:
        for number in (3.0, None, None, math.nan):
            if number is not None:
                handle.log(loss=number)
            train(model, 1, criterion)
            assert handle.history.losses.restless == (number is not None and math.isnan(number))


def test_a_batch_that_brings_a_small_rough_loss_back_to_the_first_one_is_named() -> None:
    """A small loss scatters so much that a tenfold one is within eight scatters; what was learned is gone all the same.

    Not where it rises over several steps, and not where it stays small.
    """

    def named(factor: float, steps: int = 1) -> bool:
        history, rng, raised = History(COLUMNS), np.random.default_rng(0), []
        diagnosis = Diagnosis(history)
        for step in range(80):
            row = np.exp(0.03 * rng.standard_normal(len(NAMES)))
            rise = factor ** min(max(0, (step - 78 + steps) / steps), 1)
            row[NAMES.index("loss")] = 4 * math.exp(-step / 20 + rng.normal(0, 0.4)) * rise
            history.see(step, row)
            raised += diagnosis.see(step, np.zeros((0, 0, 0)))
        return "bad_batch" in [alarm.kind.value for alarm in raised if alarm.step >= 70]

    assert [named(150.0), named(150.0, 8), named(4.0)] == [True, False, False]


class Broken(nn.CrossEntropyLoss):
    """A criterion to whose losses a number is added at some steps; their gradients are as before."""

    def __init__(self, at: Iterable[int], value: float = math.nan) -> None:
        super().__init__()
        self.at, self.value, self.calls = set(at), value, -1

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input, target) + (self.value if self.calls in self.at else 0.0)


@pytest.mark.parametrize(
    ("options", "first", "value"),
    covering([{"everything": True}, {"budget": 1e-6}], [0, 1, 7], [math.nan, math.inf], strength=2),
)
def test_a_loss_that_is_not_finite_alarms_at_once(options: dict[str, Any], first: int, value: float) -> None:
    """From the first step on too, and between rows: it was taken for a loss that nobody reported."""
    model, criterion = encoder(), Broken(range(first, 30), value)
    with edgewise.watch(model, criterion=criterion, quiet=True, **options) as handle:
        train(model, 30, criterion)
    assert [(alarm.kind.value, alarm.step) for alarm in handle.alarms][:1] == [("not_a_number", first)]
    assert not any("never reported" in sentence for sentence in handle.unseen)


@pytest.mark.parametrize("options", [{"everything": True}, {"budget": 1e-6}])
def test_a_loss_that_is_reported_as_not_a_number_alarms_at_once(options: dict[str, Any]) -> None:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, quiet=True, **options) as handle:
        for number in (math.nan, 2.0):
            handle.log(loss=number)
            train(model, 1, criterion)
    assert [(alarm.kind.value, alarm.step) for alarm in handle.alarms] == [("not_a_number", 0)]


@pytest.mark.parametrize("at", [11, 33, 39])
def test_on_another_device_every_loss_is_seen_without_waiting(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The branch of a GPU, on the CPU: losses are sent to the host, and read a step later or at the end."""
    monkeypatch.setattr("edgewise.monitor.instrument.HOST", ())
    monkeypatch.setattr("edgewise.monitor.budget.Budget.due", lambda budget, *_: budget.steps == 20)
    model, criterion = encoder(), Broken([at])
    with edgewise.watch(model, criterion=criterion, quiet=True) as handle:
        losses = train(model, 40, criterion)
    assert handle.budget.samples == 2 and handle.error == ""
    alarm = handle.alarms[0]
    assert (alarm.kind.value, alarm.step) == ("not_a_number", at)
    seen = dict(zip(handle.history.losses.steps, np.exp(handle.history.losses.logs), strict=True))
    assert len(seen) == 39  # all but the one that is not a number
    assert seen[5] == pytest.approx(losses[5], rel=1e-5)


def test_the_ring_gives_losses_in_order_and_never_waits() -> None:
    ring = LossRing(torch.device("cpu"), size=4)
    assert ring.arrived() == []
    for step in range(3):
        ring.push(step, torch.tensor(float(step)))
    assert ring.arrived() == [(0, 0.0), (1, 1.0)]  # the last one may still be on its way
    assert ring.arrived(wait=True) == [(2, 2.0)]
    for step in range(9):  # nobody reads: the oldest are given up
        ring.push(step, torch.tensor(float(step)))
    assert [step for step, _ in ring.arrived(wait=True)] == [5, 6, 7, 8]


def test_a_negative_loss_is_a_number_and_is_reported() -> None:
    """Its logarithm is none: it was called not finite, and not reported."""
    model, criterion = encoder(), Broken(range(5, 30), -100.0)
    with edgewise.watch(model, criterion=criterion, everything=True, quiet=True) as handle:
        train(model, 30, criterion)
    assert "not_a_number" not in [alarm.kind.value for alarm in handle.alarms] and handle.unseen == []
