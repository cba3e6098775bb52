"""One branch of a block on the dense state, between its norms: forward, and how gradients come back.

x <- outside( skip x + sum of multiplier * after(layer(before(x))) ), cross terms being zero on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from edgewise.errors import BadInput
from edgewise.nouns.blocks import MLP, Attention, Branch, Norm
from edgewise.theory.averages.activations import activation
from edgewise.theory.gram.geometry import Geometry, Real
from edgewise.theory.gram.heads import Sampling
from edgewise.theory.gram.layers import attend, perceive, pull_attention, pull_mlp
from edgewise.theory.gram.pairs import PairAverages

Pull = Callable[[Real], Real]
Weights = Mapping[str, float]
PullWeights = Callable[[Real], tuple[Real, Weights]]


@dataclass(frozen=True)
class Step:
    """The state after a branch, how gradient overlaps come back (with |dL/dW|^2), and statistics of its layers."""

    state: Geometry
    pull: PullWeights
    statistics: Mapping[str, float] = field(default_factory=dict)
    forgotten: float = 0.0  # log of the sum's square over what the skip carries of it


def apply_branch(branch: Branch, state: Geometry, width: int, sampling: Sampling, seed: int) -> Step:
    """Cross terms vanish: every layer ends in an independent zero-mean matrix."""
    inner, pull_before = normalize(branch.norm, state) if branch.norm.before else (state, _same)
    paths = [
        _path(branch, layer, inner, width, sampling, seed) for layer in branch.layers if layer.branch != 0
    ]
    total = state.scaled(branch.skip**2)
    for path in paths:
        total = total.plus(path.state)
    pulls = [path.pull for path in paths]  # not the paths: their states need not stay in memory
    out, pull_outside = normalize(branch.norm, total) if branch.norm.outside else (total, _same)

    def pull(gamma: Real) -> tuple[Real, Weights]:
        gamma = pull_outside(gamma)
        pulled = [pull_path(gamma) for pull_path in pulls]
        back = gamma * float(branch.skip**2) if branch.skip != 1 else gamma
        for inside, _ in pulled:
            back = back + pull_before(inside)
        return back, {name: value for _, weights in pulled for name, value in weights.items()}

    statistics = {name: value for path in paths for name, value in path.statistics.items()}
    return Step(out, pull, statistics, log(total.norm) - log(branch.skip**2 * state.norm))


def log(value: float) -> float:
    """The logarithm, minus infinity of 0."""
    return math.log(value) if value > 0 else -math.inf


def _same(gamma: Real) -> Real:
    return gamma


def _path(
    branch: Branch, layer: Attention | MLP, inner: Geometry, width: int, sampling: Sampling, seed: int
) -> Step:
    """One layer between the norms, with its multiplier."""
    output, statistics, pull_layer = _apply(layer, inner, width, sampling, seed)
    after, pull_after = normalize(branch.norm, output) if branch.norm.after else (output, _same)
    return Step(
        after.scaled(layer.branch**2),
        lambda gamma: pull_layer(pull_after(gamma * float(layer.branch**2) if layer.branch != 1 else gamma)),
        statistics,
    )


def _apply(
    layer: Attention | MLP, inner: Geometry, width: int, sampling: Sampling, seed: int
) -> tuple[Geometry, Weights, PullWeights]:
    if isinstance(layer, MLP):
        output, averages = perceive(layer, inner)
        return output, {}, lambda gamma: pull_mlp(layer, inner, averages, gamma, width)
    output, statistics, memory = attend(layer, inner, sampling, seed)
    return output, statistics, lambda gamma: pull_attention(layer, inner, gamma, width, sampling, memory)


def normalize(norm: Norm, state: Geometry) -> tuple[Geometry, Pull]:
    """The state after a norm, and how gradients come back: Gamma_ab / sqrt(q_a q_b).

    LayerNorm and RMSNorm are one map at this order; tanh and erf of slope x are Gaussian averages (DyT, Derf).
    """
    if norm.kind not in ("layer", "rms"):
        return _elementwise(norm, state)
    if not (state.squares > 0).all():
        raise BadInput(
            "a norm would divide by zero: what enters it is zero. Give the layer before it a gain above 0."
        )
    inverse = (1 / np.sqrt(state.squares)).astype(state.spreads.dtype)
    return (
        Geometry(np.ones_like(state.squares), state.separations),
        lambda gamma: gamma * inverse[:, None] * inverse,
    )


def _elementwise(norm: Norm, state: Geometry) -> tuple[Geometry, Pull]:
    averages = PairAverages(activation(norm.kind), state.scaled(norm.slope**2))
    return averages.values, lambda gamma: gamma * averages.slopes() * norm.slope**2
