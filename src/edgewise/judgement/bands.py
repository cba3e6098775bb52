"""From a probability to one word.

A firm word, "trains" or "will not train", is said where one would bet three to one on it: acting on it then pays as
long as being wrong costs at most three times what being right saves. Between them a network is risky. An interval that
reaches from one firm word to the other says nothing, and neither does a depth far beyond all that was trained.
"""

from __future__ import annotations

from edgewise.judgement.probability import calibration
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Outcome, Probability

TRAINS_FROM, FAILS_UP_TO = 0.75, 0.25
FAR = 8  # times the deepest network of the calibration


def band(value: float) -> Outcome:
    """The word for a probability."""
    if value >= TRAINS_FROM:
        return Outcome.TRAINS
    return Outcome.FAILS if value <= FAILS_UP_TO else Outcome.RISKY


def outcome_of(probability: Probability) -> Outcome:
    """The answer: the band of the probability, unless it is open."""
    return Outcome.UNDECIDED if probability.why_open else band(probability.value)


def why_open(probability: Probability, trace: Trace) -> str:
    """Why a probability decides nothing, in words; empty where it decides."""
    low, high = probability.low, probability.high
    deepest = calibration()["range"]["depth"][1]
    if band(low) is Outcome.FAILS and band(high) is Outcome.TRAINS:
        missing = "no gradient was followed, so " if trace.log_gradient is None else ""
        return f"{missing}the probability may be anything from {low:.0%} to {high:.0%}"
    if trace.log_gradient is None and band(high) is not Outcome.FAILS:
        return "no gradient was followed through this network"
    if trace.depth > FAR * deepest:
        return f"{trace.depth} blocks are far beyond the deepest network that was trained, {deepest}"
    return ""
