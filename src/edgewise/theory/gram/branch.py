"""One branch and its norms on the dense state: x <- outside( skip x + sum of multiplier * after(layer(before(x))) )."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgewise.blocks import MLP, Attention, Branch, Norm
from edgewise.errors import BadInput
from edgewise.theory.activation.activations import activation
from edgewise.theory.gram.attention import attend, pull_attention
from edgewise.theory.gram.geometry import Geometry
from edgewise.theory.gram.heads import Sampling
from edgewise.theory.gram.mlp import perceive, pull_mlp
from edgewise.theory.gram.pairs import pair_averages, slope_averages

Pull = Callable[[Tensor], Tensor]
Weights = Mapping[str, float]
PullWeights = Callable[[Tensor], tuple[Tensor, Weights]]


@dataclass(frozen=True)
class Step:
    """The state after a branch, how gradient overlaps come back (with |dL/dW|^2), and statistics of its layers."""

    state: Geometry
    pull: PullWeights
    statistics: Mapping[str, float] = field(default_factory=dict)


def apply_branch(branch: Branch, state: Geometry, width: int, sampling: Sampling, seed: int) -> Step:
    """Cross terms vanish: every layer ends in an independent zero-mean matrix."""
    inner, pull_before = normalize(branch.norm, state) if branch.norm.before else (state, _same)
    paths = [_path(branch, layer, inner, width, sampling, seed) for layer in branch.layers if layer.branch != 0]
    total = state.scaled(branch.skip**2)
    for path in paths:
        total = total.plus(path.state)
    pulls = [path.pull for path in paths]  # not the paths: their states need not stay in memory
    out, pull_outside = normalize(branch.norm, total) if branch.norm.outside else (total, _same)

    def pull(gamma: Tensor) -> tuple[Tensor, Weights]:
        gamma = pull_outside(gamma)
        pulled = [pull_path(gamma) for pull_path in pulls]
        back = gamma * branch.skip**2
        for inside, _ in pulled:
            back = back + pull_before(inside)
        return back, {name: value for _, weights in pulled for name, value in weights.items()}

    return Step(out, pull, {name: value for path in paths for name, value in path.statistics.items()})


def _same(gamma: Tensor) -> Tensor:
    return gamma


def _path(
    branch: Branch, layer: Attention | MLP, inner: Geometry, width: int, sampling: Sampling, seed: int
) -> Step:
    """One layer between the norms, with its multiplier."""
    output, statistics, pull_layer = _apply(layer, inner, width, sampling, seed)
    after, pull_after = normalize(branch.norm, output) if branch.norm.after else (output, _same)
    return Step(
        after.scaled(layer.branch**2), lambda gamma: pull_layer(pull_after(gamma * layer.branch**2)), statistics
    )


def _apply(
    layer: Attention | MLP, inner: Geometry, width: int, sampling: Sampling, seed: int
) -> tuple[Geometry, Weights, PullWeights]:
    if isinstance(layer, MLP):
        return perceive(layer, inner), {}, lambda gamma: pull_mlp(layer, inner, gamma, width)
    output, statistics, memory = attend(layer, inner, sampling, seed)
    return output, statistics, lambda gamma: pull_attention(layer, inner, gamma, width, sampling, memory)


def normalize(norm: Norm, state: Geometry) -> tuple[Geometry, Pull]:
    """The state after a norm, and how gradients come back: Gamma_ab / sqrt(q_a q_b).

    LayerNorm and RMSNorm are one map at this order; tanh and erf of slope x are Gaussian averages (DyT, Derf).
    """
    if norm.kind not in ("layer", "rms"):
        return _elementwise(norm, state)
    if not bool((state.squares > 0).all()):
        raise BadInput("a norm would divide by zero: what enters it is zero. Give the layer before it a gain above 0.")
    lengths = state.squares.sqrt()
    return (
        Geometry(torch.ones_like(lengths), state.separations()),
        lambda gamma: gamma / (lengths[:, None] * lengths),
    )


def _elementwise(norm: Norm, state: Geometry) -> tuple[Geometry, Pull]:
    phi, steeper = activation(norm.kind), state.scaled(norm.slope**2)
    return (
        pair_averages(phi, steeper),
        lambda gamma: gamma * slope_averages(phi, steeper) * norm.slope**2,
    )
