"""From the numbers of a trace to a calibrated probability of training; `verdict_limits` has the outcome of it.

    risk = w (|A| + |G|) + u F - b        P(trains) = 1 / (1 + exp(risk))

A and G are the late changes of the angle between tokens and of the relative gradient (twice those of the second half
of depth), F the late change of what the stream forgets:

    F_l = sum over the branches up to block l of log( q_sum / (skip^2 q_before) )

q_before enters a branch, q_sum = skip^2 q_before + (branch)^2 q_branch leaves it before any norm, so exp(-F_L) is the
share of the last stream that is still a copy of the first. Exponents may cancel between attention and MLP; this cannot.
Tokens that are all alike at the output, whichever blocks made them so, count as an A beyond every limit if each has a
label. If F is not known, because there is no description, the same form without F has its own constants.

The table `probability.json` is written by `python -m experiments.trainability.calibrate` from recorded runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import SearchBudget
from edgewise.files import Document
from edgewise.judgement.profile import TraceReading
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.blocks import Attention, Block, ResidualBranch, fold
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Probability
from edgewise.stability.lyapunov import growth
from edgewise.theory.simplex.state import Setting, SimplexState
from edgewise.theory.simplex.step import step

BEYOND = 200.0  # what has no finite log-change counts as this one, which is beyond every limit
TABLE = "probability.json"
ALIKE = {"gelu_tanh": "gelu"}  # the same function to three digits
# by readout: one label per token, or per sequence
CURVES = {"token": "token", "pooled": "pooled", "class": "pooled"}
CERTAIN = 1e-3  # no record is long enough for more certainty than this


def forgotten(
    architecture: Architecture,
    norms: Sequence[float],
    separations: Sequence[float],
    budget: SearchBudget | None = None,
) -> Array:
    """F at the embedding and after every block (L + 1), from an orbit's norm and separation at the same places.

    Inside a block the token-symmetric map is used, which is exact without mask and positions; all blocks at once.
    """
    setting = Setting(architecture.tokens, architecture.width, budget=budget)
    norm = np.asarray(norms[:-1], dtype=float)
    state = SimplexState(norm, norm * np.minimum(separations[:-1], 1.0))
    lost = np.zeros(architecture.depth)
    for branch in _all_blocks(architecture):
        lost = lost + _lost(branch, state, setting)
        state = step(state, branch, setting).state
    return np.concatenate([[0.0], np.cumsum(lost)])


def written_by_attention(
    architecture: Architecture, norms: Sequence[float], separations: Sequence[float]
) -> float:
    """Return the part of F over the whole depth that attention has: 1 - exp(-it) of a token comes from others."""
    setting = Setting(architecture.tokens, architecture.width)
    norm = np.asarray(norms[:-1], dtype=float)
    state = SimplexState(norm, norm * np.minimum(separations[:-1], 1.0))
    total = 0.0
    for branch in _all_blocks(architecture):
        heads = tuple(layer for layer in branch.layers if isinstance(layer, Attention))
        if heads:
            total += float(
                np.broadcast_to(_lost(replace(branch, layers=heads), state, setting), norm.shape).sum()
            )
        state = step(state, branch, setting).state
    return total


def _all_blocks(architecture: Architecture) -> Block:
    """One block whose gains are arrays over depth; the token-symmetric map sees no window."""
    knobs = architecture.knobs() | {"depth": 1, "window": None}
    return fold(
        {name: np.array(value) if isinstance(value, tuple) else value for name, value in knobs.items()}
    )[0]


def _lost(branch: ResidualBranch, state: SimplexState, setting: Setting) -> Array:
    """log( q_sum / (skip^2 q_before) ) of one branch in every block; infinite without a skip."""
    whole = step(state, replace(branch, norm=replace(branch.norm, outside=False)), setting).state.norm
    carried = branch.skip**2 * state.norm
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(carried > 0, np.log(whole) - np.log(carried), np.inf))


@dataclass(frozen=True)
class RiskScore:
    """The parts of the score, none negative; `error` is how well the sum of the first two is known."""

    angle: float
    gradient: float
    forgetting: float | None
    error: float = 0.0
    added: float | None = None  # F over the whole depth: what all blocks together add to the stream

    @property
    def exponents(self) -> float:
        return self.angle + self.gradient


def score_of(reading: TraceReading, budget: SearchBudget | None = None) -> RiskScore | None:
    """Return the score of a trace, without a gradient if none was followed; None if the stream left the range."""
    if reading.out_of_range.any():
        return None
    gradient = reading.decisive_gradient
    changes = [reading.angle.change] + ([] if gradient is None else [gradient.change])
    errors = [0.0 if math.isnan(change.error) else change.error for change in changes]
    angle, fading = (
        _size(reading.angle.change.scalar),
        0.0 if gradient is None else _size(gradient.change.scalar),
    )
    angle = angle if reading.collapsed is None else BEYOND
    forgetting, added = _forgetting(reading, budget)
    return RiskScore(angle, fading, forgetting, math.hypot(*errors), added)


def _forgetting(reading: TraceReading, budget: SearchBudget | None) -> tuple[float | None, float | None]:
    """Late change and total of F, by the description at the norms and overlaps of the trace, predicted or measured."""
    trace, architecture = reading.trace, reading.trace.architecture
    if not isinstance(architecture, Architecture) or architecture.depth != trace.depth:
        return None, None
    norms, separations = trace.blocks("norm"), trace.blocks("separation")
    logs = forgotten(architecture, norms.tolist(), separations.tolist(), budget)
    if not np.isfinite(logs).all():  # without a skip there is no F
        return None, None
    return _size(growth(logs[None]).change.scalar), max(0.0, float(logs[-1]))


def _size(change: float) -> float:
    return float(np.clip(abs(change), 0.0, BEYOND)) if math.isfinite(change) else BEYOND


@cache
def calibration() -> Document:
    """Return the table: constants by readout, the range of what was trained, and how it was made."""
    table: Document = json.loads(resources.files("edgewise.judgement").joinpath(TABLE).read_text())
    return table


def training_probability(
    score: RiskScore, trace: Trace, table: Mapping[str, Any] | None = None
) -> Probability:
    """P = 1 / (1 + exp(w (|A| + |G|) + u F - b)), with the constants of the readout.

    A readout per token was calibrated on text, one per sequence on images. `low` and `high`: the same with one family
    of blocks or another left out of the fit, and with the score at either end of its error. `table`: another than the
    shipped one, for tests of a forecast on networks that the shipped one has seen.
    """
    curves = _curves(score, trace, table or calibration())
    value, fits = chance(score, curves["all"]), (curves["all"], *curves["without"].values())
    ends = [chance(score, constants, shift) for constants in fits for shift in (-score.error, score.error)]
    # An unknown gradient can only lower it.
    low = CERTAIN if trace.log_gradient is None else min(value, *ends)
    return Probability(value, low, max(value, *ends), tuple(outside(trace)), forgetting=score.forgetting)


def risks(score: RiskScore, trace: Trace) -> dict[str, float]:
    """Return how much each part of the score adds to the risk, by its name."""
    constants = _curves(score, trace, calibration())["all"]
    return {
        "angle": constants["exponents"] * score.angle,
        "gradient": constants["exponents"] * score.gradient,
        "forgetting": constants["forgetting"] * (score.forgetting or 0.0),
    }


def curve_of(trace: Trace) -> str:
    """Return `token` for a label per token, `pooled` for one per sequence."""
    if isinstance(trace.architecture, Perceptron):
        return "pooled"
    return CURVES.get(trace.readout) or CURVES.get(trace.decisive_readout or "", "token")


def _curves(score: RiskScore, trace: Trace, table: Mapping[str, Any]) -> Mapping[str, Any]:
    """By where the loss is read (a perceptron has one label per input), and by whether F is known."""
    curves: Mapping[str, Any] = table["curves"][curve_of(trace)]
    return dict(curves["bare" if score.forgetting is None else "described"])


def chance(score: RiskScore, constants: Mapping[str, float], shift: float = 0.0) -> float:
    """Return the curve at one score; never nearer to 0 or 1 than what a record can show."""
    exponents = max(0.0, score.exponents + shift)
    forgetting = 0.0 if score.forgetting is None else score.forgetting
    risk = constants["exponents"] * exponents + constants["forgetting"] * forgetting - constants["offset"]
    return min(1 - CERTAIN, max(CERTAIN, 1 / (1 + math.exp(min(risk, 700.0)))))


def outside(trace: Trace) -> Iterator[str]:
    """In which ways a network is unlike those that were trained, one phrase each."""
    ranges, network = calibration()["range"], trace.architecture
    sizes = {"depth": trace.depth} | ({"tokens": network.tokens} if isinstance(network, Architecture) else {})
    units = {"depth": "layers" if isinstance(network, Perceptron) else "blocks", "tokens": "tokens"}
    for name, value in sizes.items():
        low, high = ranges[name]
        if not low <= value <= high:
            yield f"{value} {units[name]} (those had {low} to {high})"
    if not trace.readout and trace.decisive_readout == "own":
        yield "how it is read out is not known, taken as one label per token"
    if isinstance(network, Perceptron):
        yield "a perceptron (those were transformers)"
    elif network is None:
        yield "its blocks were not recognized, so how much they overwrite is not counted"
    else:
        for name in ("norm", "norm_kind", "activation"):
            value = getattr(network, name)
            if ALIKE.get(value, value) not in ranges[name]:
                word = getattr(value, "__name__", value)
                yield f"{name.replace('_', ' ')} {word} (those had {', '.join(ranges[name])})"
