"""Alarms where few steps are sampled, and what the loss of every step adds to the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgewise.monitor.detectors import evidence, steps_grew
from edgewise.monitor.series import History
from tests.monitor.driven import COLUMNS, DEPTH, NAMES, kinds, ramp, run
from tests.monitor.test_losses import seen

STANDS = {"loss": lambda step: math.exp(step / 200)}  # cancels the fall


def rises(start: int, factor: float):  # type: ignore[no-untyped-def]
    """A loss that falls to a tenth by then, and grows to `factor` times that within 30 steps."""
    return lambda step: (
        0.1 * factor ** min(max(step - start, 0) / 30, 1) if step > 60 else math.exp(step * -0.038)
    )


def test_a_loss_has_risen_by_a_part_of_the_first_one_and_more_than_it_scatters() -> None:
    rng = np.random.default_rng(0)
    logs = list(np.log(0.1) + 0.5 * rng.standard_normal(100))
    high = list(np.log(0.5) + 0.5 * rng.standard_normal(20))
    start = [math.log(2.0)]
    assert seen(start + logs).risen() == 0 and seen(start + logs + high[:3]).risen() == 0
    assert seen(start + logs + high).risen() == pytest.approx(0.2, abs=0.08)
    assert seen([math.log(20.0)] + logs + high).risen() == 0  # little, against where it began
    assert seen(start + logs + [math.log(30.0)]).risen() == 0  # one batch
    assert seen(start + logs + [math.inf] * 20).risen() > 1
    assert seen(start + logs[:10] + high).risen() == 0  # no past yet


def test_a_loss_is_harmed_if_it_rose_or_is_that_of_knowing_nothing() -> None:
    fell = seen([math.log(2.0)] * 20 + [math.log(0.5)] * 80)
    assert not fell.harmed
    assert seen([math.log(2.0)] * 20 + [math.log(0.5)] * 80 + [math.log(1.5)] * 20).harmed
    assert seen([math.log(2.0)] * 60).harmed
    fell.chance = 0.5
    assert fell.harmed
    fell.open = True  # it may be below zero, or is one side of a game
    assert not fell.harmed


@pytest.mark.parametrize("gap", [1, 8])
def test_a_loss_that_rises_within_its_scatter_is_put_down_to_what_moved(gap: int) -> None:
    risen = {"loss": rises(220, 15.0)}
    assert run(risen, 210, noise=0.25, gap=gap) == []
    assert kinds(run(risen, 280, noise=0.25, gap=gap))[:1] == ["loss_spike"]
    steps = run(risen | {"update_ratio": ramp(205, 15)}, 280, noise=0.25, gap=gap)
    assert kinds(steps)[:1] == ["update_too_large"] and "above its lowest by" in steps[0].what
    logits = run(
        risen | {"block.1.entropy": lambda step: 0.05 if step > 9 else 1.0}, 280, noise=0.25, gap=gap
    )
    assert kinds(logits)[:1] == ["logit_growth"] and logits[0].place == "block.1"


@pytest.mark.parametrize("gap", [1, 6, 40])
def test_attention_that_closed_before_there_were_rows_is_named_once_the_loss_stands(gap: int) -> None:
    closed = {f"block.{i}.entropy": lambda step: max(math.exp(-step), 0.03) for i in range(DEPTH)}
    closed |= {f"block.{i}.largest_logit": lambda step: min(math.exp(step), 50.0) for i in range(DEPTH)}
    alarms = run(STANDS | closed, 200, gap=gap)
    assert kinds(alarms) == ["logit_growth"] and "at the start" in alarms[0].what
    assert alarms[0].step <= max(90, 4 * gap)
    assert run({"loss": lambda step: math.exp(-step / 50)} | closed, 200, gap=gap) == []
    half = {name: (lambda step, factor=factor: max(factor(step), 0.2)) for name, factor in closed.items()}
    assert run(STANDS | {n: f for n, f in half.items() if "entropy" in n}, 200, gap=gap) == []


def test_what_is_not_chance_goes_over_from_dense_rows_to_rare_ones() -> None:
    needed = []
    for gap in (1, 2, 4, 8, 12, 30):
        history = History(COLUMNS)
        for step in range(0, 14 * gap, gap):
            history.see(step, np.ones(len(NAMES)))
        needed.append(history.threshold)
    assert needed[0] == needed[1] and needed[-1] == needed[-2] and needed == sorted(needed, reverse=True)
    assert len(set(needed)) == 4


def test_a_stream_may_drift_further_where_the_window_is_longer() -> None:
    """1.7 times within 160 steps is what healthy runs do; with every step sampled 1.5 times within 40 is too much."""
    slow = {f"block.{i}.norm": ramp(0, 300) for i in range(DEPTH)}
    assert run(STANDS | slow, 400, gap=8) == []
    fast = {f"block.{i}.norm": ramp(0, 120) for i in range(DEPTH)}
    assert kinds(run(STANDS | fast, 400, gap=8)) == ["update_too_large"]


def test_a_head_that_dies_after_six_rows_is_named() -> None:
    dead = {"block.2.head_share_min": lambda step: 1e-4 if step >= 84 else 1.0}
    alarms = run(dead, 100, gap=12)
    assert kinds(alarms) == ["dead_head"] and alarms[0].step == 84
    assert run({"block.2.head_share_min": lambda step: 1e-4 if step >= 48 else 1.0}, 60, gap=12) == []


def test_a_start_that_is_thrown_off_needs_five_losses_and_two_rows() -> None:
    grown = {f"block.{i}.norm": lambda step: math.exp(min(2 * step, 15)) for i in range(DEPTH)}
    alarms = run({"loss": lambda step: 1.2**step} | grown, 20, gap=6)
    assert kinds(alarms) == ["update_too_large"] and alarms[0].step == 6


def test_a_kink_is_a_step_without_a_trend() -> None:
    history = History(COLUMNS)
    rng = np.random.default_rng(0)
    for step in range(0, 160, 8):
        row = np.exp(0.1 * rng.standard_normal(len(NAMES)))
        row[NAMES.index("update_ratio")] *= 6.0 if step >= 136 else 1.0
        history.see(step, row)
        if step == 16:
            assert not evidence(history).any()  # too few rows
    assert steps_grew(history) and float((evidence(history) > 1).sum()) == 1
