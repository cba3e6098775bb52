"""The combined answer: what is extrapolated from a known curve, and what counts as dead, slow or undecided."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import edgewise
from edgewise.judgement.outcome import OUTCOME_BANDS, band
from edgewise.nouns.verdict import Outcome, Probability
from edgewise.rehearsal import Moment, Prospect, Rate, Rehearsal, outlook
from edgewise.rehearsal.ladder import NOISE
from edgewise.rehearsal.prospect import (
    FAILS_UP_TO,
    TRAINS_FROM,
    _agreed_dead,
    chance_table,
    chances,
    steps_to,
)
from edgewise.rehearsal.rate import NOT_FINITE, with_reasons


def run(rate: float, losses: list[float], separation: float | None = 0.5) -> Rehearsal:
    return Rehearsal(rate, tuple(losses), (Moment(20, losses[-1], 1.0, separation, 1.0),), 0.1)


def answer(
    *rows: Rehearsal, best: float | None = 1e-3, start: float = 3.0, apart: float | None = 0.5
) -> Rate:
    return Rate(best, best, best, None, rows, Moment(0, start, 0.0, apart, 1.0), "AdamW")


JUDGED = edgewise.judge(edgewise.predict(edgewise.transformer(depth=8, tokens=16)))
POWER = [3.0 * t**-0.2 for t in range(1, 21)]


def test_a_power_law_is_continued_exactly() -> None:
    """3 t^-0.2 reaches 1 at t = 3^5 = 243."""
    assert steps_to(run(1e-3, POWER), 1.0) == pytest.approx((243.0, 243.0, 243.0), rel=1e-6)
    noisy = [loss * (1 + 0.01 * (-1) ** t) for t, loss in enumerate(POWER)]
    best, low, high = steps_to(run(1e-3, noisy), 1.0)
    assert best is not None and low is not None and high is not None
    assert low < 243 < high and low < best < high
    x, y = np.log(np.arange(11, 21)), np.log(noisy[10:])  # the second half
    fit = stats.linregress(x, y)
    ends = [-fit.slope + z * fit.stderr for z in (0, stats.norm.ppf(0.975), stats.norm.ppf(0.025))]
    assert (best, low, high) == pytest.approx([np.exp(x.mean() + y.mean() / p) for p in ends], rel=1e-4)


def test_a_loss_that_does_not_fall_has_no_date() -> None:
    assert steps_to(run(1e-3, [3.0] * 20), 1.0)[0] is None
    assert steps_to(run(1e-3, [math.nan] * 20), 1.0) == (None, None, None)


def test_no_number_of_steps_beyond_a_hundred_rehearsals_is_stated() -> None:
    """3 t^-0.006 is halved after 2^167 steps: fifty digits that mean nothing."""
    slow = [3.0 * t**-0.006 for t in range(1, 21)]
    assert (steps_to(run(1e-3, slow), 1.5)[0] or 0) > 1e49
    for losses in (slow, [3.0 * t**-0.06 for t in range(1, 21)], [2.0 * loss / 3 for loss in slow]):
        answered = outlook(answer(run(1e-3, losses)))
        assert not re.search(r"\d{1,3}(,\d{3}){2}", answered.sentence), answered.sentence
        assert all(n is None or n <= 2000 for n in (answered.steps, answered.steps_low, answered.steps_high))
    far = outlook(answer(run(1e-3, [2.0 * loss / 3 for loss in slow])))
    assert "more than 2,000 steps" in far.sentence


def test_trains_slowly_dead_and_undecided() -> None:
    good = outlook(answer(run(1e-3, POWER)))
    assert good.prospect is Prospect.TRAINS and good.rate == 1e-3 and "extrapolated" in good.sentence
    crawling = [3.0 * t**-0.03 for t in range(1, 21)]
    assert outlook(answer(run(1e-3, crawling))).prospect is Prospect.SLOW
    assert outlook(answer(run(1e-3, [3.0] * 20))).prospect is Prospect.UNDECIDED
    assert outlook(answer(run(1e-3, [3.5] * 20), best=None)).prospect is Prospect.DEAD
    alike = outlook(answer(run(1e-3, POWER, separation=1e-5), apart=1e-5))
    assert alike.prospect is Prospect.DEAD and "frequent" in alike.sentence and alike.rate is None


def test_the_verdict_gives_the_cure_and_the_rehearsal_decides() -> None:
    network = edgewise.transformer(depth=48, width=1024, heads=16, norm="post")
    verdict = edgewise.judge(edgewise.predict(network))
    still = answer(run(1e-3, [3.0] * 20))
    dead = outlook(still, verdict)
    assert dead.prospect is Prospect.DEAD and dead.cure == verdict.findings[0].remedy
    assert outlook(still).prospect is Prospect.UNDECIDED  # the same rehearsal, and nobody who knows why
    learned = outlook(answer(run(1e-3, POWER)), verdict)
    assert learned.prospect is Prospect.TRAINS and "says otherwise" in learned.sentence
    assert outlook(still, replace(verdict, outcome=Outcome.TRAINS)).cure == ""


def test_the_probability_is_that_of_the_table_and_the_words_are_its_bands() -> None:
    """By hand: the loss falls by a tenth, the start has even odds, so that the verdict adds nothing."""
    tenth = answer(run(1e-3, [3.0] * 16 + [2.7] * 4))
    constants = chance_table()["curves"]
    for form, start in (("alone", None), ("both", 0.5)):
        verdict = None if start is None else replace(JUDGED, probability=Probability(start, start, start))
        expected = 1 / (
            1 + math.exp(constants[form]["all"]["fall"] * math.log(10) - constants[form]["all"]["offset"])
        )
        odds = chances(tenth, verdict)
        assert odds is not None and odds.value == pytest.approx(expected, rel=1e-6)
        assert odds.low <= odds.value <= odds.high and odds.outside == ()
    assert tuple(OUTCOME_BANDS) == (TRAINS_FROM, FAILS_UP_TO)


@pytest.mark.parametrize("left", [0.3, 0.7, 0.85, 0.9, 0.94, 0.97, 1.0, 1.1])
@pytest.mark.parametrize("start", [None, 0.001, 0.3, 0.97])
def test_no_outlook_contradicts_its_probability(left: float, start: float | None) -> None:
    verdict = None
    if start is not None:
        verdict = replace(JUDGED, probability=Probability(start, start, start), outcome=band(start))
    together = outlook(answer(run(1e-3, [3.0] + [3.0 * left] * 19)), verdict)
    odds = together.probability
    if together.prospect in (Prospect.TRAINS, Prospect.SLOW):
        assert odds is not None and odds.value >= TRAINS_FROM
        assert together.prospect is Prospect.SLOW or "such networks trained" in together.sentence
    if together.prospect is Prospect.DEAD:
        assert odds is None or odds.value <= FAILS_UP_TO


def test_too_few_steps_and_other_optimizers() -> None:
    few = answer(Rehearsal(1e-3, (3.0, 2.0, 1.0), (Moment(3, 1.0, 1.0, 0.5, 1.0),), 0.1))
    assert chances(few) is None and outlook(few).probability is None
    other = replace(answer(run(1e-3, POWER)), optimizer="SGD, momentum 0.9", warmup=15)
    odds = chances(other)
    assert odds is not None
    assert odds.outside == ("SGD (those had AdamW)", "15 steps of warm-up (those had 8)")


@pytest.mark.slow
def test_the_table_is_that_of_the_recorded_runs() -> None:
    from experiments.trainability.combined import document

    assert document() == chance_table()


@pytest.mark.parametrize(("fall", "dead"), [(1.5, True), (2.5, False)])
def test_dead_is_a_fall_of_the_loss_by_less_than_twice_its_noise(fall: float, dead: bool) -> None:
    failing = replace(JUDGED, outcome=Outcome.FAILS)
    rate = answer(run(1e-3, [3.0] * 19 + [3.0 * (1 - fall * NOISE)]), best=None)
    assert _agreed_dead(rate, failing) == dead
    assert not _agreed_dead(rate, JUDGED) and not _agreed_dead(rate, None)


def test_steps_are_counted_from_one() -> None:
    """The third loss is not finite: it was the third step."""
    (judged,) = with_reasons(
        [Rehearsal(1.0, (3.0, 2.0, math.nan), (), None)], lambda _: 0.0, Moment(0, 3.0, 0.0, 0.5, 1.0), 3.0
    )
    assert (judged.reason, judged.left_at) == (NOT_FINITE, 3)
