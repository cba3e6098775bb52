"""How much of the input the stream forgets: the part of every sum that is not carried by the skip.

    F_l = sum over the branches up to block l of log( q_sum / (skip^2 q_before) )

q_before enters a branch, q_sum = skip^2 q_before + (branch)^2 q_branch leaves it before any norm, so exp(-F_L) is the
share of the last stream that is still a copy of the first. Exponents may cancel between attention and MLP; this cannot.

How often networks of such a score trained: the calibrated forecast, with the range it was calibrated on.

The table `probability.json` is written by `python -m experiments.trainability.calibrate` from recorded runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from edgewise.architecture import Architecture
from edgewise.arrays import Array
from edgewise.blocks import Branch
from edgewise.theory.simplex.recursion import Setting, apply_branch
from edgewise.theory.simplex.state import Simplex
from edgewise.trace import Trace
from edgewise.verdict import Exponent, Probability

TABLE = "probability.json"
ALIKE = {"gelu_tanh": "gelu"}  # the same function to three digits


@cache
def calibration() -> dict[str, Any]:
    """The table: constants by readout, the range of what was trained, and how it was made."""
    found: dict[str, Any] = json.loads(resources.files("edgewise.judgement").joinpath(TABLE).read_text())
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




def forgotten(architecture: Architecture, norms: Sequence[float], separations: Sequence[float]) -> Array:
    """F at the embedding and after every block (L + 1), from an orbit's norm and separation at the same places.

    Inside a block the token-symmetric map is used, which is exact without mask and positions.
    """
    setting = Setting(architecture.tokens, architecture.width)
    found = [0.0]
    for block, norm, separation in zip(architecture.blocks, norms[:-1], separations[:-1], strict=True):
        state, lost = Simplex(np.asarray(norm), np.asarray(norm * min(separation, 1.0))), 0.0
        for branch in block:
            lost += _lost(branch, state, setting)
            state = apply_branch(branch, state, setting).state
        found.append(found[-1] + lost)
    return np.array(found)


def _lost(branch: Branch, state: Simplex, setting: Setting) -> float:
    """log( q_sum / (skip^2 q_before) ) of one branch; infinite without a skip."""
    whole = apply_branch(replace(branch, norm=replace(branch.norm, outside=False)), state, setting).state.norm
    kept = branch.skip**2 * state.norm
    return float(np.log(whole / kept)) if kept > 0 else float("inf")
