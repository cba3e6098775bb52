"""How often networks of such a score trained: the calibrated forecast, with the range it was calibrated on.

The table `training_probability.json` is written by `python -m edgewise.study.forecast_calibration` from recorded runs.
"""

from __future__ import annotations

import json
import math
from functools import cache
from importlib import resources
from typing import Any

from edgewise.architecture import Architecture
from edgewise.trace import Trace
from edgewise.verdict import Exponent, Probability

TABLE = "training_probability.json"
ALIKE = {"gelu_tanh": "gelu"}  # the same function to three digits


@cache
def calibration() -> dict[str, Any]:
    """The table: constants by readout, the range of what was trained, and how it was made."""
    found: dict[str, Any] = json.loads(resources.files("edgewise.stability").joinpath(TABLE).read_text())
    return found


def training_probability(
    trace: Trace, angle: Exponent, gradient: Exponent | None, forgetting: float
) -> Probability | None:
    """P = 1 / (1 + exp(w s + u F - b)), s = |angle change| + |relative gradient change|, F the stream's forgetting.

    All three are doubled second halves of the depth. A readout per token was calibrated on text, a pooled one on
    images. `low` and `high`: the same curve fitted without one family of blocks or another. None without a gradient,
    for another readout, or where the trace is not of a transformer.
    """
    if not isinstance(trace.architecture, Architecture) or gradient is None or not trace.readouts:
        return None
    curves = calibration()["curves"].get(trace.readouts[0])
    if curves is None:
        return None
    score = abs(angle.change or 0.0) + abs(gradient.change or 0.0)
    each = [_curve(score, forgetting, constants) for constants in (curves["all"], *curves["without"].values())]
    return Probability(each[0], min(each), max(each), outside(trace, trace.architecture))


def _curve(score: float, forgetting: float, constants: dict[str, float]) -> float:
    risk = constants["exponents"] * score + constants["forgetting"] * forgetting - constants["offset"]
    return 0.0 if not math.isfinite(risk) else 1 / (1 + math.exp(min(risk, 700.0)))


def outside(trace: Trace, architecture: Architecture) -> tuple[str, ...]:
    """In which ways a network is unlike those that were trained, one phrase each."""
    known = calibration()["range"]
    found = []
    for name, value in (("depth", trace.depth), ("tokens", architecture.tokens)):
        low, high = known[name]
        if not low <= value <= high:
            found.append(f"{name} {value}, calibrated from {low} to {high}")
    for name in ("norm", "norm_kind", "activation"):
        value = getattr(architecture, name)
        if ALIKE.get(value, value) not in known[name]:
            found.append(f"{name} {value}, calibrated on {', '.join(known[name])}")
    if trace.sampled and not trace.source.startswith("theory"):
        found.append("measured, calibrated on theory")
    return tuple(found)
