"""Limits of a verdict: from which numbers on a network trains, is risky, will not train, or has a finding.

The limits of the exponents alone are `SEVERITY_LIMITS` in `edgewise.stability.lyapunov`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from edgewise.judgement.probability import calibration
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Outcome, Probability, Slowdown


class OutcomeBands(NamedTuple):
    """The probabilities from which on, and up to which, a firm word is said."""

    trains_from: float
    fails_up_to: float


# "trains" or "will not train" is said if one would bet three to one on it: acting on it then pays as long as being
# wrong costs at most three times what being right saves. Between them a network is risky.
OUTCOME_BANDS = OutcomeBands(trains_from=0.75, fails_up_to=0.25)
SLOW = 2.0  # times the steps of a sound start, from which on a network that trains is risky: it is slow
QUIET = 0.1  # log-share of the stream that is the blocks' own, below which they are named quiet
FAR = 8  # times the deepest network of the calibration: the outcome is open from there on
SHARE = 1 / 3  # of the risk
FORGETS = 10.0  # late change of F from which it is mentioned: e^-10 of the stream is still the input
STARVED = math.log(1e-4)  # squared query/key gradient against its value at the first block
JUMP = 4.0  # log-change of the relative gradient across the first block
# log-share written by attention; times the steps of a usual start (research/forecast.md)
SMALL, SLOWER = 0.3, 4.0
# Times ln V: Gaussian logits with a first loss of 2 ln V have a variance of 2 ln V, from which on a softmax over V
# classes rests on a few of them, as attention does from a condensation of 1 on. Training must first unlearn that.
FIRST_LOSS = 2.0


def band(value: float) -> Outcome:
    """Return the word for a probability."""
    if value >= OUTCOME_BANDS.trains_from:
        return Outcome.TRAINS
    return Outcome.FAILS if value <= OUTCOME_BANDS.fails_up_to else Outcome.RISKY


def outcome_of(probability: Probability, slowdown: Slowdown | None = None) -> Outcome:
    """Return the answer: the band of the probability, unless it is open; what trains slowly is risky."""
    if probability.why_open:
        return Outcome.UNDECIDED
    outcome = band(probability.value)
    slow = slowdown is not None and slowdown.value >= SLOW
    return Outcome.RISKY if slow and outcome is Outcome.TRAINS else outcome


def why_open(probability: Probability, trace: Trace) -> str:
    """Say why a probability decides nothing; empty if it decides."""
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
