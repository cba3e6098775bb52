"""Gaussian averages of an activation over every pair of tokens: E phi(u_a) phi(u_b), E phi'(u_a) phi'(u_b).

Where all tokens have one variance, both are functions of the angle alone and are read from a fine table. Where
variances differ (no norm, elementwise norms), they are smooth functions of (log q_a, log q_b, angle): with s = log q,
c = cos(angle) and M = E phi'(u_a) phi'(u_b), Price's theorem splits the distance into two parts that are each free of
cancellation:

    E (phi_a - phi_b)^2 / 2 = [the same at c = 1] + sqrt(q_a q_b) integral_c^1 M dc'
    [the same at c = 1]     = (s_a - s_b)^2 R(s_a, s_b),  R smooth, R = E (u phi'(u))^2 / 8 at s_a = s_b

R, M and the mean of M over [c, 1] are interpolated in s_a and s_b at K nodes, the last two also in the angle, or
rather in y = asinh(angle/w) - asinh((pi - angle)/w), which resolves the width w = 1/sqrt(q) of steep functions.
Shapes: n tokens, K nodes in s, A nodes in the angle, J quadrature nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import chebyshev

from edgewise.arrays import Array
from edgewise.theory.averages import gaussian_mean
from edgewise.theory.averages.activation_averages import Activation
from edgewise.theory.gram.state import GramState, Real, without_diagonal

Later = Callable[[], Real]
NODES = 65  # exact evaluations in the angle, Chebyshev
GRID = 8192  # points of the linear table read from them: error 2e-8 (1 + q)
ROWS = 64  # read at once, so that work arrays stay in the cache
STEEP = 1e3  # variance above which the table is too coarse, and every pair is averaged directly
ANGLES = 33
CELL = 0.5  # the range of log q is rounded outwards to this, so that layers share tables


class PairAverages:
    """The averages of one state: values at once, slopes (n, n) when the backward pass asks for them.

    values  the geometry of phi(u) for Gaussian u: squares E phi(u_a)^2, spreads E (phi(u_a) - phi(u_b))^2 / 2
    slopes  E phi'(u_a) phi'(u_b), the diagonal included
    """

    def __init__(self, phi: Activation, state: GramState) -> None:
        low, high = float(state.squares.min()), float(state.squares.max())
        variance = (low + high) / 2 if high - low <= 1e-12 * high else None
        if variance is not None:
            self.values, self.slopes = _equal(phi, state, variance)
        elif _homogeneous(phi):
            self.values, self.slopes = _scaled(phi, state)
        else:
            wide = state.in_precision(np.float64)
            logs, angle = np.log(wide.squares), angles(wide.separations)
            # One that covers these variances; neighboring layers mostly share it.
            table = pair_table(phi, math.floor(logs.min() / CELL), math.ceil(logs.max() / CELL))
            values = table.values(wide, angle).in_precision(state.spreads.dtype)
            self.values, self.slopes = (
                values,
                lambda: table.slope_products(wide, angle).astype(state.spreads.dtype, copy=False),
            )


def _equal(phi: Activation, state: GramState, q: float) -> tuple[GramState, Later]:
    """All tokens of one variance."""
    squares = np.full_like(state.squares, float(phi.square(q)))
    if q == 0:
        flat = GramState(squares, np.zeros_like(state.spreads))
        return flat, lambda: state.spreads + float(phi.slope_square(0.0))
    if q > STEEP:
        separations = np.clip(state.spreads.astype(np.float64) / q, 0.0, 2.0)
        steep = GramState(squares, state.spreads * phi.chord(q, separations))
        return steep, lambda: phi.slope_product_apart(q, separations)
    place = _Place(state.spreads * (1 / q))
    spreads = place.read(_chords(phi, q))
    spreads *= state.spreads
    return GramState(squares, spreads), lambda: place.read(_slopes(phi, q))


def angles(separations: Real) -> Real:
    """Return the angle in [0, pi] of cosine 1 - e: kinks of phi are smooth in it, and it is exact for small e."""
    halves = separations * 0.5
    np.clip(halves, 0.0, 1.0, out=halves)
    np.arcsin(np.sqrt(halves, out=halves), out=halves)
    return np.multiply(halves, 2, out=halves)


class _Place:
    """Where separations fall on the uniform grid of angles, for linear interpolation."""

    def __init__(self, separations: Real) -> None:
        self.position = angles(separations)
        self.position *= GRID / np.pi

    def read(self, table: Array) -> Real:
        """table (2, GRID): values and rises."""
        values, rises = table.astype(self.position.dtype, copy=False)
        read = np.empty_like(self.position)
        for first in range(0, len(read), ROWS):
            position, value = self.position[first : first + ROWS], read[first : first + ROWS]
            left = position.astype(np.int32)
            rest = position - left.astype(position.dtype)
            place = left.astype(np.intp)
            rises.take(place, out=value, mode="clip")
            value *= rest
            value += values.take(place, mode="clip")
        return read


@lru_cache(maxsize=256)
def _chords(phi: Activation, q: float) -> Array:
    return _tabulate(phi.chord(q, _node_separations()))


@lru_cache(maxsize=256)
def _slopes(phi: Activation, q: float) -> Array:
    return _tabulate(phi.slope_product_apart(q, _node_separations()))


def _node_separations() -> Array:
    """1 - cos of the angles at Chebyshev points of [0, pi]."""
    theta = np.pi * (1 + np.polynomial.chebyshev.chebpts2(NODES)) / 2
    return 2 * np.sin(theta / 2) ** 2


def _tabulate(values: Array) -> Array:
    """Return the Chebyshev interpolant on the uniform grid of angles, and its rises (2, GRID)."""
    nodes = np.polynomial.chebyshev.chebpts2(NODES)
    series = np.polynomial.chebyshev.Chebyshev.fit(nodes, values, NODES - 1, domain=[-1, 1])
    fine = series(np.linspace(-1, 1, GRID + 1))
    return np.stack([fine[:-1], np.diff(fine)])


@lru_cache(maxsize=64)
def _homogeneous(phi: Activation) -> bool:
    """phi(t x) = t phi(x) for t > 0: linear, ReLU, leaky ReLU."""
    x = np.array([-3.0, -0.7, 0.0, 0.4, 5.0])
    return bool(np.allclose(phi.function(8 * x), 8 * phi.function(x), rtol=1e-12, atol=0.0))


def _scaled(phi: Activation, state: GramState) -> tuple[GramState, Later]:
    """phi(sqrt(q) z) = sqrt(q) phi(z): the averages at unit variance, exactly."""
    lengths = np.sqrt(state.squares).astype(state.spreads.dtype)
    unit, place = float(phi.square(1.0)), _Place(state.separations)
    across = lengths[:, None] * lengths * state.separations * place.read(_chords(phi, 1.0))
    along = (lengths[:, None] - lengths) ** 2 * (unit / 2)
    return GramState(state.squares * unit, along + across), lambda: place.read(_slopes(phi, 1.0))


@dataclass(frozen=True)
class AngleScale:
    """Angles in [0, pi] to x in [-1, 1], stretched near both ends below `width`."""

    width: float

    def forward(self, angle: Array) -> Array:
        y = np.arcsinh(angle / self.width) - np.arcsinh((math.pi - angle) / self.width)
        return np.asarray(y / math.asinh(math.pi / self.width))

    def inverse(self, x: Array) -> Array:
        """By bisection."""
        low, high = np.zeros_like(x), np.full_like(x, math.pi)
        for _ in range(60):
            middle = (low + high) / 2
            above = self.forward(middle) > x
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.asarray((low + high) / 2)

    def stretch(self, angle: Array) -> Array:
        """d angle / dx."""
        slope = 1 / np.hypot(angle, self.width) + 1 / np.hypot(math.pi - angle, self.width)
        return np.asarray(math.asinh(math.pi / self.width) / slope)


@dataclass(frozen=True)
class VarianceTable:
    """Interpolants of one activation over a range of log q."""

    phi: Activation
    low: float
    high: float
    scale: AngleScale
    ratios: Array  # R (K, K)
    slopes: Array  # Chebyshev coefficients of M in the angle (A, K, K)
    chords: Array  # the same of the mean of M over [c, 1]

    def values(self, state: GramState, angle: Array) -> GramState:
        """Squares and spreads of phi(u)."""
        s, weights = np.log(state.squares), self._weights(state)
        squares = self.phi.square(state.squares)
        along = (s[:, None] - s) ** 2 * _between(weights, self.ratios)
        chord = _series(weights, self.chords, self.scale.forward(angle))
        roots = np.sqrt(state.squares)
        across = roots[:, None] * roots * state.separations * chord
        return GramState(squares, without_diagonal(np.maximum(along + across, 0.0)))

    def slope_products(self, state: GramState, angle: Array) -> Array:
        """E phi'(u_a) phi'(u_b) (n, n)."""
        return _series(self._weights(state), self.slopes, self.scale.forward(angle))

    def _weights(self, state: GramState) -> Array:
        # Values at x of the polynomials that are 1 at one Chebyshev point and 0 at the others (n, K).
        x = _unit(np.log(state.squares), self.low, self.high)
        count = self.ratios.shape[0]
        nodes = chebyshev.chebpts1(count)
        return np.asarray(
            np.linalg.solve(chebyshev.chebvander(nodes, count - 1).T, chebyshev.chebvander(x, count - 1).T).T
        )


@lru_cache(maxsize=64)
def pair_table(phi: Activation, low_cell: int, high_cell: int) -> VarianceTable:
    low, high = low_cell * CELL, max(high_cell, low_cell + 1) * CELL
    count = 4 + math.ceil(2.0 * (high - low))
    s = low + (high - low) * (1 + chebyshev.chebpts1(count)) / 2
    scale = AngleScale(min(1.0, math.exp(-high / 2)))
    nodes = chebyshev.chebpts1(ANGLES)
    slopes = _fit(np.stack([_slope_products(phi, np.exp(s), theta) for theta in scale.inverse(nodes)]))
    chords = _fit(np.stack([_mean_up_to(x, slopes, scale) for x in nodes]))
    return VarianceTable(phi, low, high, scale, _ratios(phi, s), slopes, chords)


def _fit(values: Array) -> Array:
    """Chebyshev coefficients in x of what is given at its nodes (A, K, K)."""
    flat = chebyshev.chebfit(chebyshev.chebpts1(ANGLES), values.reshape(ANGLES, -1), ANGLES - 1)
    return np.asarray(flat, dtype=np.float64).reshape(values.shape)


def _unit(values: Array, low: float, high: float) -> Array:
    """[low, high] to [-1, 1]."""
    return np.asarray((2 * values - low - high) / (high - low))


def _between(weights: Array, values: Array) -> Array:
    """sum_ij w_ai f_ij w_bj (n, n)."""
    return weights @ values @ weights.T


def _series(weights: Array, coefficients: Array, x: Array) -> Array:
    """sum_k T_k(x) f_k(s_a, s_b) by Clenshaw's recursion, every coefficient an (n, n) matrix of rank K."""
    b1 = b2 = np.zeros_like(x)
    for f in coefficients[:0:-1]:
        b1, b2 = _between(weights, f) - b2 + 2 * x * b1, b1
    return _between(weights, coefficients[0]) - b2 + x * b1


