"""The calibrated probability: how often networks of such a score trained, and whether this one is like them.

The table `probability.json` is written by `python -m experiments.trainability.calibrate` from recorded runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from edgewise.judgement.score import Score
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.perceptron import Perceptron
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Probability

TABLE = "probability.json"
ALIKE = {"gelu_tanh": "gelu"}  # the same function to three digits
CURVES = {
    "token": "token",
    "pooled": "pooled",
    "class": "pooled",
}  # by readout: one label per token, or per sequence
CERTAIN = 1e-3  # no record is long enough for more certainty than this


@cache
def calibration() -> dict[str, Any]:
    """The table: constants by readout, the range of what was trained, and how it was made."""
    table: dict[str, Any] = json.loads(resources.files("edgewise.judgement").joinpath(TABLE).read_text())
    return table


def training_probability(score: Score, trace: Trace, table: Mapping[str, Any] | None = None) -> Probability:
    """P = 1 / (1 + exp(w (|A| + |G|) + u F - b)), with the constants of the readout.

    A readout per token was calibrated on text, one per sequence on images. `low` and `high`: the same with one family
    of blocks or another left out of the fit, and with the score at either end of its error. `table`: another than the
    shipped one, for tests of a forecast on networks that the shipped one has seen.
    """
    curves = (table or calibration())["curves"][_curve_of(trace)][
        "bare" if score.forgetting is None else "described"
    ]
    value = chance(score, curves["all"])
    ends = [
        chance(score, constants, shift)
        for constants in _each(curves)
        for shift in (-score.error, score.error)
    ]
    low = (
        CERTAIN if trace.log_gradient is None else min(value, *ends)
    )  # an unknown gradient can only lower it
    return Probability(value, low, max(value, *ends), tuple(outside(trace)), forgetting=score.forgetting)


def risks(score: Score, trace: Trace) -> dict[str, float]:
    """How much each part of the score adds to the risk, by its name."""
    constants = calibration()["curves"][_curve_of(trace)][
        "bare" if score.forgetting is None else "described"
    ]["all"]
    return {
        "angle": constants["exponents"] * score.angle,
        "gradient": constants["exponents"] * score.gradient,
        "forgetting": constants["forgetting"] * (score.forgetting or 0.0),
    }


def _curve_of(trace: Trace) -> str:
    """By where the loss is read; a perceptron has one label per input."""
    if isinstance(trace.architecture, Perceptron):
        return "pooled"
    return CURVES.get(trace.readout) or CURVES.get(trace.decisive_readout or "", "token")


def _each(curves: Mapping[str, Any]) -> Iterator[Mapping[str, float]]:
    yield curves["all"]
    yield from curves["without"].values()


def chance(score: Score, constants: Mapping[str, float], shift: float = 0.0) -> float:
    """The curve at one score; never nearer to 0 or 1 than what a record can show."""
    exponents = max(0.0, score.exponents + shift)
    forgetting = 0.0 if score.forgetting is None else score.forgetting
    risk = constants["exponents"] * exponents + constants["forgetting"] * forgetting - constants["offset"]
    return min(1 - CERTAIN, max(CERTAIN, 1 / (1 + math.exp(min(risk, 700.0)))))


def outside(trace: Trace) -> Iterator[str]:
    """In which ways a network is unlike those that were trained, one phrase each."""
    ranges, network = calibration()["range"], trace.architecture
    yield from _sizes(trace, ranges)
    if not trace.readout and trace.decisive_readout == "own":
        yield "how it is read out is not known, taken as one label per token"
    if isinstance(network, Perceptron):
        yield "a perceptron (those were transformers)"
    elif network is None:
        yield "its blocks were not recognised, so how much they overwrite is not counted"
    else:
        for name in ("norm", "norm_kind", "activation"):
            value = getattr(network, name)
            if ALIKE.get(value, value) not in ranges[name]:
                yield f"{name.replace('_', ' ')} {_word(value)} (those had {', '.join(ranges[name])})"


def _sizes(trace: Trace, ranges: Mapping[str, Any]) -> Iterator[str]:
    network = trace.architecture
    sizes = {"depth": trace.depth} | ({"tokens": network.tokens} if isinstance(network, Architecture) else {})
    units = {"depth": "layers" if isinstance(network, Perceptron) else "blocks", "tokens": "tokens"}
    for name, value in sizes.items():
        low, high = ranges[name]
        if not low <= value <= high:
            yield f"{value} {units[name]} (those had {low} to {high})"


def _word(value: Any) -> str:
    return str(getattr(value, "__name__", value))
