"""The MLP on the dense state, plain and gated, forward and backward: Gaussian averages over every pair of tokens."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from edgewise.blocks import MLP
from edgewise.theory.activation.activations import activation
from edgewise.theory.gram.geometry import Geometry, mean_of_pair
from edgewise.theory.gram.pairs import pair_averages, value_and_slope_averages


def _hidden(layer: MLP, state: Geometry) -> Geometry:
    """Preactivations: s1^2 C + sb^2. A bias that all tokens share leaves distances alone."""
    return Geometry(layer.in_gain**2 * state.squares + layer.bias**2, layer.in_gain**2 * state.spreads)


def perceive(layer: MLP, state: Geometry) -> Geometry:
    """C_out = s2^2 E phi phi', times su^2 C when gated; as squares and spreads."""
    active = pair_averages(activation(layer.activation), _hidden(layer, state))
    if layer.gated:
        active = product(active, state).scaled(layer.linear_gain**2)
    return active.scaled(layer.out_gain**2)


def product(first: Geometry, second: Geometry) -> Geometry:
    """The geometry of x * y elementwise, independent: its overlaps are the products of overlaps."""
    f, q = first.squares, second.squares
    unlike = (f[:, None] - f) * (q[:, None] - q) / 4
    spreads = unlike + mean_of_pair(q) * first.spreads + second.spreads * (mean_of_pair(f) - first.spreads)
    return Geometry(f * q, spreads.clamp_min(0.0))


def pull_mlp(layer: MLP, state: Geometry, gamma: Tensor, width: int) -> tuple[Tensor, Mapping[str, float]]:
    """Gamma at the layer's input, and |dL/dW|^2 of its matrices.

    Gamma_in = Gamma s2^2 s1^2 E phi' phi'; gated: Gamma s2^2 su^2 (s1^2 C E phi' phi' + E phi phi').
    """
    phi, hidden = activation(layer.activation), _hidden(layer, state)
    active, slopes = value_and_slope_averages(phi, hidden)
    values = active.overlaps
    out, linear, overlaps = layer.out_gain**2, layer.linear_gain**2, state.overlaps
    into_gate = slopes * (linear * overlaps) if layer.gated else slopes
    factor = layer.in_gain**2 * into_gate
    weights = {"mlp_in": width * out * _sum(gamma, into_gate, overlaps)}
    if layer.gated:
        factor = factor + linear * values
        weights["mlp_linear"] = width * out * _sum(gamma, values, overlaps)
        values = values * (linear * overlaps)
    weights["mlp_out"] = layer.width * _sum(gamma, values)
    return gamma * factor * out, weights


def _sum(*factors: Tensor) -> float:
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    return float(product.sum())
