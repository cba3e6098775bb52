"""From the numbers of a trace to a calibrated probability of training, the expected slowdown, and the outcome.

    risk = w (|A| + |G|) + u F - b        P(trains) = 1 / (1 + exp(risk))

A and G are the late changes of the angle between tokens and of the relative gradient (twice those of the second half
of depth), F the late change of what the stream forgets:

    F_l = sum over the branches up to block l of log( q_sum / (skip^2 q_before) )

q_before enters a branch, q_sum = skip^2 q_before + (branch)^2 q_branch leaves it before any norm, so exp(-F_L) is the
share of the last stream that is still a copy of the first. Exponents may cancel between attention and MLP; this cannot.
Tokens that are all alike at the output, whichever blocks made them so, count as an A beyond every limit if each has a
label. If F is not known, for want of a description, the same form without F has its own constants.

The table `probability.json` is written by `python -m experiments.trainability.calibrate` from recorded runs.

How many times the steps of a sound start a network needs follows from what its start shows:

    log slowdown = sum of weight times part + d

quiet   log of how far F over the whole depth is below `ENOUGH`: the blocks learn late
full    log of how far it is above: they write over what the stream carries
small   log of how far the gains of the matrices are below one, in the mean over the blocks
large   log of how far they are above: a step changes large weights little
loud    log of how far the standard deviation of the embedding is above `SOFT`: steps change it little
cut     log of the depth, without any skip
risk    the risk above
excess  log of the first loss over that of guessing, if it was measured

All weights depend on where the loss is read: with one label for a sequence blocks may write much more. The table
`slowdown.json` is written by `python -m experiments.atlas.forecast` from the trained atlas. The limits of the exponents
alone are `SEVERITY_LIMITS` in `edgewise.stability.lyapunov`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import SearchBudget
from edgewise.files import Document
from edgewise.judgement.profile import TraceReading
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.blocks import Attention, ResidualBranch, fold
from edgewise.nouns.trace import FirstLoss, Trace
from edgewise.nouns.verdict import Outcome, Probability, Slowdown
from edgewise.stability.lyapunov import growth
from edgewise.theory.simplex.state import Setting, SimplexState
from edgewise.theory.simplex.step import step

BEYOND = 200.0  # what has no finite log-change counts as this one, which is beyond every limit
TABLE = "probability.json"
ALIKE = {"gelu_tanh": "gelu"}  # the same function to three digits
# by readout: one label per token, or per sequence
CURVES = {"token": "token", "pooled": "pooled", "class": "pooled"}
SIZES = ("depth", "tokens")
NEAR = 1.1  # times the largest size that was tried is not outside of it
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
    lost = np.zeros(architecture.depth)
    for branch, state, setting in _all_blocks(architecture, norms, separations, budget):
        lost = lost + _lost(branch, state, setting)
    return np.concatenate([[0.0], np.cumsum(lost)])


def written_by_attention(
    architecture: Architecture, norms: Sequence[float], separations: Sequence[float]
) -> float:
    """Return the part of F over the whole depth that attention has: 1 - exp(-it) of a token comes from others."""
    total = 0.0
    for branch, state, setting in _all_blocks(architecture, norms, separations):
        heads = tuple(layer for layer in branch.layers if isinstance(layer, Attention))
        if heads:
            lost = _lost(replace(branch, layers=heads), state, setting)
            total += float(np.broadcast_to(lost, architecture.depth).sum())
    return total


def _all_blocks(
    architecture: Architecture,
    norms: Sequence[float],
    separations: Sequence[float],
    budget: SearchBudget | None = None,
) -> Iterator[tuple[ResidualBranch, SimplexState, Setting]]:
    """Yield every branch of a block, its gains arrays over depth, with the state before it in every block.

    The token-symmetric map sees no window.
    """
    setting = Setting(architecture.tokens, architecture.width, budget=budget)
    norm = np.asarray(norms[:-1], dtype=float)
    state = SimplexState(norm, norm * np.minimum(separations[:-1], 1.0))
    knobs = architecture.knobs() | {"depth": 1, "window": None}
    arrays = {name: np.array(value) if isinstance(value, tuple) else value for name, value in knobs.items()}
    for branch in fold(arrays)[0]:
        yield branch, state, setting
        state = step(state, branch, setting).state


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
    table: Document = json.loads(resources.files("edgewise.judgement").joinpath(TABLE).read_bytes())
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
    """Return the curve at one score."""
    return float(curve_at(max(0.0, score.exponents + shift), score.forgetting or 0.0, constants))


def curve_at(exponents: Array | float, forgetting: Array | float, constants: Mapping[str, float]) -> Array:
    """P = 1 / (1 + exp(w s + u F - b)), never nearer to 0 or 1 than what a record can show."""
    risk = constants["exponents"] * exponents + constants["forgetting"] * forgetting - constants["offset"]
    return np.asarray(np.clip(1 / (1 + np.exp(np.clip(risk, -700, 700))), CERTAIN, 1 - CERTAIN))


@cache
def tried() -> Document:
    """Return what the networks were like that were trained for either table: sizes from least to most, and kinds.

    The probability is fitted on the first and held on the second (research/forecast.md).
    """
    tables = (calibration()["range"], slowdown_table()["range"])
    both = {name: [value for table in tables for value in table[name]] for name in tables[0]}
    return {
        name: [min(values), max(values)] if name in SIZES else sorted(set(values))
        for name, values in both.items()
    }


def outside(trace: Trace) -> Iterator[str]:
    """In which ways a network is unlike those that were trained, one phrase each."""
    ranges, network = tried(), trace.architecture
    sizes = {"depth": trace.depth} | ({"tokens": network.tokens} if isinstance(network, Architecture) else {})
    units = {"depth": "layers" if isinstance(network, Perceptron) else "blocks", "tokens": "tokens"}
    for name, value in sizes.items():
        low, high = ranges[name]
        if not low / NEAR <= value <= high * NEAR:
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


SLOWDOWN_TABLE = "slowdown.json"
# F that is neither too little nor too much, and below which less of it changes nothing: weights that grow in the first
# steps do not start from zero. Chosen with the constants, among nine pairs on 26 shapes (research/forecast.md).
ENOUGH = {"token": 1.0, "pooled": 8.0}
LEAST = 1e-2
SOFT = 0.5  # standard deviation of what enters the first block, chosen among six on 41 shapes
FAINTEST = 1e-4  # a gain below this one counts as it
LOUDEST = 10.0  # a risk beyond this one changes nothing either
NAMED = 1.5  # times the steps of a sound start, from which on what costs the most is named
CAUSES = {
    "quiet": "its blocks add little to the stream and have to grow first",
    "full": "its blocks write over what the stream carries",
    "small": "the matrices of its blocks are small and have to grow first",
    "large": "the matrices of its blocks are so large that a step changes them little",
    "loud": "its embedding is so large that steps change it little",
    "cut": "it has no skips",
    "risk": "its blocks change the stream or the gradient much",
    "excess": "its first loss is far above that of guessing",
}
LONGEST = 5.0  # what "never within 500 steps", 3.3 times those of a sound start, counts as
GAINS = {"heads": ("score_gain", "value_gain"), "mlp_width": ("mlp_in_gain", "mlp_out_gain")}


def mean_log_gain(network: Architecture) -> float:
    """Return the mean log gain of queries with keys, of values with outputs, and of both matrices of the MLP."""
    names = [name for layer, own in GAINS.items() if getattr(network, layer) for name in own]
    logs = [np.log(np.maximum(np.abs(getattr(network, name)), FAINTEST)).mean() for name in names]
    return float(np.mean(logs))


def without_skips(network: Architecture) -> bool:
    """Return True if no block passes anything on but what its layers write."""
    own = {"attention_skip": network.heads, "mlp_skip": network.mlp_width}
    return not any(np.any(getattr(network, name)) for name, size in own.items() if size)


@dataclass(frozen=True)
class StartParts:
    """What the expected slowdown is made of, none negative."""

    quiet: float = 0.0
    full: float = 0.0
    small: float = 0.0
    large: float = 0.0
    loud: float = 0.0
    cut: float = 0.0
    risk: float = 0.0
    excess: float = 0.0

    @classmethod
    def of(
        cls,
        curve: str,
        added: float | None,
        network: Architecture,
        entering: float,
        risk: float,
        loss: FirstLoss | None = None,
    ) -> StartParts | None:
        """Return the parts, by where the loss is read; None if F, which a network without skips has not, is unknown.

        added     F over the whole depth
        entering  mean square of what enters the first block
        """
        cut = without_skips(network)
        if added is None and not cut:
            return None
        above = 0.0 if added is None else math.log((added + LEAST) / (ENOUGH[curve] + LEAST))
        gain, loud = mean_log_gain(network), math.log(max(entering, SOFT**2) / SOFT**2) / 2
        excess = 0.0 if loss is None else math.log(max(loss.value, loss.chance) / loss.chance)
        return cls(
            quiet=max(0.0, -above),
            full=max(0.0, above),
            small=max(0.0, -gain),
            large=max(0.0, gain),
            loud=loud,
            cut=math.log(network.depth) if cut else 0.0,
            risk=min(risk, LOUDEST),
            excess=min(excess, LOUDEST),
        )


def parts_of(score: RiskScore, trace: Trace) -> StartParts | None:
    """Return the parts of a start; None if what its blocks add to the stream is not known."""
    if not isinstance(trace.architecture, Architecture) or trace.step:
        return None
    risk, entering = sum(risks(score, trace).values()), float(trace.blocks("norm")[0])
    return StartParts.of(curve_of(trace), score.added, trace.architecture, entering, risk, trace.first_loss)


@cache
def slowdown_table() -> Document:
    """Return the table: constants by stage, the range of what was trained, and how well it did on families left out."""
    table: Document = json.loads(resources.files("edgewise.judgement").joinpath(SLOWDOWN_TABLE).read_bytes())
    return table


def log_slowdown(parts: StartParts, constants: Mapping[str, float]) -> float:
    """Return the logarithm of the expected slowdown, at most that of what never arrives."""
    value = sum(constants[name] * size for name, size in asdict(parts).items()) + constants["offset"]
    return min(float(value), math.log(LONGEST))


def expected(score: RiskScore, trace: Trace) -> Slowdown | None:
    """Return the expected slowdown of a start; None if it is not known."""
    parts = parts_of(score, trace)
    if parts is None:
        return None
    table = slowdown_table()
    constants = table["stages"]["predict" if trace.source.startswith("theory") else "measure"][
        curve_of(trace)
    ]
    log = log_slowdown(parts, constants)
    low, high = (min(math.exp(log + constants[end]), LONGEST) for end in ("low", "high"))
    costs = {name: constants[name] * size for name, size in asdict(parts).items()}
    worst = max(costs, key=lambda name: costs[name])
    (shallow, deep), (short, long) = (table["range"][name] for name in ("depth", "tokens"))
    tried = f"{table['networks']} networks of {shallow} to {deep} blocks and {short} to {long} tokens"
    cause = CAUSES[worst] if log >= math.log(NAMED) and costs[worst] > 0 else ""
    added = BEYOND if score.added is None else score.added  # without skips all of it is the blocks' own
    return Slowdown(math.exp(log), low, high, added, tried, cause)


class OutcomeBands(NamedTuple):
    """The probabilities from which on, and up to which, a firm word is said."""

    trains_from: float
    fails_up_to: float


# "trains" or "will not train" is said if one would bet three to one on it: acting on it then pays as long as being
# wrong costs at most three times what being right saves. Between them a network is risky.
OUTCOME_BANDS = OutcomeBands(trains_from=0.75, fails_up_to=0.25)
SLOW = 2.0  # times the steps of a sound start, from which on a network that trains is risky: it is slow
FAR = 8  # times the deepest network of the calibration: the outcome is open from there on


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
    deepest = tried()["depth"][1]
    if band(low) is Outcome.FAILS and band(high) is Outcome.TRAINS:
        missing = "no gradient was followed, so " if trace.log_gradient is None else ""
        return f"{missing}the probability may be anything from {low:.0%} to {high:.0%}"
    if trace.log_gradient is None and band(high) is not Outcome.FAILS:
        return "no gradient was followed through this network"
    if trace.depth > FAR * deepest:
        return f"{trace.depth} blocks are far beyond the deepest network that was trained, {deepest}"
    return ""
