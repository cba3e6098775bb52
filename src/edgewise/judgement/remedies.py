"""Remedies: changes of a description that lead to a better outcome, each predicted and judged before it is named.

`evaluate`, which leaves out mask and positions, chooses a value; the theory that fits decides whether it helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from edgewise.arrays import Array
from edgewise.critical.exponents import evaluate
from edgewise.errors import BadInput, OutOfBudget, SearchBudget
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.trace import GRADIENTS, Trace
from edgewise.nouns.verdict import CUT_OFF, Outcome, Probability, Remedy, Verdict, per_cent
from edgewise.stability.lyapunov import SEVERITY_LIMITS
from edgewise.theory.perceptron.maps import summary
from edgewise.theory.predict import first_state, predict_perceptron, predict_transformer

# Logit variance beyond the moment table: a search would take hours, and score_gain is the defect.
SHARP = 200.0
EFFORT = 8.0  # estimated seconds for the predictions of one search
TARGET = 0.75 * SEVERITY_LIMITS.risky  # a remedy must leave the change clearly below «risky»
HALVINGS = 2  # of a multiplier that the grid finds good and the full theory does not
ENDED = ("sandwich", "branch")  # a norm stands between the gains of a branch and the sum
COARSE = (0.5, 0.25, 0.12)  # factors tried without a grid
MULTIPLIERS = 2.0 ** -np.arange(13.0)
SAME, SMALLER, WHOLE = "same architecture", "less from attention and MLP", "the stream passes whole"
PRE_NORM = "norm before attention and MLP"
NONE_HELPS = "None of the changes that were tried leads to a better outcome alone."
WEAK_DRAW = (
    "By theory such networks train ({}), so that no change of them is proven to help this one. Draw the weights again, "
    "or let edgewise.initialize_(model) set the gains by measuring this very model; then measure again."
)
RANKS = {Outcome.TRAINS: 0, Outcome.RISKY: 1, Outcome.UNDECIDED: 1, Outcome.FAILS: 2}

Judge = Callable[[Trace, tuple[()], SearchBudget | None], Verdict]
Changes = dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """One way to change a network, weaker values first; `cost` orders ways that lead to the same outcome."""

    cost: int
    values: tuple[Changes, ...]
    sentence: Callable[[Changes], str]
    note: str  # what is changed, as text


Way = Callable[[Architecture, str, SearchBudget | None], Candidate | None]  # of a network and a readout


class _Reached(NamedTuple):
    """An outcome, and its probability if there is one."""

    outcome: Outcome
    probability: Probability | None


@dataclass(frozen=True)
class RemedySearch:
    """The search for remedies of one trace, run when it is first asked for; `judge` reads what a change leads to."""

    trace: Trace
    outcome: Outcome
    condensation: float
    judge: Judge

    def __call__(self) -> tuple[Remedy, ...]:
        return self.remedies

    @property
    def cut_off(self) -> bool:
        """True if the effort did not suffice to try everything."""
        return self._proven[1]

    @property
    def why_none(self) -> str:
        if self._unchanged.outcome is Outcome.TRAINS and self._unchanged.probability is not None:
            return WEAK_DRAW.format(f"about {per_cent(self._unchanged.probability.value)}")
        return f"No remedy was found. {CUT_OFF}" if self.cut_off else NONE_HELPS

    @cached_property
    def _unchanged(self) -> _Reached:
        """What theory says of the network as it is: one measured draw may be weaker, and no change cures that."""
        verdict = None if self.trace.source.startswith("theory") else self._verdict(self._network)
        return (
            _Reached(self.outcome, None)
            if verdict is None
            else _Reached(verdict.outcome, verdict.probability)
        )

    @cached_property
    def remedies(self) -> tuple[Remedy, ...]:
        """Best outcome first, then the cheapest; none is without effect, none contradicts one before it."""
        agreeing: list[Remedy] = []
        for remedy, _ in sorted(self._proven[0], key=lambda pair: (RANKS[pair[0].outcome], pair[1])):
            if not any(contradict(self._network, remedy.changes, other.changes) for other in agreeing):
                agreeing.append(remedy)
        return tuple(agreeing)

    @cached_property
    def _proven(self) -> tuple[list[tuple[Remedy, int]], bool]:
        """Return what helps, each with its cost, and whether the search was cut off."""
        if RANKS[self._unchanged.outcome] == RANKS[Outcome.TRAINS]:
            return [], False
        budget = SearchBudget(EFFORT)
        candidates = (
            self._perceptron() if isinstance(self._network, Perceptron) else self._transformer(budget)
        )
        proven: list[tuple[Remedy, int]] = []
        try:
            for candidate in candidates:
                if (remedy := self._first_that_helps(candidate, budget)) is not None:
                    proven.append((remedy, candidate.cost))
        except OutOfBudget:
            return proven, True
        return proven, False

    @property
    def _network(self) -> Architecture | Perceptron:
        assert self.trace.architecture is not None
        return self.trace.architecture

    @property
    def _readout(self) -> str:
        return GRADIENTS.get(self.trace.readout) or GRADIENTS.get(self.trace.decisive_readout or "", "token")

    def _first_that_helps(self, candidate: Candidate, budget: SearchBudget) -> Remedy | None:
        """Return the weakest value that trains, else the weakest with a better outcome."""
        milder: Remedy | None = None
        here = min(RANKS[self.outcome], RANKS[self._unchanged.outcome])
        for changes in candidate.values:
            changed = self._network.replace(**changes)
            verdict = None if changed == self._network else self._verdict(changed, budget)
            if verdict is None or RANKS[verdict.outcome] >= here:
                continue
            odds = None if verdict.probability is None else verdict.probability.value
            remedy = Remedy(
                candidate.sentence(changes),
                changes,
                verdict.outcome,
                odds,
                candidate.cost == 0,
                candidate.note,
            )
            if verdict.outcome is Outcome.TRAINS:
                return remedy
            milder = milder or remedy
        return milder

    def _verdict(
        self, changed: Architecture | Perceptron, budget: SearchBudget | None = None
    ) -> Verdict | None:
        """Return the changed network from the same start; None if the theory does not cover it."""
        norm, overlap = first_state(self.trace)
        if isinstance(changed, Perceptron):
            return self.judge(predict_perceptron(changed, overlap), (), budget)
        try:
            trace = predict_transformer(changed, None, norm, overlap, self._readout, budget=budget)
            return self.judge(trace.with_provenance(readout=self.trace.readout), (), budget)
        except BadInput:  # what no theory covers, as a norm of a silent layer, is not a remedy
            return None

    def _perceptron(self) -> Iterator[Candidate]:
        """Yield the weight variance on the edge of chaos at this bias variance, if there is one."""
        perceptron = self._network
        assert isinstance(perceptron, Perceptron)
        boundary = summary(perceptron).boundary_weight_variance
        if math.isfinite(boundary) and boundary > 0:
            values = {"weight_variance": float(f"{boundary:.4g}")}
            here = perceptron.weight_variance
            yield Candidate(
                1,
                (values,),
                lambda c: f"weight_variance = {c['weight_variance']:.4g} instead of {here:.4g}",
                "inputs neither merge nor part",
            )

    def _transformer(self, budget: SearchBudget) -> Iterator[Candidate]:
        network = self._network
        assert isinstance(network, Architecture)
        scores = partial(_scores, condensation=self.condensation)
        ways: tuple[Way, ...] = (scores, _initialization, _input_gain, _branches, _pre_norm)
        if self.condensation * 2 * math.log(network.tokens) > SHARP:
            # what leads back into the table of moments first, then smaller gains without a grid
            ways = (_pre_norm, scores, lambda network, *_: _initialized(network, COARSE))
        for way in ways:
            if (candidate := way(network, self._readout, budget)) is not None:
                yield candidate


def contradict(network: Architecture | Perceptron, one: Changes, other: Changes) -> bool:
    """Return whether two remedies move one knob in opposite directions."""
    shared = [name for name in one if name in other and isinstance(one[name], (int, float, tuple))]
    return any(_direction(network, name, one) * _direction(network, name, other) < 0 for name in shared)


def _direction(network: Architecture | Perceptron, name: str, changes: Changes) -> float:
    return float(np.sign(np.mean(changes[name]) - np.mean(getattr(network, name))))


def _worst(architecture: Architecture, readout: str, budget: SearchBudget | None, **knobs: Array) -> Array:
    """Return the larger of the two changes over depth, for arrays of knob values tried at once."""
    rates = evaluate(architecture, knobs, readout, budget=budget)
    size = np.maximum(np.abs(rates.angle_change), np.abs(rates.gradient_change))
    return np.where(np.isfinite(size), size, np.inf)


def _largest(size: Callable[[Array], Array]) -> list[float]:
    """Return the largest multiplier at most 1 of a size below the target, by halving and narrowing; then its halves.

    In two digits, rounded down: what is proven is what is printed.
    """
    multipliers = MULTIPLIERS
    for _ in range(2):
        good = multipliers[size(multipliers) <= TARGET]
        if not len(good):
            return []
        multipliers = np.linspace(good.max(), min(2 * good.max(), 1.0), 17)
    halves = [float(good.max()) / 2**k for k in range(HALVINGS + 1)]
    units = [10.0 ** (math.floor(math.log10(value)) - 1) for value in halves]
    return [float(f"{math.floor(v / u + 1e-9) * u:.2g}") for v, u in zip(halves, units, strict=True)]


def _scaled(value: float | tuple[float, ...], factor: float) -> float | tuple[float, ...]:
    return tuple(factor * v for v in value) if isinstance(value, tuple) else factor * value


def _initialization(
    architecture: Architecture, readout: str, budget: SearchBudget | None = None
) -> Candidate | None:
    """Do what initialize_ does: smaller gains of values and MLP output, or of norms that end a branch."""
    means = {name: float(np.mean(getattr(architecture, name))) for name in _initial_gains(architecture)}

    def size(factors: Array) -> Array:
        return _worst(architecture, readout, budget, **{name: mean * factors for name, mean in means.items()})

    return _initialized(architecture, [factor for factor in _largest(size) if factor < 1])


def _initial_gains(architecture: Architecture) -> list[str]:
    free = {"attention": "value_gain", "mlp": "mlp_out_gain"}
    return [f"{name}_branch" if architecture.norm in ENDED else free[name] for name in _layers(architecture)]


def _initialized(architecture: Architecture, factors: Sequence[float]) -> Candidate | None:
    knobs = _initial_gains(architecture)
    values = [{name: _scaled(getattr(architecture, name), factor) for name in knobs} for factor in factors]

    return Candidate(0, tuple(values), lambda _: "edgewise.initialize_(model)", SAME) if values else None


def _branches(
    architecture: Architecture, readout: str, budget: SearchBudget | None = None
) -> Candidate | None:
    """No branch above one multiplier, beside skips of 1."""
    branches = [f"{name}_branch" for name in _layers(architecture)]
    largest = {name: float(np.max(getattr(architecture, name))) for name in branches}
    skips = _whole_skips(architecture)

    def size(multipliers: Array) -> Array:
        knobs = {name: np.minimum(value, multipliers) for name, value in largest.items()}
        knobs |= {name: np.ones_like(multipliers) for name in skips}
        return _worst(architecture, readout, budget, **knobs)

    def changes(multiplier: float) -> Changes:
        return {name: multiplier for name, value in largest.items() if value > multiplier} | skips

    values = tuple(change for multiplier in _largest(size) if (change := changes(multiplier)))
    gloss = WHOLE if values and not set(values[0]) - set(skips) else SMALLER
    return Candidate(2, values, _settings, gloss) if values else None


def _layers(architecture: Architecture) -> list[str]:
    sizes = {"attention": architecture.heads, "mlp": architecture.mlp_width}
    return [name for name, size in sizes.items() if size]


def _whole_skips(architecture: Architecture) -> Changes:
    """Return the skips that are not 1, as 1; a parallel block has one."""
    names = ["attention"] if architecture.parallel else _layers(architecture)
    return {f"{name}_skip": 1.0 for name in names if getattr(architecture, f"{name}_skip") != 1.0}


def _settings(changes: Changes) -> str:
    """Knobs and values; knobs of one value are set in one breath, skips come last."""
    values: dict[Any, list[str]] = {}
    for name, value in changes.items():
        values.setdefault((name.endswith("_skip"), value), []).append(name)
    shown = {key: key[1] if isinstance(key[1], str) else f"{key[1]:.3g}" for key in values}
    return " with ".join(f"{' = '.join(names)} = {shown[key]}" for key, names in values.items())


def _pre_norm(architecture: Architecture, *_: object) -> Candidate | None:
    """Return the norm in front of each branch, the skips at 1."""
    if architecture.norm == "pre":
        return None
    return Candidate(3, ({"norm": "pre"} | _whole_skips(architecture),), _settings, PRE_NORM)


def _input_gain(
    architecture: Architecture, readout: str, budget: SearchBudget | None = None
) -> Candidate | None:
    """Return the gain of the MLP input nearest to the present one at which the worst change is below the target."""
    here = float(np.mean(architecture.mlp_in_gain))
    if not architecture.mlp_width or not here:
        return None
    factors = np.geomspace(0.25, 4.0, 41)
    good = np.flatnonzero(_worst(architecture, readout, budget, mlp_in_gain=here * factors) <= TARGET)
    nearest = sorted(good, key=lambda k: abs(math.log(factors[k])))[: HALVINGS + 1]
    values = tuple({"mlp_in_gain": float(f"{here * factors[k]:.3g}")} for k in nearest)
    distinct = tuple(v for v in values if f"{v['mlp_in_gain']:.3g}" != f"{here:.3g}")
    if not distinct:
        return None
    return Candidate(
        1,
        distinct,
        lambda c: f"mlp_in_gain = {c['mlp_in_gain']:.3g} instead of {here:.3g}",
        "initial scale of the MLP's first matrix",
    )


def _scores(architecture: Architecture, *_: object, condensation: float) -> Candidate | None:
    """Logits that no longer condense: variance over 2 log n of one half, then less."""
    if not 1 <= condensation < math.inf:
        return None
    here = architecture.score_gain
    factors = [math.sqrt(0.5 / condensation) / 2**k for k in range(HALVINGS + 1)]
    values = tuple({"score_gain": _scaled(here, float(f"{factor:.2g}"))} for factor in factors)
    return Candidate(
        1,
        values,
        lambda c: f"score_gain times {np.mean(c['score_gain']) / np.mean(here):.2g}",
        "initial scale of queries and keys",
    )
