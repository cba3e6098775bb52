"""What an alarm puts a failure down to: what moved first, what is ruled out, and what the loss says by itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from edgewise.monitor.alarm import Alarm, AlarmKind, Moved
from edgewise.monitor.causes import Diagnosis, _cause, _counts, _ruled_out
from edgewise.monitor.series import History
from tests.monitor.driven import COLUMNS, DEPTH, NAMES, kinds, level, ramp, run


def test_a_t_value_of_nothing_has_no_sign() -> None:
    history = History(COLUMNS)
    history.t, history.count = np.full(history.series, -0.01), 40
    history.t[history.at("separation")] = 0.01  # for which down is worse
    words = _ruled_out(history, AlarmKind.LOGIT_GROWTH)
    assert len(words) == 3 and all("largest t = 0.0 of" in sentence for sentence in words)


def test_what_has_most_of_a_t_value_is_no_alarm_and_not_ruled_out() -> None:
    history = History(COLUMNS)
    history.t, history.count = np.zeros(history.series), 40
    history.t[history.at("norm")[1]] = 0.7 * history.threshold
    words = _ruled_out(history, AlarmKind.RANK_COLLAPSE)
    assert len(words) == 2 and not any("learning rate" in sentence for sentence in words)


def test_only_what_one_batch_can_do_is_put_down_to_a_batch() -> None:
    """Tokens that merged 30 rows ago did not do so because something jumped in this one; nor does a head die of it."""
    jumped = [Moved("gradient norm", "", 30, 3.0, 9.0, False)]
    assert _cause(AlarmKind.RANK_COLLAPSE, jumped, 1, 30) == "nothing moved before: it is so since step 1."
    later = [Moved("largest logit", "block.0", 10, 6.5, 11.0, True)]
    assert _cause(AlarmKind.RANK_COLLAPSE, later, 9, 38) == "nothing moved before: it is so since step 9."
    assert _cause(AlarmKind.DEAD_HEAD, jumped, 30, 30) == "nothing moved before this step."
    assert _cause(AlarmKind.NOT_A_NUMBER, jumped, 30, 30).endswith("which points to its batch.")


def test_loss_and_gradient_in_one_row_point_to_the_data() -> None:
    moved = [
        Moved("gradient of the stream", "block.0", 30, 3.0, 9.0, False),
        Moved("loss", "", 30, 7.0, 9.0, False),
    ]
    assert _cause(AlarmKind.LOSS_SPIKE, moved, 30, 32).endswith(
        "with nothing before them, which points to the data."
    )
    assert "points to the gradient" in _cause(AlarmKind.LOSS_SPIKE, moved[:1], 30, 32)


@pytest.mark.parametrize(
    ("moved", "counts"),
    [
        (Moved("attention entropy", "block.1", 30, 1.06, 1.0, False), False),  # it rose, which is no harm
        (Moved("attention entropy", "block.1", 30, 0.9, -12.0, True), True),
        (Moved("largest logit", "block.0", 26, 1.09, 1.0, False), False),  # stands still, where it always was
        (Moved("largest logit", "block.0", 26, 3.0, 1.0, False), True),
    ],
)
def test_what_went_the_other_way_or_hardly_moved_is_no_cause(moved: Moved, counts: bool) -> None:
    assert _counts(moved) is counts


def test_without_a_loss_what_moved_first_names_the_alarm() -> None:
    """Logits that grow after the stream did: there is no loss to say that the stream was learning."""
    unheard = {
        "loss": lambda step: math.nan,
        "block.1.largest_logit": ramp(60, 25),
        "block.1.entropy": ramp(80, -60),
    }
    assert kinds(run(unheard)) == ["logit_growth"]
    alarm = run({**unheard, **{f"block.{i}.norm": ramp(30, 30) for i in range(DEPTH)}})[0]
    assert alarm.kind is AlarmKind.UPDATE_TOO_LARGE and "the learning rate" in alarm.first
    assert "there is no loss" in alarm.what and "largest logit" in alarm.what


def test_labels_that_are_wrong_from_a_step_on_are_not_the_rate() -> None:
    """Loss and gradient jump and stay; that steps are larger from then on is what they do and not why."""
    jump = {
        name: (lambda step: 8.0 if step >= 100 else 1.0)
        for name in ("loss", "gradient_norm", "block.0.gradient")
    }
    alarms = run({**jump, "update_ratio": lambda step: 3.0 if step >= 103 else 1.0})
    assert kinds(alarms)[0] == "bad_batch" and set(kinds(alarms)) <= {"bad_batch", "loss_spike"}


def test_the_loss_alone_is_an_alarm_where_no_row_is_paid_for() -> None:
    """At once where it is not finite; ten steps after it rose, unless it came back or a row was taken meanwhile."""

    def heard(loss_at: object, row: int | None = None) -> list[Alarm]:
        diagnosis, rng = Diagnosis(History(COLUMNS)), np.random.default_rng(0)
        history, alarms = diagnosis.history, []
        for step in range(120):
            loss = 2.0 * math.exp(0.03 * rng.standard_normal()) * loss_at(step)  # type: ignore[operator]
            if step in (0, row):
                history.see(step, np.array([loss if name == "loss" else level(name) for name in NAMES]))
                diagnosis.see(step, np.zeros((0, 0, 0)))
                continue
            history.losses.see(step, math.log(loss))
            alarms += diagnosis.hear(step, loss)
        return alarms

    (spike,) = heard(lambda step: 5.0 if step >= 60 else 1.0)
    assert (spike.kind, spike.step, spike.since) == (AlarmKind.LOSS_SPIKE, 72, 60)
    assert "only the loss is known" in spike.first
    (ended,) = heard(lambda step: math.nan if step >= 60 else 1.0)
    assert (ended.kind, ended.step, ended.since) == (AlarmKind.NOT_A_NUMBER, 60, 60)
    assert heard(lambda step: 5.0 if 60 <= step < 65 else 1.0) == heard(lambda step: 1.0) == []
    assert heard(lambda step: 5.0 if step >= 60 else 1.0, row=66) == []


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("embed", "What enters the first block is not finite already"),
        ("block.1", "The output of block.1 is the first"),
    ],
)
def test_where_numbers_end_is_said(first: str, words: str) -> None:
    sites = ["embed", *(f"block.{i}" for i in range(DEPTH))]
    broken = ["loss", *(f"{site}.norm" for site in sites[sites.index(first) :])]
    alarms = run({name: lambda step: math.nan if step >= 5 else 1.0 for name in broken}, steps=8)
    assert words in alarms[0].what


def test_what_came_to_rest_far_away_is_not_ruled_out() -> None:
    """Tokens that merged at the start do not move any more, and are still the first thing to look at."""
    merged = {f"block.{i}.separation": lambda step: max(math.exp(-step), 1e-3) for i in range(DEPTH)}
    late = {"loss": lambda step: math.nan if step >= 100 else 1.0}
    ruled_out = next(a for a in run(merged | late) if a.kind is AlarmKind.NOT_A_NUMBER).ruled_out
    assert ruled_out and not any("merging" in line for line in ruled_out)


def test_logits_that_grow_after_the_steps_did_are_the_rate() -> None:
    """The same logits with and without steps that grew first: the order decides the cause."""
    logits = {"block.1.largest_logit": ramp(80, 25), "block.1.entropy": lambda step: 1 / ramp(80, 25)(step)}
    assert kinds(run({**logits, "update_ratio": ramp(55, 25)}))[0] == "update_too_large"
    assert kinds(run(logits))[0] == "logit_growth"


def test_everything_that_moved_is_printed_once() -> None:
    alarm = Alarm(
        AlarmKind.BAD_BATCH, 9, "", None, 9, "It is up.", "nothing moved before.", ("loss grew", "norm grew")
    )
    assert "  Then:  loss grew\n  Then:  norm grew" in str(alarm)
    assert str(replace(alarm, first="loss grew. That points to data.")).count("loss grew") == 1


@pytest.mark.parametrize(
    "factor, score, trend, text",
    [
        (3.0, 2.5, True, "norm of block.1 grew by a factor 3 since step 10 (t = 2)"),
        (0.25, -7.0, False, "norm of block.1 fell by a factor 4 since step 10 (7 times its scatter)"),
        (3.0, 1.9, True, "norm of block.1 grew by a factor 3 since step 10"),
        (0.0, -3.0, True, "norm of block.1 fell by a factor inf since step 10 (t = 3)"),
    ],
)
def test_what_moved_is_said_with_its_size_and_how_sure_it_is(
    factor: float, score: float, trend: bool, text: str
) -> None:
    assert str(Moved("norm", "block.1", 10, factor, score, trend)) == text
