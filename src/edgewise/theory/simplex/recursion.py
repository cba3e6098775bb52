"""Norms on the simplex state: LayerNorm and RMSNorm (one map at leading order), elementwise tanh and erf.

The simplex recursion: blocks folded over depth, forward and backward, for one network or a grid of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.blocks import Attention, Block, Branch, Norm
from edgewise.theory.activation.activations import activation
from edgewise.theory.simplex.kernels import bilinear_attention, gaussian_attention
from edgewise.theory.simplex.mlp import mlp
from edgewise.theory.simplex.softmax_attention import Moments, exact, softmax_attention
from edgewise.theory.simplex.state import Gradient, Simplex, Step, chain

READOUTS = ("token", "pooled")


@dataclass(frozen=True)
class Setting:
    """What every layer needs besides its gains."""

    tokens: int
    width: int
    moments: Moments = exact


def apply_branch(branch: Branch, state: Simplex, setting: Setting) -> Step:
    """x <- outside( skip x + sum of multiplier * after(layer(before(x))) ); cross terms vanish at initialization."""
    before = normalize(branch.norm, state) if branch.norm.before else identity(state)
    paths = [_path(branch, layer, before, setting) for layer in branch.layers]
    total = state.scaled(branch.skip**2)
    for path in paths:
        total = total.plus(path.state)
    outside = normalize(branch.norm, total) if branch.norm.outside else identity(total)

    def pull(g: Gradient) -> Gradient:
        g = outside.pull(g)
        back = g.scaled(branch.skip**2)
        for path in paths:
            back = back.plus(path.pull(g))
        return back

    def weights(g: Gradient) -> Mapping[str, Array]:
        g = outside.pull(g)
        return {name: value for path in paths if path.weights for name, value in path.weights(g).items()}

    def seen() -> Mapping[str, Array]:
        return {name: value for path in paths for name, value in path.seen().items()}

    return Step(outside.state, pull, seen, weights)


def _path(branch: Branch, layer: object, before: Step, setting: Setting) -> Step:
    """One layer between the norms, with its multiplier."""
    if isinstance(layer, Attention):
        inner = _attention(layer, before.state, setting)
    else:
        inner = mlp(layer, before.state, setting.tokens, setting.width)  # type: ignore[arg-type]
    after = normalize(branch.norm, inner.state) if branch.norm.after else identity(inner.state)
    multiplier = layer.branch**2  # type: ignore[attr-defined]

    def scale(g: Gradient) -> Gradient:
        return g.scaled(multiplier)

    def weights(g: Gradient) -> Mapping[str, Array]:
        assert inner.weights is not None
        return inner.weights(after.pull(scale(g)))

    pull = chain(before.pull, inner.pull, after.pull, scale)
    return Step(after.state.scaled(multiplier), pull, inner.seen, weights)


def _attention(layer: Attention, state: Simplex, setting: Setting) -> Step:
    if layer.kernel == "gaussian":
        return gaussian_attention(layer, state, setting.tokens, setting.width)
    if layer.kernel == "bilinear":
        return bilinear_attention(layer, state, setting.tokens, setting.width)
    return softmax_attention(layer, state, setting.tokens, setting.width, setting.moments)


def forward(blocks: Sequence[Block], start: Simplex, setting: Setting) -> Iterator[Step]:
    """One step per branch, in order."""
    state = start
    for block in blocks:
        for branch in block:
            step = apply_branch(branch, state, setting)
            yield step
            state = step.state


def output_gradient(readout: str, shape: tuple[int, ...]) -> Gradient:
    """A loss per token starts at (1, 0); a mean-pooled one at (1, 1)."""
    return Gradient(np.ones(shape), np.full(shape, float(readout == "pooled")))


def backward(steps: Sequence[Step], output: Gradient) -> Iterator[tuple[Gradient, Array]]:
    """Gradients before every step, last step first, with the log of the scale taken out so far.

    The gradient is rescaled to own = 1 at each site: no depth overflows.
    """
    g = output
    log_scale = np.zeros_like(g.own)
    for step in reversed(steps):
        g = step.pull(g)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_scale = log_scale + np.log(g.own)
            g = Gradient(np.ones_like(g.own), np.where(g.own > 0, g.cross / g.own, 0.0))
        yield g, log_scale


def normalize(norm: Norm, state: Simplex) -> Step:
    """(q, D) -> (1, D/q), gradients divided by q; or Gaussian averages of tanh, erf in the norm's place.

    LayerNorm and RMSNorm differ only by the feature mean, O(1/sqrt d) at initialization; the projection of the
    gradient on the sphere is O(1/d). DyT and Derf are x -> phi(slope x) [Zhu 2025; Alekseev 2026].
    """
    if norm.kind in ("layer", "rms"):
        alive = np.asarray(state.norm) > 0  # a norm leaves a vanished signal at zero
        factor = np.where(alive, 1.0 / np.where(alive, state.norm, 1.0), 0.0)
        after = Simplex(np.where(alive, 1.0, 0.0), np.asarray(state.difference * factor))
        return Step(after, lambda g: g.scaled(factor))
    return _elementwise(norm, state)


def _elementwise(norm: Norm, state: Simplex) -> Step:
    phi, a2 = activation(norm.kind), norm.slope**2
    q, e = a2 * state.norm, state.separation
    after = Simplex(phi.square(q), a2 * state.difference * phi.chord(q, e))
    return Step(after, lambda g: g.scaled(a2 * phi.slope_square(q), a2 * phi.slope_product(q, 1 - e)))


def identity(state: Simplex) -> Step:
    """No norm here."""
    return Step(state, lambda g: g)