def _slope_products(phi: Activation, variances: Array, theta: float) -> Array:
    """M_ij = E_w G_i(w) G_j(+-w), G_i(w) = E_z phi'(sqrt(q_i)(sqrt|c| w + sqrt(1-|c|) z)) (K, K)."""
    c = math.cos(theta)
    rest = 2 * math.sin(min(theta, math.pi - theta) / 2) ** 2
    grain = _grain(phi)
    outer = np.sqrt(variances * (1 - rest))
    w, weights = _rule(grain, outer, variances * rest)
    g = np.stack(
        [
            gaussian_mean.smoothed(phi.derivative, deviation * w, q * rest, grain)
            for deviation, q in zip(outer, variances, strict=True)
        ]
    )
    other = g if c >= 0 else g[:, ::-1]  # the nodes are symmetric
    return np.asarray((g * weights) @ other.T)


def _grain(phi: Activation) -> gaussian_mean.Grain:
    return gaussian_mean.Grain(tuple(sorted({0.0, *phi.kinks})), 0.5, bool(phi.kinks))


def _rule(grain: gaussian_mean.Grain, deviations: Array, private: Array) -> tuple[Array, Array]:
    """Nodes and weights in w, symmetric about 0, that resolve phi for the narrowest and the widest variance."""
    marks = [np.zeros(1)]
    for deviation, own in zip(deviations, private, strict=True):
        scale = min(grain.scale, max(0.5 * own**0.5, 1e-9)) if grain.kinked else grain.scale
        reach = gaussian_mean.REACH * deviation + max(abs(x) for x in grain.centres)
        marks.append(gaussian_mean.graded_marks(grain.centres, scale, reach) / max(deviation, 1e-12))
    cuts = np.unique(np.concatenate(marks).round(12))
    cuts = cuts[np.abs(cuts) < gaussian_mean.REACH]
    cuts = np.unique(np.concatenate([cuts, -cuts]))
    positive = [c for c in cuts if c > 0]  # no two closer than a factor two, as panels are graded
    thin: list[float] = []
    for cut in positive:
        if not thin or cut > 1.9 * thin[-1]:
            thin.append(float(cut))
    return gaussian_mean.gaussian_rule(0.0, 1.0, np.array([*(-c for c in reversed(thin)), 0.0, *thin]))


