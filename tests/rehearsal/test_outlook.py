"""The combined answer: what is extrapolated from a known curve, and what counts as dead, slow or undecided."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import edgewise
from edgewise.rehearsal import Moment, Prospect, Rate, Rehearsal, outlook
from edgewise.rehearsal.outlook import steps_to
from edgewise.verdict import Outcome


def run(rate: float, losses: list[float], separation: float | None = 0.5) -> Rehearsal:
    return Rehearsal(rate, tuple(losses), (Moment(20, losses[-1], 1.0, separation, 1.0),), 0.1)


def answer(*rows: Rehearsal, best: float | None = 1e-3, start: float = 3.0, apart: float | None = 0.5) -> Rate:
    return Rate(best, best, best, None, rows, Moment(0, start, 0.0, apart, 1.0), "AdamW")


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
