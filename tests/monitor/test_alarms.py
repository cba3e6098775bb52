"""Alarms: what is driven to fail is named, by its cause; what only learns is left alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from edgewise.monitor.alarm import ADVICE, MEANING, Alarm, AlarmKind
from edgewise.monitor.capture import Window
from edgewise.monitor.causes import Diagnosis
from edgewise.monitor.detectors import exploding_gradient
from edgewise.monitor.series import FEWEST, FLOOR, JUMP, History
from tests.monitor.driven import COLUMNS, DEPTH, LEVELS, NAMES, kinds, level, ramp, run


def test_scatter_alone_is_left_alone() -> None:
    assert sum(len(run(seed=seed, steps=300)) for seed in range(3)) == 0


def test_a_network_that_learns_is_left_alone() -> None:
    """Logits, stream and gradient move as they do in healthy runs, and the loss falls."""
    changes = {
        **{f"block.{i}.largest_logit": lambda step: 1 + step / 40 for i in range(DEPTH)},
        **{f"block.{i}.entropy": lambda step: 1 - 0.4 * min(step / 150, 1) for i in range(DEPTH)},
        **{f"block.{i}.norm": lambda step: 1 + step / 30 for i in range(DEPTH)},
        "loss": lambda step: math.exp(-step / 60),
    }
    assert kinds(run(changes)) == []


def test_logits_that_double_in_a_thousand_steps_are_learning() -> None:
    """Rows fifty steps apart, as a small budget gives of a small network: 40 of them see such a growth as a trend."""
    for doubling, named in ((1000, False), (150, True)):
        history = History(COLUMNS)
        diagnosis, rng, raised = Diagnosis(history), np.random.default_rng(0), []
        for step in range(0, 4000, 50):
            values = {n: LEVELS.get(n.rpartition(".")[2], math.nan) for n in NAMES}
            values |= {f"block.{i}.largest_logit": 10 * 2 ** (step / doubling) for i in range(DEPTH)}
            row = np.array([values[n] for n in NAMES]) * np.exp(0.03 * rng.standard_normal(len(NAMES)))
            history.see(step, row)
            raised += diagnosis.see(step, np.zeros((0, 0, 0)))
        assert ("logit_growth" in kinds(raised)) is named


def test_an_entropy_that_is_low_in_one_row_is_a_passing_one() -> None:
    """The few sequences of a row may all be easy ones; a collapse stays."""

    def dip(last: int) -> dict[str, object]:
        return {f"block.{i}.entropy": lambda step: 0.1 if 100 <= step < last else 1.0 for i in range(DEPTH)}

    assert "entropy_collapse" not in kinds(run(dip(101)))
    assert "entropy_collapse" in kinds(run(dip(140)))


def test_how_far_entropy_fell_is_said_of_the_fall_that_was_seen() -> None:
    """A slow fall against the beginning of its window, a drop against the rows just before it."""
    stalled = {"loss": lambda step: math.exp(step / 200), "block.1.softmax_gain": ramp(60, -30)}
    slow, drop = (
        next(alarm.what for alarm in run(changes) if alarm.kind is AlarmKind.ENTROPY_COLLAPSE)
        for changes in (stalled | {"block.1.entropy": ramp(60, -30)}, {"block.1.entropy": ramp(100, -0.1)})
    )
    assert float(slow.split(" of what it was 40 rows ago")[0].split()[-1]) < 0.5
    assert drop.endswith("of what it was just before.")


def test_growing_logits_are_named_with_block_rate_and_cause() -> None:
    changes = {"block.1.largest_logit": ramp(60, 25), "block.1.entropy": ramp(80, -60)}
    alarms = run(changes)
    assert kinds(alarms)[0] == "logit_growth"
    alarm = alarms[0]
    assert alarm.place == "block.1" and 60 <= alarm.since <= alarm.step <= 125
    assert "grows by" in alarm.what and "points to attention" in alarm.first
    assert any(words.startswith("the learning rate") for words in alarm.ruled_out)
    rate = float(alarm.what.split("grows by ")[1].split("%")[0]) / 100
    assert 0 < rate < 0.06


def test_how_far_a_series_moved_is_the_factor_of_its_change() -> None:
    """Without scatter, e^(rows/25) over the window for a trend, and the ratio to the median for a jump."""
    history = History(COLUMNS)
    for step in range(161):
        row = np.array([level(name) for name in NAMES])
        row *= np.exp(1e-3 * np.random.default_rng(step).standard_normal(len(row)))
        row[NAMES.index("block.1.largest_logit")] *= math.exp(step / 25)
        row[NAMES.index("gradient_norm")] *= 8.0 if step == 160 else 1.0
        history.see(step, row)
    moved = {each.statistic: each for each in history.moved()}
    trend, jump = moved["largest logit"], moved["gradient norm"]
    assert (trend.trend, jump.trend) == (True, False)
    assert trend.factor == pytest.approx(math.exp((history.rows - 1) / 25), rel=1e-2)
    assert jump.factor == pytest.approx(8.0, rel=1e-2)


def test_jumps_are_worked_out_where_there_can_be_one_and_are_then_those_of_the_formula() -> None:
    """Of each series beyond eight scatters, and of no other; against the formula on whole series of a rough run."""
    rng, history, jumped = np.random.default_rng(0), History(COLUMNS), 0
    level_of = {name: level(name) for name in NAMES}
    for step in range(120):
        row = np.array([level_of[name] for name in NAMES]) * np.exp(0.02 * rng.standard_normal(len(NAMES)))
        row[rng.integers(len(row))] *= rng.choice([0.01, 0.9, 1.1, 100.0])
        row[rng.integers(len(row))] *= math.nan if step % 30 == 29 else 1.0
        past = history.past()[1].copy()
        history.see(step, row)
        if len(past) < FEWEST:
            assert np.isnan(history.jump).all()
            continue
        change = np.diff(past, axis=0)
        scatter = 1.4826 * np.median(np.abs(change - np.median(change, axis=0)), axis=0)
        expected = (history.now - np.median(past[-FEWEST:], axis=0)) / np.maximum(scatter, FLOOR)
        far = np.abs(np.nan_to_num(expected)) > JUMP
        assert history.jump[far] == pytest.approx(expected[far])
        assert not (np.abs(np.nan_to_num(history.jump[~far])) > JUMP).any()
        jumped += int(far.sum())
    assert jumped > 20


def test_a_stream_that_grows_while_the_loss_stalls_points_to_the_rate() -> None:
    changes = {f"block.{i}.norm": ramp(50, 40) for i in range(DEPTH)}
    changes["loss"] = lambda step: math.exp(step / 200)  # cancels the fall
    alarms = run(changes)
    assert kinds(alarms) == ["update_too_large"]
    assert "the learning rate" in alarms[0].first


def test_the_same_stream_is_left_alone_while_the_loss_falls() -> None:
    changes = {f"block.{i}.norm": ramp(50, 40) for i in range(DEPTH)}
    changes["loss"] = lambda step: math.exp(-step / 50)
    assert kinds(run(changes)) == []


def test_a_jump_with_nothing_before_it_is_the_batch() -> None:
    jump = {
        name: (lambda step: 8.0 if step == 100 else 1.0)
        for name in ("loss", "gradient_norm", "block.0.gradient")
    }
    alarms = run(jump)
    assert kinds(alarms) == ["bad_batch"]
    assert alarms[0].step == 100 and "points to its batch" in alarms[0].first


def test_what_drifts_slowly_is_not_named_before_a_bad_batch() -> None:
    """Logits that learn grow all the time; an alarm that says "nothing moved before" must not list them first."""
    jump = {
        name: (lambda step: 8.0 if step == 100 else 1.0)
        for name in ("loss", "gradient_norm", "block.0.gradient")
    }
    alarms = run({**jump, "block.1.largest_logit": lambda step: math.exp(step / 300)}, noise=0.01)
    assert kinds(alarms) == ["bad_batch"]
    assert "points to its batch" in alarms[0].first
    assert not any("largest logit" in line for line in alarms[0].order)


def test_a_loss_that_stays_up_is_a_spike() -> None:
    alarms = run({"loss": lambda step: 3.0 if step >= 100 else 1.0})
    assert "loss_spike" in kinds(alarms)
    assert 102 <= next(a.step for a in alarms if a.kind is AlarmKind.LOSS_SPIKE) <= 104


def test_a_dead_head_is_named_at_once() -> None:
    alarms = run({"block.2.head_share_min": lambda step: 1e-4 if step >= 90 else 1.0})
    assert kinds(alarms) == ["dead_head"]
    assert (alarms[0].step, alarms[0].place) == (90, "block.2")


def test_an_overflow_is_foretold() -> None:
    changes = {"block.2.headroom": lambda step: 1 - max(0, step - 60) * 0.01}
    alarms = run(changes)
    assert kinds(alarms)[0] == "overflow_ahead"
    assert alarms[0].step < 140  # 20 steps and more before nothing is left


def test_collapse_is_named_when_it_lasts() -> None:
    """A network can collapse in a dozen steps; one that comes back, or learns meanwhile, is left alone."""
    stalled = {"loss": lambda step: math.exp(step / 200)}
    names = [f"block.{i}.separation" for i in range(DEPTH)]
    alarms = run(stalled | {name: lambda step: max(math.exp(-step), 1e-3) for name in names})
    assert kinds(alarms) == ["rank_collapse"] and alarms[0].failing
    assert 30 <= alarms[0].step <= 40
    assert alarms[0].since <= 10 and alarms[0].first.endswith(f"it is so since step {alarms[0].since}.")
    assert not any("merging" in line for line in alarms[0].ruled_out)
    assert kinds(run(stalled | {name: lambda step: 1e-3 if 5 < step < 30 else 1.0 for name in names})) == []
    learns = {"loss": lambda step: math.exp(-step / 50)}
    assert kinds(run(learns | {name: lambda step: max(math.exp(-step), 1e-3) for name in names})) == []


def test_what_is_not_a_number_is_said_at_once() -> None:
    alarms = run({"loss": lambda step: math.nan if step >= 5 else 1.0}, steps=8)
    assert kinds(alarms) == ["not_a_number"] and alarms[0].step == 5
    assert "finite in all blocks: check the head, the labels and how the loss is computed" in alarms[0].what


def test_a_block_that_is_skipped_is_not_one_whose_numbers_have_ended() -> None:
    """Layer drop: no stream, no gradient and no update of a block in some steps, and the loss is as before."""
    names = (
        "block.1.norm",
        "block.1.gradient",
        "embed.gradient",
        "gradient_norm",
        "block.1.update_ratio.mlp",
    )
    assert run({name: lambda step: math.nan if step % 3 == 2 else 1.0 for name in names}) == []
    assert kinds(
        run({name: lambda step: math.nan if step == 9 else 1.0 for name in (*names, "loss")}, steps=12)
    ) == ["not_a_number"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("block.1.gradient", math.nan), ("block.1.gradient", math.inf), ("embed.norm", math.inf)],
)
def test_numbers_may_end_before_the_loss_does(name: str, value: float) -> None:
    alarms = run({name: lambda step: value if step == 9 else 1.0}, steps=12)
    assert kinds(alarms) == ["not_a_number"] and alarms[0].step == 9
    assert f"The {name.split('.')[-1]} of {alarms[0].place} is not finite." in alarms[0].what


def test_a_start_that_is_thrown_off_is_named_before_there_is_a_past() -> None:
    """The stream grows by e a step and the loss doubles: named within 20 rows, but not if it stays or falls."""
    grown = {f"block.{i}.norm": lambda step: math.exp(min(step, 15)) for i in range(DEPTH)}
    assert run({**grown, "loss": lambda step: math.exp(step / 200)}, steps=20) == []
    named = run({**grown, "loss": lambda step: math.exp(min(step, 8) / 10)}, steps=20)
    assert kinds(named) == ["update_too_large"] and named[0].step < 15
    assert "that of the first row" in named[0].what
    assert run({**grown, "loss": lambda step: 0.9**step}, steps=20) == []


def test_steps_beyond_the_edge_of_a_rehearsal_are_named() -> None:
    """The last looks at the stream are all beyond the edge: named, though nothing else moves."""
    for share, expected in ((4.0, ["update_too_large"]), (2.0, [])):
        diagnosis, found = Diagnosis(History(COLUMNS)), []
        for step in range(60):
            row = np.array([level(name) for name in NAMES]) * (1 + 0.01 * math.sin(step))
            row[NAMES.index("stream_change_of_edge")] = share if step % 10 == 0 else math.nan
            diagnosis.history.see(step, row)
            found += diagnosis.see(step, np.full((DEPTH, 7, 2), np.nan))
        assert kinds(found) == expected
        assert all("at the edge of the rehearsal" in alarm.what for alarm in found)


def test_an_alarm_survives_its_file_and_reads_like_a_colleague() -> None:
    alarm = run({"block.1.largest_logit": ramp(60, 25), "block.1.entropy": ramp(80, -60)})[0]
    event = alarm.json() | {"kind": "alarm", "alarm": alarm.kind.value}
    assert Alarm.from_json(event) == alarm
    text = str(alarm)
    for part in ("ALARM at step", "in block.1", "First:", "Means:", "Try:", "Ruled out:", "rows"):
        assert part in text, part


def test_every_kind_has_a_meaning_and_advice() -> None:
    assert set(MEANING) == set(ADVICE) == set(AlarmKind)


@pytest.mark.slow
def test_driven_failures_of_real_training_are_named(tmp_path: Path) -> None:
    from experiments.alarms.training import trained

    base = dict(task="bytes", depth=3, width=64, heads=4, norm="pre", batch=4, rate=3e-3, seed=0, steps=260)
    expected = {
        "none": set(),
        "logits ramped": {"logit_growth", "entropy_collapse"},
        "rate ramped": {"update_too_large"},
        "bad batch": {"bad_batch"},
        "dead head": {"dead_head"},
    }
    for failure, wanted in expected.items():
        folder = tmp_path / failure
        trained(base | {"failure": failure}, folder)
        lines = [line for file in folder.glob("events-*") for line in file.read_text().splitlines()]
        raised = [Alarm.from_json(event) for event in map(json.loads, lines) if event["kind"] == "alarm"]
        first = {alarm.kind.value for alarm in raised[:1]}
        assert first <= wanted and (first or not wanted), (failure, raised)


def test_a_gradient_that_grows_tenfold_while_the_loss_stalls_is_named_with_its_factor() -> None:
    """A trend, not a jump; one that falls as fast is none."""
    alarms = run({"block.2.gradient": ramp(60, 12), "loss": lambda step: math.exp(step / 200)})
    alarm = next(alarm for alarm in alarms if alarm.kind is AlarmKind.EXPLODING_GRADIENT)
    assert alarm.place == "block.2" and float(alarm.what.split("factor ")[1].split()[0]) >= 10
    for factor in (ramp(60, -12), lambda step: 30.0 if step == 100 else 1.0):
        alarms = run({"block.2.gradient": factor, "loss": lambda step: math.exp(step / 200)})
        assert "exploding_gradient" not in kinds(alarms)


@pytest.mark.parametrize(
    "t, change, stalled, named",
    [(9.0, 3.0, True, True), (2.0, 3.0, True, False), (9.0, 2.0, True, False), (9.0, 3.0, False, False)],
)
def test_a_growing_gradient_needs_a_trend_a_tenfold_change_and_a_loss_that_stalls(
    t: float, change: float, stalled: bool, named: bool
) -> None:
    history = SimpleNamespace(
        at=lambda _: np.array([4, 5]),
        trend=lambda _: (np.array([0.0, t]), np.array([0.0, change])),
        threshold=5.0,
        stalled=stalled,
        rows=40,
    )
    detection = exploding_gradient(history)  # type: ignore[arg-type]
    assert (
        detection is not None and detection.series == 5 and "factor 20.1 within 40 rows" in detection.sentence
    ) is named


@pytest.mark.parametrize("share, dead", [(0.06, False), (0.04, True)])
def test_a_head_is_dead_below_a_twentieth_of_the_mean(share: float, dead: bool) -> None:
    """From 0.7, so that both have fallen tenfold; and a head that was weak all along is left alone."""
    alarms = run({"block.1.head_share_min": lambda step: share / 0.7 if step >= 100 else 1.0}, noise=0.003)
    assert ("dead_head" in kinds(alarms)) is dead
    assert "dead_head" not in kinds(run({"block.1.head_share_min": lambda _: share / 0.7}, noise=0.003))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batch, length", [(1, 6), (5, 6), (5, 2)])
def test_a_window_takes_tokens_of_as_many_sequences_as_it_holds(
    batch_first: bool, batch: int, length: int
) -> None:
    """(2, 3, 4) hold two sequences of three tokens, every second one of longer ones."""
    buffer = torch.zeros(2, 3, 4)
    window = SimpleNamespace(
        buffer=buffer, batch_first=batch_first, _slices=lambda n: slice(0, n, 2 if n > 3 else 1)
    )
    x = torch.randn(batch, length, 4)
    given = x if batch_first else x.transpose(0, 1)
    fit = Window._fitted(window, given.shape)  # type: ignore[arg-type]
    assert fit is not None and (fit.sequences, fit.length) == (min(batch, 2), length)
    fit.target.copy_(given[fit.part])
    picked = x[:2, :: 2 if length > 3 else 1]
    assert torch.equal(buffer[: len(picked), : picked.shape[1]], picked)
    assert Window._fitted(window, torch.Size((2, 6, 5))) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("entropy", "gain", "words"),
    [
        (math.nan, 0.0, "sees one place only"),
        (1.5, 0.01, ""),
        (0.1, 0.0, ""),
    ],
)
def test_queries_and_keys_without_a_gradient_where_values_have_one(
    entropy: float, gain: float, words: str
) -> None:
    def starved(log: float, blocks: int = DEPTH) -> list[Alarm]:
        changes: dict[str, object] = {}
        for i in range(blocks):
            changes |= {
                f"block.{i}.starvation": lambda step: log,
                f"block.{i}.entropy": lambda step: entropy / 2.0,  # the level of a healthy run
                f"block.{i}.softmax_gain": lambda step: gain / 0.1,
            }
        return run(changes, steps=30)

    (alarm,) = starved(-38.0)
    assert (words in alarm.cause) and bool(alarm.cause) == bool(words) and "queries and keys" in alarm.what
    assert bool(alarm.could_be) == (not words)
    assert starved(-9.0) == [] == starved(-38.0, blocks=1)
