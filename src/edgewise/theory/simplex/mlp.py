"""The MLP on the simplex state, plain and gated, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

from edgewise.arrays import Array
from edgewise.blocks import MLP
from edgewise.theory.activation.activations import Activation, activation
from edgewise.theory.simplex.state import Gradient, Simplex, Step


def mlp(layer: MLP, state: Simplex, tokens: int, width: int) -> Step:
    """q_m = s2^2 E phi^2, D_m = s2^2 (E phi^2 - E phi phi'), by the chord so that nothing cancels.

    The hidden variance is q_h = s1^2 q + sb^2; a gated MLP multiplies by the linear half su^2 (q, p).
    """
    phi = activation(layer.activation)
    hidden = Simplex(layer.in_gain**2 * state.norm + layer.bias**2, layer.in_gain**2 * state.difference)
    square = phi.square(hidden.norm)
    lost = hidden.difference * phi.chord(hidden.norm, hidden.separation)
    if layer.gated:
        gain = (layer.out_gain * layer.linear_gain) ** 2
        after = Simplex(state.norm * square, state.difference * square + state.cross * lost).scaled(gain)
    else:
        after = Simplex(square, lost).scaled(layer.out_gain**2)
    return Step(
        after,
        lambda g: g.scaled(*_slopes(layer, phi, state, hidden)),
        weights=lambda g: _weights(layer, phi, state, hidden, g, tokens, width),
    )


def _slopes(layer: MLP, phi: Activation, state: Simplex, hidden: Simplex) -> tuple[Array, Array]:
    """B = s2^2 s1^2 E phi'^2 and B_c with the pair average; gated: s2^2 su^2 (s1^2 q E phi'^2 + E phi^2)."""
    q, c = hidden.norm, 1 - hidden.separation
    own, cross = layer.in_gain**2 * phi.slope_square(q), layer.in_gain**2 * phi.slope_product(q, c)
    if layer.gated:
        own = layer.linear_gain**2 * (state.norm * own + phi.square(q))
        cross = layer.linear_gain**2 * (state.cross * cross + phi.product(q, c))
    return layer.out_gain**2 * own, layer.out_gain**2 * cross


def _weights(
    layer: MLP, phi: Activation, state: Simplex, hidden: Simplex, g: Gradient, tokens: int, width: int
) -> Mapping[str, Array]:
    """|dL/dW|^2 for W_1 (gate), W_2 and the linear half, from g at the layer's output; n (own + (n-1) cross)."""
    q, c = hidden.norm, 1 - hidden.separation

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
