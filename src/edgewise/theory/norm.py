"""Norms on the simplex state: LayerNorm and RMSNorm (one map at leading order), elementwise tanh and erf."""

from __future__ import annotations

import numpy as np

from edgewise.blocks import Norm
from edgewise.theory.activation.activations import activation
from edgewise.theory.state import Simplex, Step


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
