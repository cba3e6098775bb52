"""One branch of a block on the simplex state, between its norms: forward, and how gradients come back.

x <- outside( skip x + sum of multiplier * after(layer(before(x))) ), cross terms being zero on average. The MLP, plain
and gated, by Gaussian averages; attention in `kernels`. One call serves one network or a grid of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edgewise.arrays import Array
from edgewise.nouns.blocks import MLP, Attention, Branch, Norm
from edgewise.theory.averages.activations import Activation, activation
from edgewise.theory.simplex.kernels import attend
from edgewise.theory.simplex.state import Gradient, Setting, SimplexState, SimplexStep, chain


def step(state: SimplexState, branch: Branch, setting: Setting) -> SimplexStep:
    """Apply a branch; cross terms vanish at initialization, because every layer ends in an independent matrix."""
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

    def statistics() -> Mapping[str, Array]:
        return {name: value for path in paths for name, value in path.statistics().items()}

    return SimplexStep(outside.state, pull, statistics, weights)


def _path(branch: Branch, layer: Attention | MLP, before: SimplexStep, setting: Setting) -> SimplexStep:
    """One layer between the norms, with its multiplier."""
    if isinstance(layer, Attention):
        inner = attend(layer, before.state, setting)
    else:
        inner = perceive(layer, before.state, setting)
    after = normalize(branch.norm, inner.state) if branch.norm.after else identity(inner.state)
    multiplier = layer.branch**2

    def scale(g: Gradient) -> Gradient:
        return g.scaled(multiplier)

    def weights(g: Gradient) -> Mapping[str, Array]:
        assert inner.weights is not None
        return inner.weights(after.pull(scale(g)))

    pull = chain(before.pull, inner.pull, after.pull, scale)
    return SimplexStep(after.state.scaled(multiplier), pull, inner.statistics, weights)


def normalize(norm: Norm, state: SimplexState) -> SimplexStep:
    """Apply a norm: (q, D) -> (1, D/q), gradients divided by q; or Gaussian averages of tanh, erf in the norm's place.

    LayerNorm and RMSNorm differ only by the feature mean, O(1/sqrt d) at initialization; the projection of the
    gradient on the sphere is O(1/d). DyT and Derf are x -> phi(slope x) [Zhu 2025; Alekseev 2026].
    """
    if norm.kind in ("layer", "rms"):
        alive = np.asarray(state.norm) > 0  # a norm leaves a vanished signal at zero
        factor = np.where(alive, 1.0 / np.where(alive, state.norm, 1.0), 0.0)
        after = SimplexState(np.where(alive, 1.0, 0.0), np.asarray(state.difference * factor))
        return SimplexStep(after, lambda g: g.scaled(factor))
    phi, a2 = activation(norm.kind), norm.slope**2
    q, e = a2 * state.norm, state.separation
    after = SimplexState(phi.square(q), a2 * state.difference * phi.chord(q, e))
    return SimplexStep(after, lambda g: g.scaled(a2 * phi.slope_square(q), a2 * phi.slope_product(q, 1 - e)))


def identity(state: SimplexState) -> SimplexStep:
    """Return the step of no norm."""
    return SimplexStep(state, lambda g: g)


def perceive(layer: MLP, state: SimplexState, setting: Setting) -> SimplexStep:
    """Apply an MLP: q_m = s2^2 E phi^2, D_m = s2^2 (E phi^2 - E phi phi'), by the chord so that nothing cancels.

    The hidden variance is q_h = s1^2 q + sb^2; a gated MLP multiplies by the linear half su^2 (q, p).
    """
    phi = activation(layer.activation)
    hidden = SimplexState(layer.in_gain**2 * state.norm + layer.bias**2, layer.in_gain**2 * state.difference)
    square = phi.square(hidden.norm)
    lost = hidden.difference * phi.chord(hidden.norm, hidden.separation)
    if layer.gated:
        gain = (layer.out_gain * layer.linear_gain) ** 2
        after = SimplexState(state.norm * square, state.difference * square + state.cross * lost).scaled(gain)
    else:
        after = SimplexState(square, lost).scaled(layer.out_gain**2)
    return SimplexStep(
        after,
        lambda g: g.scaled(*_mlp_slopes(layer, phi, state, hidden)),
        weights=lambda g: _mlp_weights(layer, phi, state, hidden, g, setting),
    )


def _mlp_slopes(
    layer: MLP, phi: Activation, state: SimplexState, hidden: SimplexState
) -> tuple[Array, Array]:
    """B = s2^2 s1^2 E phi'^2 and B_c with the pair average; gated: s2^2 su^2 (s1^2 q E phi'^2 + E phi^2)."""
    q, c = hidden.norm, 1 - hidden.separation
    own, cross = layer.in_gain**2 * phi.slope_square(q), layer.in_gain**2 * phi.slope_product(q, c)
    if layer.gated:
        own = layer.linear_gain**2 * (state.norm * own + phi.square(q))
        cross = layer.linear_gain**2 * (state.cross * cross + phi.product(q, c))
    return layer.out_gain**2 * own, layer.out_gain**2 * cross


def _mlp_weights(
    layer: MLP, phi: Activation, state: SimplexState, hidden: SimplexState, g: Gradient, setting: Setting
) -> Mapping[str, Array]:
    """|dL/dW|^2 for W_1 (gate), W_2 and the linear half, from g at the layer's output; n (own + (n-1) cross)."""
    q, c = hidden.norm, 1 - hidden.separation
    tokens, width = setting.tokens, setting.width

    def total(own: Array, cross: Array) -> Array:
        return tokens * (g.own * own + (tokens - 1) * g.cross * cross)

    s1, s2 = (phi.slope_square(q), phi.slope_product(q, c)), (phi.square(q), phi.product(q, c))
    x = (state.norm, state.cross)
    if not layer.gated:
        return {
            "mlp_in": width * layer.out_gain**2 * total(x[0] * s1[0], x[1] * s1[1]),
            "mlp_out": layer.width * total(*s2),
        }
    u2, o2 = layer.linear_gain**2, layer.out_gain**2
    return {
        "mlp_in": width * o2 * u2 * total(x[0] ** 2 * s1[0], x[1] ** 2 * s1[1]),
        "mlp_linear": width * o2 * total(x[0] * s2[0], x[1] * s2[1]),
        "mlp_out": layer.width * u2 * total(x[0] * s2[0], x[1] * s2[1]),
    }