def _mean_up_to(x: float, slopes: Array, scale: AngleScale) -> Array:
    """Mean of M over correlations in [cos theta, 1]: integral_0^theta M sin / (1 - cos theta) (K, K)."""
    node, weight = np.polynomial.legendre.leggauss(60)
    t = -1 + (x + 1) * (1 + node) / 2
    angle = scale.inverse(np.append(t, x))
    theta = angle[-1]
    density = weight * (x + 1) / 2 * np.sin(angle[:-1]) * scale.stretch(angle[:-1])
    return np.asarray(chebyshev.chebval(t, slopes) @ density / (2 * math.sin(theta / 2) ** 2))


def _ratios(phi: Activation, s: Array) -> Array:
    """R_ij = E (phi(e^{s_i/2} z) - phi(e^{s_j/2} z))^2 / 2 (s_i - s_j)^2, its limit on the diagonal (K, K)."""
    deviations = np.exp(s / 2)
    z, weights = _rule(_grain(phi), deviations, np.zeros_like(deviations) + 1.0)
    u = deviations[:, None] * z
    values, tangents = phi.function(u), u * phi.derivative(u) / 2
    apart = values[:, None] - values[None]
    gaps = s[:, None] - s[None] + np.eye(len(s))
    ratios = np.sum(apart**2 * weights, axis=-1) / (2 * gaps**2)
    return np.asarray(
        np.where(np.eye(len(s)) > 0, np.diag(np.sum(tangents**2 * weights, axis=-1) / 2), ratios)
    )
