"""Ladder of rates: which rate is tried next, what the losses say, what all trials can cost.

Rates stand on a ladder, start * 2.5^k. It is climbed until the lowest fresh loss has a higher one on both sides; what
is left of the budget looks for the edge above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FACTOR = 2.5
NOISE = 0.02  # of the loss at the start: a smaller difference between two rates says little
# in log rate, how far the best rate is from where the stream or the curvature puts it
WIDTH, WIDTH_SGD = 0.7, 1.5
# Of the fall in the first half: if the second falls by more, these steps are not yet the training.
SPEEDING = 0.6
# Chosen on the networks of experiments/learning_rate/horizon.py, before those of second_population.py were trained.
LONGER, LONG_RATES = 3, 4  # times the steps, and rates at most, if the usual ones turn out to be too few
LOOKED_AT = 2  # rehearsals that can say so: the first that does not raise the loss


@dataclass(frozen=True)
class Rung:
    """What is known of one rung: its score (lower is better) and whether the rate is too large."""

    score: float
    too_large: bool


def score(rate: float, loss: float, start_loss: float, centre: float, width: float = WIDTH) -> float:
    """Return loss / (NOISE start) + log(rate / center)^2 / (2 width^2), lower is better.

    Where a few steps tell rates apart the losses decide; if they do not, what was known before any step does.
    """
    return loss / (NOISE * abs(start_loss)) + math.log(rate / centre) ** 2 / (2 * width**2)


def too_few(start: float, middle: float, end: float, steady: bool = True) -> bool | None:
    """Return whether the loss hardly fell, or at a steady rate still falls as fast in the second half.

    None if it rose.

    >>> too_few(2.3, 2.2, 1.9), too_few(3.3, 2.9, 2.8), too_few(2.3, 2.4, 2.9)
    (True, False, None)
    """
    noise = 2 * NOISE * abs(start)
    if not end <= start + noise:
        return None
    return bool(start - end < noise or (steady and middle - end >= SPEEDING * (start - middle)))


def next_rung(steps: Mapping[float, Rung], most: int) -> float | None:
    """Return the next rung k, None when the minimum is inside and the edge is known, or the budget is used up.

    A rung between two others (half a step of the ladder) narrows the edge.
    """
    if len(steps) >= most:
        return None
    if not steps:
        return 0.0
    low, high = min(steps), max(steps)
    best = lowest(steps)
    if best is None:
        return low - 1
    if best == low:  # a score at the foot of the ladder says nothing about smaller rates
        return low - 1
    if best == high:
        return high + 1
    beyond = [k for k in sorted(steps) if k > best and steps[k].too_large]
    if not beyond:
        return high + 1
    below = max(k for k in steps if k < beyond[0])
    return (beyond[0] + below) / 2 if beyond[0] - below > 0.6 else None


def lowest(steps: Mapping[float, Rung]) -> float | None:
    """Return the rung of the lowest score; None if none is finite."""
    finite = {k: step.score for k, step in steps.items() if math.isfinite(step.score)}
    return min(finite, key=lambda k: finite[k]) if finite else None


def vertex(rates: Sequence[float], scores: Sequence[float]) -> float | None:
    """Return the rate of the lowest point of the parabola through the lowest score and its neighbors, over log rate.

    Between the neighbors in any case; the lowest rate itself if it stands at an end of the ladder.
    """
    finite = [
        (rate, score) for rate, score in sorted(zip(rates, scores, strict=True)) if math.isfinite(score)
    ]
    if not finite:
        return None
    k = min(range(len(finite)), key=lambda i: finite[i][1])
    if not 0 < k < len(finite) - 1:
        return finite[k][0]
    (x0, y0), (x1, y1), (x2, y2) = ((math.log(rate), score) for rate, score in finite[k - 1 : k + 2])
    left, right = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = (right - left) / (x2 - x0)
    if not bend > 0:
        return finite[k][0]
    lowest_at = (x0 + x1) / 2 - left / (2 * bend)
    return math.exp(min(max(lowest_at, x0), x2))


def between(rates: Sequence[float], too_large: Sequence[bool], best: float) -> tuple[float, float] | None:
    """Return the last rate that learned and the first above it that was too large; None if none was."""
    pairs = sorted(zip(rates, too_large, strict=True))
    above = [rate for rate, bad in pairs if bad and rate > best]
    if not above:
        return None
    below = [rate for rate, bad in pairs if rate < above[0] and not bad]
    return (below[-1] if below else best, above[0])


def most_steps(steps: int, rates: int, longer: bool) -> int:
    """Return training steps at most, all rehearsals together.

    >>> most_steps(20, 6, False), most_steps(20, 6, True)
    (120, 280)
    """
    usual = steps * rates
    return max(usual, steps * (LOOKED_AT + LONGER * min(rates, LONG_RATES))) if longer else usual


def describe_cost(steps: int, rates: int, longer: bool) -> str:
    """Return the cost as text.

    >>> describe_cost(20, 6, True)
    'at most 120 training steps (280 if 20 at a time turn out to be too few)'
    """
    more = (
        f" ({most_steps(steps, rates, True)} if {steps} at a time turn out to be too few)" if longer else ""
    )
    return f"at most {steps * rates} training steps{more}"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
