"""Norms on the dense state: LayerNorm and RMSNorm (one map at leading order), elementwise tanh and erf."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgewise.blocks import Norm
from edgewise.errors import BadInput
from edgewise.theory.activation.activations import activation
from edgewise.theory.gram.geometry import Geometry
from edgewise.theory.gram.pairs import pair_averages, slope_averages

Pull = Callable[[Tensor], Tensor]


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
