"""From a probability to one word.

A firm word, "trains" or "will not train", is said where one would bet three to one on it: acting on it then pays as
long as being wrong costs at most three times what being right saves. Between them a network is risky. An interval that
reaches from one firm word to the other says nothing, and neither does a depth far beyond all that was trained.
"""

from __future__ import annotations

from edgewise.judgement.probability import calibration
from edgewise.trace import Trace
from edgewise.verdict import Outcome, Probability

TRAINS_FROM, FAILS_UP_TO = 0.75, 0.25
FAR = 8  # times the deepest network of the calibration


def band(value: float) -> Outcome:
    """The word for a probability."""
    if value >= TRAINS_FROM:
        return Outcome.TRAINS
    return Outcome.FAILS if value <= FAILS_UP_TO else Outcome.RISKY


def answer(probability: Probability | None, trace: Trace) -> tuple[Outcome, str]:
    """The outcome, and why it is open where it is."""
    if probability is None:
        return Outcome.UNDECIDED, "no gradient was followed through this network"
    if band(probability.low) is Outcome.FAILS and band(probability.high) is Outcome.TRAINS:
        return Outcome.UNDECIDED, (
            f"the probability may be anything from {probability.low:.0%} to {probability.high:.0%}"
        )
    deepest = calibration()["range"]["depth"][1]
    if trace.depth > FAR * deepest:
        return Outcome.UNDECIDED, f"{trace.depth} blocks are far beyond the deepest network that was trained, {deepest}"
    return band(probability.value), ""
