"""The calibrated probability: how often networks of such a score trained, and whether this one is like them.

The table `probability.json` is written by `python -m experiments.trainability.calibrate` from recorded runs.
The score has a third part beside the two exponents, how much of the input the stream forgets:

    F_l = sum over the branches up to block l of log( q_sum / (skip^2 q_before) )

q_before enters a branch, q_sum = skip^2 q_before + (branch)^2 q_branch leaves it before any norm, so exp(-F_L) is the
share of the last stream that is still a copy of the first. Exponents may cancel between attention and MLP; this cannot.
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
from edgewise.blocks import Block, Branch, fold
from edgewise.judgement.reading import Reading
from edgewise.stability.lyapunov import growth
from edgewise.theory.simplex.recursion import Setting, apply_branch
from edgewise.theory.simplex.state import Simplex
from edgewise.trace import Trace
from edgewise.verdict import Probability

TABLE = "probability.json"
ALIKE = {"gelu_tanh": "gelu"}  # the same function to three digits


@cache
def calibration() -> dict[str, Any]:
    """The table: constants by readout, the range of what was trained, and how it was made."""
    table: dict[str, Any] = json.loads(resources.files("edgewise.judgement").joinpath(TABLE).read_text())
    return table


def training_probability(reading: Reading) -> Probability | None:
    """P = 1 / (1 + exp(w s + u F - b)), s = |angle change| + |relative gradient change|, F the stream's forgetting.

    All three are late changes, twice those of the second half of depth. A readout per token was calibrated on text, a
    pooled one on images. `low` and `high`: the same curve fitted without one family of blocks or another. None without
    a gradient, for another readout, where the stream left the range of numbers, or for what is not a transformer.
    """
    trace, architecture = reading.trace, reading.trace.architecture
    if not isinstance(architecture, Architecture) or reading.relative is None:
        return None
    curves = calibration()["curves"].get(trace.readouts[0])
    norms, separations = trace.blocks("norm"), trace.blocks("separation")
    if curves is None or not (np.isfinite(norms).all() and (norms > 0).all()):
        return None
    score = abs(reading.angle.change.scalar) + abs(reading.relative.change.scalar)
    forgetting = abs(growth(forgotten(architecture, norms.tolist(), separations.tolist())[None]).change.scalar)
    each = [_curve(score, forgetting, constants) for constants in (curves["all"], *curves["without"].values())]
    return Probability(each[0], min(each), max(each), outside(trace, architecture))


def _curve(score: float, forgetting: float, constants: dict[str, float]) -> float:
    risk = constants["exponents"] * score + constants["forgetting"] * forgetting - constants["offset"]
    return 0.0 if not math.isfinite(risk) else 1 / (1 + math.exp(min(risk, 700.0)))


def outside(trace: Trace, architecture: Architecture) -> tuple[str, ...]:
    """In which ways a network is unlike those that were trained, one phrase each."""
    ranges = calibration()["range"]
    phrases = []
    for name, value in (("depth", trace.depth), ("tokens", architecture.tokens)):
        low, high = ranges[name]
        if not low <= value <= high:
            phrases.append(f"{name} {value}, calibrated from {low} to {high}")
    for name in ("norm", "norm_kind", "activation"):
        value = getattr(architecture, name)
        if ALIKE.get(value, value) not in ranges[name]:
            phrases.append(f"{name} {value}, calibrated on {', '.join(ranges[name])}")
    if trace.sampled and not trace.source.startswith("theory"):
        phrases.append("measured, calibrated on theory")
    return tuple(phrases)


def forgotten(architecture: Architecture, norms: Sequence[float], separations: Sequence[float]) -> Array:
    """F at the embedding and after every block (L + 1), from an orbit's norm and separation at the same places.

    Inside a block the token-symmetric map is used, which is exact without mask and positions; all blocks at once.
    """
    setting = Setting(architecture.tokens, architecture.width)
    norm = np.asarray(norms[:-1], dtype=float)
    state = Simplex(norm, norm * np.minimum(separations[:-1], 1.0))
    lost = np.zeros(architecture.depth)
    for branch in _all_blocks(architecture):
        lost = lost + _lost(branch, state, setting)
        state = apply_branch(branch, state, setting).state
    return np.concatenate([[0.0], np.cumsum(lost)])


def _all_blocks(architecture: Architecture) -> Block:
    """One block whose gains are arrays over depth; the token-symmetric map sees no window."""
    knobs = architecture.knobs() | {"depth": 1, "window": None}
    return fold({name: np.array(value) if isinstance(value, tuple) else value for name, value in knobs.items()})[0]


def _lost(branch: Branch, state: Simplex, setting: Setting) -> Array:
    """log( q_sum / (skip^2 q_before) ) of one branch in every block; infinite without a skip."""
    whole = apply_branch(replace(branch, norm=replace(branch.norm, outside=False)), state, setting).state.norm
    carried = branch.skip**2 * state.norm
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(carried > 0, np.log(whole) - np.log(carried), np.inf))
