"""Gaussian averages of an activation over every pair of tokens: E phi(u_a) phi(u_b), E phi'(u_a) phi'(u_b).

Where all tokens have one variance, both are functions of the angle alone and are read from a fine table.
Where variances differ (no norm, elementwise norms), see `unequal`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from edgewise.theory.activation.activations import Activation
from edgewise.theory.gram.geometry import Geometry
from edgewise.theory.gram.unequal import pair_table

NODES = 65  # exact evaluations in the angle, Chebyshev
GRID = 8192  # points of the linear table read from them: error 2e-8 (1 + q)
STEEP = 1e3  # variance above which the table is too coarse, and every pair is averaged directly


def pair_averages(phi: Activation, state: Geometry) -> Geometry:
    """The geometry of phi(u) for Gaussian u: squares E phi(u_a)^2, spreads E (phi(u_a) - phi(u_b))^2 / 2."""
    return value_and_slope_averages(phi, state, slopes=False)[0]


def slope_averages(phi: Activation, state: Geometry) -> Tensor:
    """E phi'(u_a) phi'(u_b), the diagonal included (n, n)."""
    return value_and_slope_averages(phi, state)[1]


def value_and_slope_averages(phi: Activation, state: Geometry, slopes: bool = True) -> tuple[Geometry, Tensor]:
    """Both at once, which costs little more than one; the second is empty unless `slopes`."""
    q = _common_variance(state)
    if q is None:
        return _unequal(phi, state, slopes)
    squares = torch.full_like(state.squares, float(phi.square(q)))
    if q == 0:
        return Geometry(squares, torch.zeros_like(state.spreads)), state.spreads + float(phi.slope_square(0.0))
    if q > STEEP:
        return _direct(phi, q, state, squares, slopes)
    place = _Place(state.spreads / q)
    geometry = Geometry(squares, state.spreads * place.read(_chords(phi, q)))
    return geometry, place.read(_slopes(phi, q)) if slopes else torch.empty(0)


def _direct(
    phi: Activation, q: float, state: Geometry, squares: Tensor, slopes: bool
) -> tuple[Geometry, Tensor]:
    separations = (state.spreads / q).clamp(0.0, 2.0).numpy()
    geometry = Geometry(squares, state.spreads * torch.from_numpy(phi.chord(q, separations)))
    return geometry, torch.from_numpy(phi.slope_product_apart(q, separations)) if slopes else torch.empty(0)


def _common_variance(state: Geometry) -> float | None:
    low, high = float(state.squares.min()), float(state.squares.max())
    return (low + high) / 2 if high - low <= 1e-12 * high else None


def angles(separations: Tensor) -> Tensor:
    """The angle in [0, pi] of cosine 1 - e: kinks of phi are smooth in it, and it is exact for small e."""
    return 2 * (separations / 2).clamp(0.0, 1.0).sqrt().asin()


class _Place:
    """Where separations fall on the uniform grid of angles, for linear interpolation."""

    def __init__(self, separations: Tensor) -> None:
        position = angles(separations).mul_(GRID / np.pi)
        self.left = position.int().clamp_max_(GRID - 1)
        self.rest = position.sub_(self.left)

    def read(self, table: Tensor) -> Tensor:
        """table (2, GRID): values and rises."""
        return torch.addcmul(table[0][self.left], self.rest, table[1][self.left])


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
    """The Chebyshev interpolant on the uniform grid of angles, and its rises (2, GRID)."""
    nodes = np.polynomial.chebyshev.chebpts2(NODES)
    series = np.polynomial.chebyshev.Chebyshev.fit(nodes, values, NODES - 1, domain=[-1, 1])
    fine = series(np.linspace(-1, 1, GRID + 1))
    return torch.from_numpy(np.stack([fine[:-1], np.diff(fine)]))


def _unequal(phi: Activation, state: Geometry, slopes: bool) -> tuple[Geometry, Tensor]:
    if _homogeneous(phi):
        return _scaled(phi, state, slopes)
    return pair_table(phi, state.squares.numpy()).averages(state, angles(state.separations()), slopes)


@lru_cache(maxsize=64)
def _homogeneous(phi: Activation) -> bool:
    """phi(t x) = t phi(x) for t > 0: linear, ReLU, leaky ReLU."""
    x = np.array([-3.0, -0.7, 0.0, 0.4, 5.0])
    return bool(np.allclose(phi.function(8 * x), 8 * phi.function(x), rtol=1e-12, atol=0.0))


def _scaled(phi: Activation, state: Geometry, slopes: bool) -> tuple[Geometry, Tensor]:
    """phi(sqrt(q) z) = sqrt(q) phi(z): the averages at unit variance, exactly."""
    lengths, separations = state.squares.sqrt(), state.separations()
    unit, place = float(phi.square(1.0)), _Place(separations)
    across = lengths[:, None] * lengths * separations * place.read(_chords(phi, 1.0))
    along = (lengths[:, None] - lengths).square() * (unit / 2)
    return (
        Geometry(state.squares * unit, along + across),
        place.read(_slopes(phi, 1.0)) if slopes else torch.empty(0),
    )
