"""The limits and numbers of the monitor, from both sides, against closed forms and scipy."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from edgewise.monitor.alarm import Alarm, AlarmKind, Moved
from edgewise.monitor.budget import Clock
from edgewise.monitor.columns import HEAD_STATISTICS, StatisticLayout, fast_columns, names, slow_columns
from edgewise.monitor.detectors import attention_one_hot, gradient_gone, near, separation_gone
from edgewise.monitor.facts import (
    Aftermath,
    BackwardFacts,
    GradientProbe,
    RateSeries,
    RowFacts,
    StepFacts,
    audited,
)
from edgewise.monitor.hooks import Switch, unscaled
from edgewise.monitor.run_events import BatchProfiles, RunEvents
from edgewise.monitor.series import WINDOW, History, Losses, _thresholds, log_trend
from tests.monitor.driven import COLUMNS, NAMES, level, ramp, run


# --- series ----------------------------------------------------------------------------------------------------------
def test_a_trend_is_that_of_scipy_with_the_error_of_neighbors_alike() -> None:
    """Least squares against scipy; residuals +1, +1, -1, -1, ... have a correlation that widens the error."""
    steps = np.array([0.0, 1, 3, 4, 7, 9, 10, 14])
    logs = 0.3 * steps + np.array([0.5, -0.4, 0.1, 0.3, -0.6, 0.2, 0.4, -0.5])
    found = stats.linregress(steps, logs)
    slope, t = log_trend(steps, logs[:, None])
    rest = logs - found.intercept - found.slope * steps
    memory = min(max(float(rest[1:] @ rest[:-1] / (rest @ rest)), 0.0), 0.95)
    assert memory == 0.0
    assert (slope[0], t[0]) == pytest.approx((found.slope, found.slope / found.stderr))
    rough = 0.3 * steps + np.repeat([1.0, -1.0, 1.0, -1.0], 2)
    found = stats.linregress(steps, rough)
    rest = rough - found.intercept - found.slope * steps
    memory = float(rest[1:] @ rest[:-1] / (rest @ rest))
    assert 0 < memory < 0.95
    _, t = log_trend(steps, rough[:, None])
    assert t[0] == pytest.approx(found.slope / found.stderr / math.sqrt((1 + memory) / (1 - memory)))
    slope, t = log_trend(steps, np.stack([logs, np.where(steps == 3, np.nan, logs)], 1))
    assert np.isfinite([slope[0], t[0]]).all() and np.isnan([slope[1], t[1]]).all()


@pytest.mark.parametrize(
    ("series", "rows", "apart", "chance"),
    [(30, 40, 1, 1e-8), (30, 20, 2, 1e-8), (7, 14, 4, 16e-8), (7, 14, 6, 81e-8), (7, 14, 100, 1e-5)],
)
def test_the_t_value_of_an_alarm_is_a_quantile_of_students_for_all_series(
    series: int, rows: int, apart: int, chance: float
) -> None:
    assert _thresholds(series, WINDOW, apart)[rows] == pytest.approx(
        stats.t.isf(chance / series / 2, rows - 2)
    )
    assert _thresholds(series, WINDOW, apart)[2] == math.inf


def heard(losses: Sequence[float]) -> Losses:
    known = Losses()
    for step, loss in enumerate(losses):
        known.see(step, math.log(loss))
    return known


def test_numbers_of_losses_are_those_of_the_list() -> None:
    values = [4.0 - 0.02 * k for k in range(60)] + [3.0] * 40
    known = heard(values)
    assert known.level() == pytest.approx(3.0)
    assert known.scale == pytest.approx(4.0) and math.exp(known.first) == pytest.approx(4.0)
    known.chance = 2.5
    assert known.scale == 2.5
    assert list(known.steps) == list(range(20, 100))
    assert known.since(7) == 7
    assert heard(values[:19]).level() == math.inf
    assert known.before_rise() == pytest.approx(float(np.median(values[20:94])))
    # the lowest mean of twenty losses that end at a multiple of twenty is that of steps 40 to 59
    low = float(np.mean(values[40:60]))
    assert heard(values).risen() == 0.0  # less than 0.15 of the first loss
    assert heard(values[:60] + [3.7] * 20).risen() == pytest.approx((3.7 - low) / 4.0)
    assert heard([4.0] * 20 + [2.0] * 20 + [2.61] * 20).risen() == pytest.approx(0.61 / 4)
    assert heard([4.0] * 20 + [2.0] * 20 + [2.59] * 20).risen() == 0.0
    noisy = [2.0, 4.0] * 20 + [3.0, 5.0] * 10  # a rise of 1 with errors of sqrt(2 / 20) = 0.316: three
    assert heard(noisy).risen() == 0.0
    assert heard([2.0 - 0.01 * k for k in range(50)]).broke_at() == -1
    assert heard([2.0] * 50 + [3.0] * 20).broke_at() == 50
    assert heard([2.0] * 20 + [3.0] * 19).broke_at() == -1  # 39 losses
    known = Losses()
    known.see(3, 0.0)
    known.see(3, 5.0)  # a step counts once
    known.see(4, math.nan)
    assert list(known.logs) == [0.0]


@pytest.mark.parametrize(
    ("last", "open_", "harmed"), [(1.59, False, False), (1.61, False, True), (1.61, True, False)]
)
def test_a_loss_harms_that_has_not_come_below_four_fifths_of_the_first(
    last: float, open_: bool, harmed: bool
) -> None:
    known = heard([2.0] * 20 + [last] * 60)
    known.open = open_
    assert known.harmed is harmed
    assert known.flat(0.79) and not known.flat(0.81)


@pytest.mark.parametrize(("jump", "restless"), [(0.099, False), (0.101, True)])
def test_a_loss_is_restless_from_a_tenth_of_a_nat_where_nothing_scatters(jump: float, restless: bool) -> None:
    known = heard([1.0] * 20 + [math.exp(jump)])
    assert known.restless is restless
    assert known.rise == pytest.approx(jump / 0.02)
    assert not heard([1.0] * 9 + [2.0]).restless


# --- what is a state and needs no past -------------------------------------------------------------------------------
def told(rates: Sequence[Sequence[float]], losses: Sequence[float | None] = ()) -> list[tuple[int, str]]:
    facts = StepFacts()
    return [
        (step, detection.topic or detection.kind.value)
        for step, rate in enumerate(rates)
        for detection in facts.see(rate, losses[step] if losses else None)
    ]


def test_rates_at_their_limits() -> None:
    assert told([[0.0]] * 9) == []
    assert told([[0.0]] * 12) == [(9, "rate zero")]
    assert told([[0.1]] * 2 + [[0.1, -1e-9]] * 3) == [(2, "rate negative")]
    assert told([[1.0]] * 60 + [[1.01e-3]] * 60) == []
    assert told([[1.0]] * 60 + [[0.99e-3]] * 29) == []
    assert told([[1.0]] * 60 + [[0.99e-3]] * 30)[0] == (89, "not_learning")
    assert told([[1.0]] * 100 + [[0.99e-3]] * 33) == []  # not yet a quarter of the run
    assert told([[1.0]] * 100 + [[0.99e-3]] * 34)[0] == (133, "not_learning")
    down = [[0.5 + 0.5 * math.cos(math.pi * k / 100)] for k in range(200)]
    back = told(down)
    assert {kind for _, kind in back} == {"schedule returns"}
    assert 100 < back[0][0] < 100 * (1 + math.acos(0.5) / math.pi) + 2  # at a quarter of the largest
    assert told([*down[:101], *[[1.0]] * 50]) == []  # a restart at once is meant


def test_what_a_series_of_rates_says() -> None:
    series = RateSeries()
    for k in range(120):
        series.see((k + 1) / 100)
    assert series.warming and series.most == series.now == 1.2
    assert series.beyond == pytest.approx(1.2 / 1.01)  # the twentieth largest
    assert series.raised(20) == pytest.approx(1.2 / 1.06)  # the sixth of the first ten of the last twenty
    series.see(1.2)
    assert not series.warming
    series.see(math.nan)
    assert series.steps == 121


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([1.5] * 19, []),
        ([1.5] * 20, [(19, "loss_constant")]),
        ([2.0] * 5 + [0.21] + [0.0] * 20, [(25, "loss_constant")]),
        ([2.0] * 5 + [0.19] + [0.0] * 25, []),  # it had fallen below a tenth: it is learned
        ([0.0] * 30, [(19, "loss_constant")]),
    ],
)
def test_losses_that_are_one_number(losses: list[float], expected: list[tuple[int, str]]) -> None:
    found = told([[0.1]] * len(losses), losses)
    assert found[:1] == expected


def test_a_cross_entropy_below_zero_is_said_once() -> None:
    facts = StepFacts(cross_entropy=True)
    assert [list(facts.see([0.1], loss)) for loss in (0.5, -0.9e-6)] == [[], []]
    assert [d.kind for d in facts.see([0.1], -1.1e-6)] == [AlarmKind.LOSS_IMPOSSIBLE]
    assert not list(facts.see([0.1], -1.0))
    assert [k for k in range(40) if audited(k)] == [1, 3, 6, 9, 19, 29, 39]


def test_steps_uphill_and_updates_that_are_lost_need_as_many_rows() -> None:
    single, half = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    facts = RowFacts()
    assert [len(list(facts.see(0.51, math.nan, [half]))) for _ in range(3)] == [0, 0, 1]
    assert [len(list(facts.see(0.49, math.nan, [half]))) for _ in range(4)] == [0, 0, 0, 0]
    facts = RowFacts()
    (found,) = [d for _ in range(3) for d in facts.see(0.51, math.nan, [single])]
    assert "even in single precision" in found.cause and found.advice
    assert not [d for _ in range(5) for d in facts.see(0.9, math.nan, [])]
    facts = RowFacts()
    assert [len(list(facts.see(math.nan, 0.31, []))) for _ in range(6)] == [0] * 5 + [1]
    assert not [d for _ in range(8) for d in facts.see(math.nan, 0.29, [])]


def test_what_backward_begins_at_against_the_loss() -> None:
    facts = BackwardFacts()
    for loss in (2.0, 3.0, 5.0):
        facts.begins()
        facts.see(0.25 * loss, loss)
        facts.stepped()
    assert facts.factor == pytest.approx(0.25) and facts.faithful and facts.undivided == 1
    assert facts.detection() is None
    facts = BackwardFacts()
    for loss in (2.0, 3.0, 5.0):
        facts.see(-loss, loss)
    found = facts.detection()
    assert found is not None and "-1 times" in found.sentence
    facts = BackwardFacts()
    for loss in (2.0, 3.0, 5.0):
        for _ in range(4):
            facts.begins()
        facts.see(loss, loss)
        facts.stepped()
    assert facts.undivided == 4
    facts.see(6.0, 5.0)  # 1.2 times the loss, more than a tenth away from once
    assert not facts.faithful and facts.factor == 1.0
    facts = BackwardFacts()
    for loss, term in ((2.0, 10.0), (3.0, 20.0), (5.0, 40.0)):
        facts.see(loss + 0.01 * term, loss, {"norm": term})
    assert facts.extra[0] == "norm" and facts.extra[1] == pytest.approx(0.01)
    facts = BackwardFacts()
    facts.see(math.inf, 1.0)
    assert facts.broken == math.inf


@pytest.mark.parametrize(("passes", "said"), [(1, 40), (2, 40), (3, 60), (0, 600)])
def test_backward_passes_without_a_step_are_counted(passes: int, said: int) -> None:
    """Forty, or twenty times as many as there were to a step; six hundred where no step was ever made."""
    facts = BackwardFacts()
    for _ in range(3):
        assert not any(facts.begins() for _ in range(passes))
        facts.stepped()
    found = [k for k in range(1, 700) if facts.begins() is not None]
    assert found == [said]


def switched() -> Switch:
    return Switch(Clock(), lambda error: None)


FRESH, OTHER = torch.tensor([3.0, 4.0]), torch.tensor([4.0, -3.0])  # at a right angle, each of length five


@pytest.mark.parametrize(
    ("used", "left", "state"),
    [
        (FRESH, None, "fresh"),
        (0.1 * FRESH, OTHER, "fresh"),
        (FRESH + OTHER, OTHER, "adds up"),
        (OTHER, OTHER, "old"),
        (OTHER, None, "changed"),
        (0.51 * FRESH + 0.8602 * OTHER, None, "unknown"),  # a cosine of 0.51
        (0.49 * FRESH + 0.8717 * OTHER, None, "changed"),
        (None, None, "cleared"),
        (torch.zeros(2), OTHER, "cleared"),
        (FRESH + 0.013 * OTHER, None, "fresh"),  # a cosine of 1 - 8.4e-5
        (FRESH + 0.016 * OTHER, None, "unknown"),  # 1 - 1.3e-4
    ],
)
def test_the_gradient_that_a_step_uses_against_the_one_that_arrived(
    used: Tensor | None, left: Tensor | None, state: str
) -> None:
    probe = GradientProbe(nn.Linear(8, 8), switched(), ())
    assert probe._state(used, FRESH, left) == state
    if state not in ("cleared", "none"):
        assert used is not None and probe.scale == pytest.approx(float(used.norm()) / 5)
    assert probe._state(FRESH, None, None) == "none"
    assert probe._state(FRESH, torch.tensor([math.nan, 1.0]), None) == "unknown"


@pytest.mark.parametrize(
    ("changes", "topic"),
    [
        (-0.51, None),  # half of the step is taken back six times: more than a half
        (-0.49, ""),
        (0.51, ""),  # in its own direction
    ],
)
def test_what_becomes_of_a_step_until_the_next(changes: float, topic: str | None) -> None:
    """Steps of +1 at all entries, of which a part is taken back before the next one begins."""
    model = nn.Linear(4, 4, bias=False)
    nn.init.constant_(model.weight, 100.0)
    follow, found = Aftermath(model), []
    for _ in range(6):
        follow.begin()
        model.weight.data += 1.0
        follow.end()
        model.weight.data += changes
        found.append(follow.next())
    if topic is None:
        assert found[:5] == [None] * 5 and found[5] is not None
        assert found[5].topic == "undone" and "51% of what a step does" in found[5].sentence
    else:
        assert found == [None] * 6


@pytest.mark.parametrize(("factor", "named"), [(1.04, "grow"), (1.02, ""), (0.96, "shrink")])
def test_weights_that_are_multiplied_between_steps(factor: float, named: str) -> None:
    """Weights of 100 and steps of one: 4 % are four times a step, 2 % are two; the limit is three."""
    model = nn.Linear(4, 4, bias=False)
    follow, found = Aftermath(model), None
    for _ in range(6):
        nn.init.constant_(model.weight, 99.0)
        follow.begin()
        model.weight.data += torch.tensor([1.0, -1.0, 1.0, -1.0])
        follow.end()
        model.weight.data *= factor
        found = follow.next()
    assert bool(found) == bool(named)
    if found:
        assert f"weights {named} by 4.00% of themselves" in found.sentence


# --- alarms at their limits ------------------------------------------------------------------------------------------
def states(changes: dict[str, float], rows: int = 6) -> History:
    """Rows that are all alike."""
    history = History(COLUMNS)
    for step in range(rows):
        row = np.array([changes.get(name, level(name)) for name in NAMES])
        history.see(step, row)
    return history


@pytest.mark.parametrize(
    ("fact", "changes", "place"),
    [
        (separation_gone, {"block.2.separation": 1.1e-6}, None),
        (separation_gone, {"block.2.separation": 0.9e-6}, "block.2"),
        (separation_gone, {"block.1.separation": 1e-7, "block.2.separation": 0.9e-6}, "block.1"),
        (separation_gone, {"block.1.separation": 1e-7}, None),
        (gradient_gone, {"embed.gradient_growth": -27.9}, None),
        (gradient_gone, {"embed.gradient_growth": -28.1}, "embed"),
        (attention_one_hot, {f"block.{i}.saturated": 0.51 for i in range(3)}, "block.0"),
        (attention_one_hot, {f"block.{i}.saturated": 0.49 for i in range(3)}, None),
        (attention_one_hot, {f"block.{i}.saturated": 0.51 for i in range(2)}, None),  # two of three blocks
    ],
)
def test_states_of_stream_and_attention(fact: Any, changes: dict[str, float], place: str | None) -> None:
    history = states(changes)
    found = fact(history)
    assert (found and history.places[found.series]) == place
    assert fact(states(changes, 2)) is None
    if fact is gradient_gone and place:
        assert "8e-07 of that at the last block" in found.sentence  # e^-14.05
    if fact is attention_one_hot and place:
        assert "In 100% of the blocks" in found.sentence and "largest logit is 6." in found.sentence
        assert "from the start" in found.cause


def first(kind: str, alarms: list[Alarm]) -> Alarm | None:
    return next((alarm for alarm in alarms if alarm.kind.value == kind), None)


STALLS = {"loss": lambda step: math.exp(step / 200)}


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        # a tenth at the last block, which then lasts
        ("rank_collapse", {f"block.{i}.separation": lambda s: 0.11 if s > 3 else 1.0 for i in range(3)}, False),
        ("rank_collapse", {f"block.{i}.separation": lambda s: 0.09 if s > 3 else 1.0 for i in range(3)}, True),
        # the logits five times larger, and the entropy a tenth
        ("logit_growth", {"block.1.largest_logit": lambda s: 5.0 if s > 3 else 1.0,
                          "block.1.entropy": lambda s: 0.09 if s > 3 else 1.0}, True),
        ("logit_growth", {"block.1.largest_logit": lambda s: 3.5 if s > 3 else 1.0,
                          "block.1.entropy": lambda s: 0.09 if s > 3 else 1.0}, False),
        ("logit_growth", {"block.1.largest_logit": lambda s: 5.0 if s > 3 else 1.0,
                          "block.1.entropy": lambda s: 0.12 if s > 3 else 1.0}, False),
        # the stream by 1.5 within the window of 40 rows: an e-fold in 95 steps is 1.51, in 110 1.43
        ("update_too_large", {f"block.{i}.norm": ramp(0, 80) for i in range(3)}, True),
        ("update_too_large", {f"block.{i}.norm": ramp(0, 120) for i in range(3)}, False),
        ("exploding_gradient", {"block.1.gradient": ramp(60, 15)}, True),
        ("exploding_gradient", {"block.1.gradient": ramp(60, 19)}, False),  # e^(39 / 19) = 7.8
        ("overflow_ahead", {"block.2.headroom": lambda s: 1.2 - s * 0.0089}, True),
        ("overflow_ahead", {"block.2.headroom": lambda s: 3.0 - s * 0.0089}, False),  # 177 steps are left
    ],
)  # fmt: skip
def test_alarms_at_their_limits(kind: str, changes: dict[str, Any], named: bool) -> None:
    assert (first(kind, run(STALLS | changes, steps=150, noise=0.003)) is not None) is named


def test_numbers_in_sentences_are_those_of_the_series() -> None:
    alarm = first("logit_growth", run(STALLS | {"block.1.largest_logit": ramp(0, 40)}, noise=1e-4))
    assert alarm is not None and "grows by 2.53% a step" in alarm.what  # e^(1/40) - 1
    assert "doubles every 28 steps" in alarm.what  # 40 log 2
    alarm = first("overflow_ahead", run({"block.2.headroom": lambda s: 1 - s / 100}, noise=1e-5))
    assert alarm is not None
    bits = float(alarm.what.split()[0])
    assert alarm.what.endswith(f"at this rate {bits:.0f} steps.")  # one bit a step of 100 bits
    alarm = first("exploding_gradient", run(STALLS | {"block.1.gradient": ramp(0, 10)}, noise=1e-4))
    assert alarm is not None
    rows = int(alarm.what.split("within ")[1].split()[0])
    factor = float(alarm.what.split("factor ")[1].split()[0])
    assert factor == pytest.approx(math.exp((rows - 1) / 10), rel=0.01)
    alarm = first(
        "dead_head", run({"block.2.head_share_min": lambda s: 0.01 if s >= 90 else 1.0}, noise=1e-5)
    )
    assert (
        alarm is not None
        and alarm.what == "Its weakest head gives 0.007 of the mean of its layer, before 0.7."
    )
    alarm = first(
        "loss_spike", run({"loss": lambda s: (3.0 if s >= 100 else 1.0) * math.exp(s / 200)}, noise=1e-4)
    )
    assert alarm is not None and "The loss is 6, 3 times what it was before step 100" in alarm.what
    assert alarm.step == 102


@pytest.mark.parametrize(("jump", "named"), [(1.12, False), (1.25, True)])
def test_a_spike_needs_a_fifth_and_a_tenth_of_the_first_loss(jump: float, named: bool) -> None:
    steady = {"loss": lambda s: (jump if s >= 100 else 1.0) * math.exp(s / 200)}
    assert (first("loss_spike", run(steady, noise=1e-3)) is not None) is named
    learned = {"loss": lambda s: (jump if s >= 100 else 1.0) * math.exp(s / 200) * (1.0 if s < 10 else 0.3)}
    assert first("loss_spike", run(learned, noise=1e-3)) is None  # 0.3 · 0.25 of the first: it harms nothing


def test_an_alarm_says_how_far_and_how_sure() -> None:
    moved = Moved("norm", "block.1", 7, 0.25, -5.4, True)
    assert str(moved) == "norm of block.1 fell by a factor 4 since step 7 (t = 5)"
    assert (
        str(Moved("loss", "", 7, 3.0, 8.6, False))
        == "loss grew by a factor 3 since step 7 (9 times its scatter)"
    )
    assert str(Moved("loss", "", 7, 3.0, 1.9, False)) == "loss grew by a factor 3 since step 7"
    alarm = Alarm(AlarmKind.LOSS_SPIKE, 9, "block.1", 3, 7, "What.", order=("a", "b"), rows=40, series=12,
                  could_be=("x", "y"), ruled_out=("z",), module="h.1")  # fmt: skip
    assert alarm.failing and not Alarm(AlarmKind.BAD_BATCH, 9, "", None, 7, "").failing
    lines = str(alarm).split("\n")
    assert lines[0] == "ALARM at step 9: loss spike in block.1 (h.1), head 3, since step 7."
    assert "  Could be: x; y." in lines and "  Ruled out: z." in lines
    assert "Rests on 40 rows; thresholds allow for the 12 series" in lines[-1]


def test_what_nears_an_alarm_is_seen_at_six_tenths_of_its_t_value() -> None:
    history = states({}, 40)
    assert not near(history)
    at = history.at("norm")[0]
    for share, expected in ((0.59, False), (0.61, True)):
        history.t[at] = share * history.threshold
        assert near(history) is expected
    history.t[:] = 0.0
    history.t[history.at("headroom")[0]] = -0.61 * history.threshold  # the other way is worse
    assert near(history)


# --- rows ------------------------------------------------------------------------------------------------------------
def test_a_row_of_sites_and_blocks_is_worked_out_from_its_norms() -> None:
    """Against the definitions: growth is log of the squared gradient over that of the last site, headroom in bits."""
    layout = StatisticLayout(2)
    norm, apart, largest, gradient = (
        np.array([1.0, 2, 3]),
        np.array([0.9, 0.8, 0.7]),
        np.array([4.0, 8, 16]),
        np.array([0.5, 1, 2]),
    )
    site = dict(zip(names("site"), layout.sites(norm, apart, largest, gradient, 2.0**16), strict=True))
    assert list(site["norm"]) == [1, 2, 3] and list(site["separation"]) == [0.9, 0.8, 0.7]
    assert site["gradient_growth"] == pytest.approx([2 * math.log(1 / 4), 2 * math.log(1 / 2), 0.0])
    assert list(site["headroom"]) == [14, 13, 12]
    assert np.isnan(layout.sites(norm, apart, largest, gradient, 0.0)[names("site").index("headroom")]).all()
    # groups: query and key, value and output, MLP of each block, then what is in no block
    squares = np.array(
        [[9.0, 16, 4, 25, 144, 1, 100], [1.0, 3, 4, 8, 8, 1, 1], [0.09, 0.16, 0.01, 0.25, 1.44, 0.04, 4]]
    )
    heads = np.full((2, len(HEAD_STATISTICS), 3), 1.0)
    place = {name: HEAD_STATISTICS.index(name) for name in HEAD_STATISTICS}
    heads[0, place["entropy"]], heads[0, place["largest_logit"]] = [1.0, 2.0, 6.0], [3.0, 9.0, 6.0]
    heads[0, place["output"]] = [0.5, 2.0, 0.5]
    whole, block = layout.blocks(squares, squares.sum(1), heads, {1})
    rows = dict(zip(names("block"), block, strict=True))
    assert rows["weight_norm.attention"] == pytest.approx([5.0, 13.0]) and rows[
        "weight_norm.mlp"
    ] == pytest.approx([2.0, 1.0])
    assert rows["update_ratio.attention"] == pytest.approx([0.1, 0.1]) and rows[
        "update_ratio.mlp"
    ] == pytest.approx([0.05, 0.2])
    assert rows["gradient_norm.attention"] == pytest.approx([2.0, 4.0])
    assert rows["starvation"][0] == pytest.approx(math.log(1 / 3)) and math.isnan(rows["starvation"][1])
    assert (rows["entropy"][0], rows["entropy_min"][0], rows["largest_logit"][0]) == (3.0, 1.0, 9.0)
    assert rows["head_share_min"][0] == 0.5
    assert whole["update_ratio"] == pytest.approx(math.sqrt(squares[2].sum() / squares[0].sum()))
    assert whole["embedding_update"] == pytest.approx(0.2)
    heads[0, :, 1] = math.nan  # a head that was not seen
    assert (
        dict(zip(names("block"), layout.blocks(squares, squares.sum(1), heads, set())[1], strict=True))[
            "entropy"
        ][0]
        == 3.5
    )


def test_columns_are_run_sites_blocks_and_heads() -> None:
    shape = len(names("run")), len(names("site")), len(names("block"))
    assert len(fast_columns(3)) == shape[0] + 4 * shape[1] + 3 * shape[2] and len(fast_columns(0)) == shape[0]
    slow = [column.name for column in slow_columns([2, 1])]
    assert len(slow) == 2 * len(names("slow block")) + 3 * len(names("head"))
    assert [n for n in slow if n.endswith(".entropy")] == [
        f"block.{b}.head.{h}.entropy" for b, h in ((0, 0), (0, 1), (1, 0))
    ]


# --- batches ---------------------------------------------------------------------------------------------------------
def batches(*inputs: Tensor, labels: Sequence[Tensor] = ()) -> BatchProfiles:
    profiles = BatchProfiles()
    for step, batch in enumerate(inputs):
        profiles.see(step, ((batch,), {}), labels[step] if labels else None)
    return profiles


def floats(k: int, size: float = 1.0, mean: float = 0.0, rows: int = 16) -> Tensor:
    return mean + size * torch.randn(rows, 6, generator=torch.Generator().manual_seed(k))


@pytest.mark.parametrize(
    ("rows", "named"), [([16] * 8 + [2] * 3, True), ([16] * 8 + [3] * 3, False), ([16] * 8 + [2] * 2, False)]
)
def test_batches_an_eighth_as_large_for_three_rows(rows: list[int], named: bool) -> None:
    found = batches(*(floats(k, rows=n) for k, n in enumerate(rows))).broke()
    assert (found is not None) is named
    if found:
        assert found[0] == 8 and "from 16 to 2 rows" in found[1]


@pytest.mark.parametrize(
    ("size", "mean", "named"),
    [(1.4, 0.0, ""), (1.7, 0.0, "deviation"), (1.0, 0.35, ""), (1.0, 0.7, "mean"), (0.6, 0.0, "deviation")],
)
def test_inputs_of_another_size_or_mean(size: float, mean: float, named: str) -> None:
    """From half as much again, and from half a deviation; the draws scatter by a tenth."""
    profiles = batches(
        *(floats(k, rows=128) for k in range(20)), *(floats(k, size, mean, 128) for k in range(20, 26))
    )
    found = profiles.changed(20)
    assert (found is not None) == bool(named)
    if found:
        assert found.what.startswith(f"the {named}") and found.broken and not found.meant
    assert profiles.changed(26) is None and profiles.changed(4) is None


def test_labels_that_are_one_or_contradict_or_vanish() -> None:
    three = torch.arange(12) % 3
    one = [torch.zeros(12, dtype=torch.long)] * 10
    inputs = [floats(k, rows=12) for k in range(40)]
    assert batches(*inputs[:10], labels=one).one_label()
    assert not batches(*inputs[:9], labels=one[:9]).one_label()
    assert not batches(*inputs[:10], labels=[*one[:9], torch.ones(12, dtype=torch.long)]).one_label()
    gone = [three] * 15 + [torch.where(three == 2, 0, three)] * 15
    found = batches(*inputs[:30], labels=gone).vanished()
    assert found is not None and found[0] == 2 and found[2] == 15
    assert found[1] == pytest.approx(1 / 3)
    assert batches(*inputs[:30], labels=[three] * 30).vanished() is None
    again = [floats(0, rows=12)[[0, 1, 2] * 2 + [3, 4, 5, 6, 7, 8]]] * 5  # three inputs come twice
    other = torch.arange(12)
    assert batches(*again, labels=[other] * 5).contradicted() == (30, 60)
    assert batches(*again, labels=[three] * 5).contradicted() is None
    assert batches(*again[:4], labels=[other] * 4).contradicted() is None


def test_a_few_batches_ten_times_as_large_are_outliers() -> None:
    calm = [floats(0)] * 30
    for k, size in ((5, 9.9), (12, 9.9)):
        calm[k] = floats(0, size)
    assert batches(*calm).outliers() is None
    calm[5], calm[12] = floats(0, 10.2), floats(0, 12.0)
    found = batches(*calm).outliers()
    assert found is not None and found[0] == 2 and found[1] == pytest.approx(12, rel=1e-4)
    assert batches(*calm[:12], *[floats(0)] * 8).outliers() is None  # one of them
    assert batches(*calm, floats(0, 12.0)).outliers() is None  # the last one is as large


@pytest.mark.parametrize(
    ("passes", "factor", "named"),
    [
        ([1] * 8 + [4] * 6, 1.0, True),
        ([1] * 8 + [3] * 6, 1.0, False),
        ([1] * 8 + [4] * 6, 0.25, False),
        ([1] * 5 + [4] * 6, 1.0, False),  # eleven steps
        ([2] * 8 + [8] * 6, 1.0, True),
    ],
)
def test_passes_that_are_accumulated_and_not_divided(passes: list[int], factor: float, named: bool) -> None:
    seen = RunEvents(History(fast_columns(1)), BatchProfiles())
    for count in passes:
        seen.step(count)
    found = seen.summed(factor)
    assert (found is not None) is named
    if found:
        assert f"takes {passes[-1]} backward passes, at the start {passes[0]};" in found.sentence
        assert "4 times what it was" in found.cause


@pytest.mark.parametrize(("ratio", "way"), [(1 / 19, None), (1 / 21, "smaller"), (21, "larger")])
def test_an_exchange_of_optimizers_is_judged_by_the_fourth_row(ratio: float, way: str | None) -> None:
    history = History(COLUMNS)
    seen = RunEvents(history, BatchProfiles())
    weight = nn.Parameter(torch.zeros(1))
    adam, sgd = torch.optim.Adam([weight]), torch.optim.SGD([weight], 0.1)
    answers = []
    for step in range(20):
        seen.row(step, adam if step < 10 else sgd)
        answers.append(seen.exchanged())
        row = np.array([level(name) for name in NAMES])
        row[NAMES.index("update_ratio")] *= 1.0 if step < 10 else ratio
        history.see(step, row)
    assert [k for k, answer in enumerate(answers) if answer] == ([14] if way else [])
    if way:
        assert (
            "changed at step 10, from Adam to SGD" in answers[14].cause
            and f"21 times {way}" in answers[14].cause
        )


# --- hooks and the clock ---------------------------------------------------------------------------------------------
def test_a_loss_is_known_before_it_was_multiplied_by_a_positive_number() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    loss = weight.square()
    for scaled, known in (
        (loss * 1024 / 4, 9.0),
        (loss * -2.0, -18.0),
        (loss * math.inf, math.inf),
        (loss * 0.0, 0.0),
    ):
        assert float(unscaled(scaled)) == known


def test_a_collection_in_another_thread_is_not_ours() -> None:
    clock = Clock()
    clock.now = iter([0.0, 1.0, 51.0, 60.0]).__next__

    def collected() -> None:
        clock.collection("start", {"generation": 2})
        clock.collection("stop", {"generation": 2})

    def work() -> None:
        other = threading.Thread(target=collected)
        other.start()
        other.join()
        assert clock.now() == 1.0 and clock.now() == 51.0  # the other thread has not looked at the time

    def fail(error: Exception) -> None:
        raise error

    clock.run(work, (), fail)
    assert clock.spent == 60.0
