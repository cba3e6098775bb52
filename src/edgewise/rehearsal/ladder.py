"""Ladder of rates: which rate is tried next, what the losses say, what all trials can cost.

Rates stand on a ladder, start * 2.5^k. It is climbed until the lowest fresh loss has a higher one on both sides; what
is left of the budget looks for the edge above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FACTOR = 2.5
LEFT = 0.005  # of what there is to learn: so far below the best constant answer of these batches it was left
NOISE = 0.02  # of what there is to learn: a smaller difference between two losses says little
# What a difference says of hundreds of steps, and in log rate how far the best rate is from the center of the ladder:
# where that was fitted (`KNOWN`: labels and a stream), and elsewhere for SGD and for others.
HORIZON, KNOWN, KNOWN_SGD = 0.1, 0.4, 1.0
WIDTH, WIDTH_SGD = 0.5, 1.5
TIE = 0.25  # of a score: a smaller rate that is no farther behind is taken
BRACKET = 3  # rehearsals that the best rate takes: itself and one on either side


@dataclass(frozen=True)
class Guess:
    """The loss of the best constant answer on the fresh batches; `loss` is None if it was not found, and why.

    floor    that of the labels themselves as the answer; None if it was not found
    labels   of one batch; None if there are none, or they were not found
    """

    loss: float | None
    words: str = ""  # what such an answer is
    why: str = ""
    floor: float | None = None
    labels: float | None = None

    @property
    def scale(self) -> float | None:
        """From guessing down to what the labels allow: what there is to learn from the input; None if unknown."""
        if self.loss is None:
            return None
        span = abs(self.loss) if self.floor is None else self.loss - self.floor
        return span if span > 0 else None

    def beaten(self, loss: float) -> bool:
        """Return whether a loss is below that of guessing (as `Rate.learned`); True where unknown."""
        return self.loss is None or loss < self.loss - LEFT * (self.scale or 0.0)

    def near(self, loss: float) -> bool:
        """Return whether a loss is that of guessing, within twice its noise."""
        return self.loss is not None and abs(loss - self.loss) <= 2 * NOISE * (self.scale or 0.0)


@dataclass(frozen=True)
class Rung:
    """What is known of one rung: its score (lower is better) and whether the rate is too large."""

    score: float
    too_large: bool
    learned: bool = True  # it left the loss of guessing, or got there from above


def score(rate: float, loss: float, unit: float, centre: float, width: float = WIDTH) -> float:
    """Return loss / unit + log(rate / center)^2 / (2 width^2), lower is better.

    unit  a difference of losses that counts: a share of what there is to learn, else of the size of the first loss
    Where a few steps tell rates apart the losses decide; if they do not, what was known before any step does.
    """
    return loss / unit + math.log(rate / centre) ** 2 / (2 * width**2)


def next_rung(steps: Mapping[float, Rung], most: int) -> float | None:
    """Return the next rung k, None when the minimum is inside and the edge is known, or the budget is used up.

    A rung between two others (half a step of the ladder) narrows the edge. While no rung has learned, the next ones
    lie below all others, farther apart each time.
    """
    if len(steps) >= most:
        return None
    if not steps:
        return 0.0
    low, high = min(steps), max(steps)
    if not any(step.learned for step in steps.values()) and (len(steps) >= BRACKET or steps[high].too_large):
        return low - max(1, len(steps) - BRACKET + 2)
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
    """Return the rung of the lowest score, the smaller one of a tie; None if none is finite."""
    finite = {k: step.score for k, step in steps.items() if math.isfinite(step.score)}
    return min(k for k in finite if finite[k] <= min(finite.values()) + TIE) if finite else None


def vertex(rates: Sequence[float], scores: Sequence[float]) -> float | None:
    """Return the rate of the lowest point of the parabola through the lowest score and its neighbors, over log rate.

    Between the neighbors in any case; the lowest rate itself if it stands at an end of the ladder.
    """
    finite = [
        (rate, score) for rate, score in sorted(zip(rates, scores, strict=True)) if math.isfinite(score)
    ]
    if not finite:
        return None
    least = min(value for _, value in finite)
    k = next(i for i, (_, value) in enumerate(finite) if value <= least + TIE)
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


def describe_cost(steps: int, rates: int) -> str:
    """Return the cost as text."""
    return f"at most {steps * rates} training steps"


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
