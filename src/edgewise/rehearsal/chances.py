"""How often networks went on to train whose loss fell so far in 20 steps, from a start with such a verdict.

    P = 1 / (1 + exp(w x + u v - b)),   x = -log max(1 - loss_20 / loss_0, 1 %),   v = -log(p / (1 - p))

p is the probability of the verdict; where there is none, the same form without v has constants of its own. The table
`chances.json` is written by `python -m experiments.trainability.combined` from recorded runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from edgewise.nouns.verdict import Probability, Verdict
from edgewise.rehearsal.rate import Rate

STEPS, MEAN = 20, 4  # the loss after 20 steps is the mean of the last four
LEAST_FALL = 0.01
CERTAIN = 1e-3  # no record is long enough for more certainty than this
TRAINS_FROM, FAILS_UP_TO = 0.75, 0.25  # firm words, as in a verdict


@cache
def table() -> dict[str, Any]:
    """Constants with all families and without each, and how well they did on families left out."""
    values: dict[str, Any] = json.loads(
        resources.files("edgewise.rehearsal").joinpath("chances.json").read_text()
    )
    return values


def fall(rate: Rate) -> float | None:
    """The share of the first loss that is gone after 20 steps, at the best rate tried; None where fewer were run."""
    rows = [r.losses[STEPS - MEAN : STEPS] for r in rate.rehearsals if len(r.losses) >= STEPS]
    means = [sum(row) / MEAN for row in rows]
    finite = [mean for mean in means if math.isfinite(mean)]
    return 1 - min(finite) / rate.start.loss if finite and rate.start.loss > 0 else None


def chances(rate: Rate, verdict: Verdict | None = None) -> Probability | None:
    """The probability that this network trains; `low` and `high`: as one family or another is left out of the fit."""
    share = fall(rate)
    if share is None:
        return None
    start = None if verdict is None or verdict.probability is None else verdict.probability.value
    curves = table()["curves"]["alone" if start is None else "both"]
    values = [chance(share, start, constants) for constants in (curves["all"], *curves["without"].values())]
    return Probability(values[0], min(values), max(values), _outside(rate))


def chance(share: float, start: float | None, constants: Mapping[str, float]) -> float:
    """The curve at one fall of the loss, and one probability of the start."""
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
