"""Gaussian averages of an activation over every pair of tokens: E phi(u_a) phi(u_b), E phi'(u_a) phi'(u_b).

Where all tokens have one variance, both are functions of the angle alone and are read from a fine table.
Where variances differ (no norm, elementwise norms), see `gram_unequal`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from edgewise.theory.activations import Activation
from edgewise.theory.gram_geometry import Geometry
from edgewise.theory.gram_unequal import PairTable, pair_table

NODES = 65  # exact evaluations in the angle, Chebyshev
GRID = 8192  # points of the linear table read from them: error 2e-8


def pair_averages(phi: Activation, state: Geometry) -> Geometry:
    """The geometry of phi(u) for Gaussian u: squares E phi(u_a)^2, spreads E (phi(u_a) - phi(u_b))^2 / 2."""
    q = _common_variance(state)
    if q is None:
        return _unequal(phi, state)[0]
    squares = torch.full_like(state.squares, float(phi.square(q)))
    if q == 0:
        return Geometry(squares, torch.zeros_like(state.spreads))
    return Geometry(squares, state.spreads * _read(_chords(phi, q), state.spreads / q))


def slope_averages(phi: Activation, state: Geometry) -> Tensor:
    """E phi'(u_a) phi'(u_b), the diagonal included (n, n)."""
    q = _common_variance(state)
    if q is None:
        return _unequal(phi, state)[1]
    if q == 0:
        return torch.full_like(state.spreads, float(phi.slope_square(0.0)))
    return _read(_slopes(phi, q), state.spreads / q)


def _common_variance(state: Geometry) -> float | None:
    low, high = float(state.squares.min()), float(state.squares.max())
    return (low + high) / 2 if high - low <= 1e-12 * high else None


def angles(separations: Tensor) -> Tensor:
    """The angle in [0, pi] of cosine 1 - e: kinks of phi are smooth in it, and it is exact for small e."""
    return 2 * (separations / 2).clamp(0.0, 1.0).sqrt().asin()


def _read(table: Tensor, separations: Tensor) -> Tensor:
    """Linear interpolation on the uniform grid of angles."""
    position = angles(separations) * (GRID / np.pi)
    left = position.long().clamp_max(GRID - 1)
    rest = position - left
    rises = torch.diff(table)
    return table[left] + rest * rises[left]


@lru_cache(maxsize=256)
def _chords(phi: Activation, q: float) -> Tensor:
    return _tabulate(phi.chord(q, _node_separations()))


@lru_cache(maxsize=256)
def _slopes(phi: Activation, q: float) -> Tensor:
    return _tabulate(phi.slope_product_apart(q, _node_separations()))


def _node_separations() -> np.ndarray:
    """1 - cos of the angles at Chebyshev points of [0, pi]."""
    theta = np.pi * (1 + np.polynomial.chebyshev.chebpts2(NODES)) / 2
    return 2 * np.sin(theta / 2) ** 2


def _tabulate(values: np.ndarray) -> Tensor:
    """The Chebyshev interpolant on the uniform grid of GRID + 1 angles."""
    nodes = np.polynomial.chebyshev.chebpts2(NODES)
    series = np.polynomial.chebyshev.Chebyshev.fit(nodes, values, NODES - 1, domain=[-1, 1])
    return torch.from_numpy(series(np.linspace(-1, 1, GRID + 1)))


def _unequal(phi: Activation, state: Geometry) -> tuple[Geometry, Tensor]:
    table: PairTable = pair_table(phi, state.squares.numpy())
    return table.averages(state, angles(state.separations()))
