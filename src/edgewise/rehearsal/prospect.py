"""Prospect of a training: trains at a rate, slowly, or at no rate tried, with the probability from records.

    P = 1 / (1 + exp(w x + u v - b)),   x = -log max(1 - loss_20 / loss_0, 1 %),   v = -log(p / (1 - p))

p is the probability of the verdict; if there is none, the same form without v has constants of its own. The table
`chances.json` is written by `python -m experiments.trainability.combined` from recorded runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources

from edgewise.files import Document
from edgewise.nouns.verdict import Outcome, Probability, Verdict
from edgewise.rehearsal.ladder import NOISE
from edgewise.rehearsal.rate import Rate, Rehearsal, format_rate, tokens_alike

STEPS, MEAN = 20, 4  # the loss after 20 steps is the mean of the last four
LEAST_FALL = 0.01
CERTAIN = 1e-3  # no record is long enough for more certainty than this
TRAINS_FROM, FAILS_UP_TO = 0.75, 0.25  # firm words, as in a verdict
MORE_STEPS = "More steps, or another start, would tell more."
FARTHEST = 100  # times the steps of a rehearsal: no farther are its losses continued
SLOW = 20_000  # steps to half of the first loss from which on a training counts as slow
Steps = tuple[float | None, float | None, float | None]


@cache
def chance_table() -> Document:
    """Return constants with all families and without each, and how well they did on families left out."""
    values: Document = json.loads(resources.files("edgewise.rehearsal").joinpath("chances.json").read_bytes())
    return values


def fall(rate: Rate) -> float | None:
    """Return the share of the first loss that is gone after 20 steps, at the best rate tried.

    None if fewer were run.
    """
    rows = [r.losses[STEPS - MEAN : STEPS] for r in rate.rehearsals if len(r.losses) >= STEPS]
    means = [sum(row) / MEAN for row in rows]
    finite = [mean for mean in means if math.isfinite(mean)]
    return 1 - min(finite) / rate.start.loss if finite and rate.start.loss > 0 else None


def chances(rate: Rate, verdict: Verdict | None = None) -> Probability | None:
    """Return the probability that this network trains.

    `low` and `high`: as one family or another is left out of the fit.
    """
    share = fall(rate)
    if share is None:
        return None
    start = None if verdict is None or verdict.probability is None else verdict.probability.value
    curves = chance_table()["curves"]["alone" if start is None else "both"]
    values = [chance(share, start, constants) for constants in (curves["all"], *curves["without"].values())]
    return Probability(values[0], min(values), max(values), _outside(rate))


def chance(share: float, start: float | None, constants: Mapping[str, float]) -> float:
    """Return the curve at one fall of the loss, and one probability of the start."""
    risk = constants["fall"] * -math.log(max(share, LEAST_FALL)) - constants["offset"]
    if start is not None:
        p = min(max(start, CERTAIN), 1 - CERTAIN)
        risk += constants["verdict"] * -math.log(p / (1 - p))
    return min(1 - CERTAIN, max(CERTAIN, 1 / (1 + math.exp(min(risk, 700.0)))))


def _outside(rate: Rate) -> tuple[str, ...]:
    name = rate.optimizer.split(" ")[0].rstrip(",")
    phrases = [] if name == "AdamW" else [f"{name} (those had AdamW)"]
    if rate.warmup > STEPS // 2:
        phrases.append(f"{rate.warmup} steps of warm-up (those had 8)")
    return tuple(phrases)


class Prospect(Enum):
    """What training is going to be."""

    TRAINS = "trains"
    SLOW = "trains slowly"
    DEAD = "dead at every rate tried"
    UNDECIDED = "not decided by these steps"


@dataclass(frozen=True)
class Outlook:
    """The combined answer, with the steps to half of the first loss as the losses extrapolate (95 % interval).

    Steps beyond a hundred times those of the rehearsal are None: no losses are continued that far.

    `probability`: how often networks like this went on to train; a network is said to train from 75 % on.
    """

    prospect: Prospect
    rate: float | None
    sentence: str
    steps: float | None = None
    steps_low: float | None = None
    steps_high: float | None = None
    cure: str = ""
    probability: Probability | None = None


def outlook(rate: Rate, verdict: Verdict | None = None) -> Outlook:
    """Return the combined answer of a rehearsal and, if there is one, of the verdict on the untrained network.

    rate     from `edgewise.learning_rate`
    verdict  from `edgewise.judge`; what it says about the start becomes the reason and the cure
    """
    odds = chances(rate, verdict)
    cured = verdict is None or not verdict.findings or verdict.outcome is Outcome.TRAINS
    cure = "" if verdict is None or cured else verdict.findings[0].remedy
    failing = verdict is not None and verdict.outcome is Outcome.FAILS  # at its start
    alike = tokens_alike(rate.start, rate.rehearsals)
    if rate.learned is False and _fall(rate) > -_noise(rate) and not (failing or alike):
        why = rate.reason or f"at every rate the loss is still above that of guessing ({rate.guess:.3g})"
        sentence = f"Not decided: {why}. {MORE_STEPS if rate.best is None else ''}".rstrip()
        return Outlook(Prospect.UNDECIDED, rate.best, sentence, cure=cure)
    if rate.best is None or alike or _agreed_dead(rate, verdict):
        low, high = (format_rate(r) for r in (rate.tried[0], rate.tried[-1]))
        why = (
            "its tokens are alike, so it can learn no more than how frequent the labels are"
            if alike
            else (
                (rate.reason or "no rate lowered the loss on fresh batches").replace(
                    f" from {low} to {high}", ""
                )
            )
        )
        agreed = odds if odds is not None and odds.value <= FAILS_UP_TO else None
        sentence = f"Dead at every rate tried ({low} to {high}): {why}."
        return Outlook(Prospect.DEAD, None, sentence, cure=cure, probability=agreed)
    nearest = min(rate.rehearsals, key=lambda r: abs(math.log(r.rate / rate.best)))  # type: ignore[operator]
    steps, horizon = steps_to(nearest, rate.start.loss / 2), FARTHEST * len(nearest.losses)
    stated: Steps = tuple(None if n is None or n > horizon else n for n in steps)  # type: ignore[assignment]
    if _fall(rate) < _noise(rate):
        sentence = (
            f"Not decided: {rate.steps} steps at any rate hardly changed the loss; rehearse more of them."
        )
        return Outlook(Prospect.UNDECIDED, rate.best, sentence, *stated, cure=cure, probability=odds)
    if odds is not None and odds.value < TRAINS_FROM:
        sentence = f"Not decided: {STEPS} steps took {_share(rate)} off the loss. {_odds(odds)}"
        return Outlook(Prospect.UNDECIDED, rate.best, sentence, *stated, cure=cure, probability=odds)
    if steps[0] is None or steps[0] > SLOW:
        sentence = f"Trains slowly at {format_rate(rate.best)}: {_when(steps, horizon)}."
        return Outlook(Prospect.SLOW, rate.best, sentence, *stated, cure=cure, probability=odds)
    doubt = (
        " The verdict on the start says otherwise; these steps were trained, so they count."
        if failing
        else ""
    )
    sentence = f"Trains at {format_rate(rate.best)}: {_when(steps, horizon)}. {_odds(odds)}".rstrip() + doubt
    return Outlook(Prospect.TRAINS, rate.best, sentence, *stated, probability=odds)


def _odds(odds: Probability | None) -> str:
    """`About 93 % of such networks trained (90 to 96 %).`"""
    if odds is None:
        return ""
    return " ".join(filter(None, [f"{odds.sentence[0].upper()}{odds.sentence[1:]}.", odds.unlike]))


def _share(rate: Rate) -> str:
    return f"{max(0.0, fall(rate) or 0.0):.0%}".replace("%", " %")


def steps_to(rehearsal: Rehearsal, level: float) -> Steps:
    """Return steps to a loss by the power law loss = c t^-p through the second half of a rehearsal, with a 95 %
    interval.

    From the standard error of p; None if the loss does not fall, or has no logarithm.
    """
    half = len(rehearsal.losses) // 2
    points = [
        (t, loss)
        for t, loss in enumerate(rehearsal.losses, 1)
        if t > half and math.isfinite(loss) and loss > 0
    ]
    if len(points) < 4 or not level > 0:
        return None, None, None
    x, y = [math.log(t) for t, _ in points], [math.log(loss) for _, loss in points]
    slope, error = _slope(x, y)
    last, mean_x, mean_y = x[-1], sum(x) / len(x), sum(y) / len(y)

    def at(p: float) -> float:
        if p <= 0:
            return math.inf
        exponent = mean_x + (mean_y - math.log(level)) / p
        return math.exp(max(exponent, last)) if exponent < 300 else math.inf

    best, fast, slow = (at(-slope + k * 1.96 * error) for k in (0, 1, -1))
    return (best if math.isfinite(best) else None), (fast if math.isfinite(fast) else None), slow


def _slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Least squares, with its standard error."""
    n, mean_x, mean_y = len(x), sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    rest = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return slope, math.sqrt(rest / (n - 2) / spread)


def _when(steps: Steps, horizon: int) -> str:
    """When the loss is halved, no farther than the losses can be continued."""
    best, low, high = steps
    if best is None:
        return "its losses do not say when they are halved"
    if best > horizon:
        return (
            f"half of its first loss takes more than {horizon:,} steps, as far as its losses can be continued"
        )
    upper = f"more than {horizon:,}" if high is None or high > horizon else f"{high:,.0f}"
    return (
        f"half of its first loss after about {best:,.0f} steps, extrapolated ({low or best:,.0f} to {upper})"
    )


def _fall(rate: Rate) -> float:
    return rate.start.loss - min(r.loss for r in rate.rehearsals)


def _noise(rate: Rate) -> float:
    return 2 * NOISE * abs(rate.start.loss)


def _agreed_dead(rate: Rate, verdict: Verdict | None) -> bool:
    """Return whether the start is judged not to train and no rate has moved the loss."""
    failing = verdict is not None and verdict.outcome is Outcome.FAILS
    return failing and _fall(rate) < _noise(rate)
