"""The dense state of n tokens: their squares and their mutual distances, accurate however close they are.

q_a = |x_a|^2 / d and H_ab = |x_a - x_b|^2 / 2d carry the Gram matrix C_ab = (q_a + q_b)/2 - H_ab without
its cancellation: under rank collapse H falls to 1e-12 of q and keeps all its digits.
`Root` draws Gaussian features with this covariance, accurate relative to the distances between tokens.
Shapes: n tokens; everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.gram.normals import Normals

Precision = Any  # numpy.float32 or numpy.float64, of the sampled heads
Real = NDArray[Any]  # in that precision
BLOCK = 64


@dataclass(frozen=True)
class Geometry:
    """Squares q (n,) and spreads H (n, n), both per coordinate."""

    squares: Array
    spreads: Array

    @property
    def tokens(self) -> int:
        return len(self.squares)

    @property
    def overlaps(self) -> Array:
        """The Gram matrix C (n, n)."""
        return mean_of_pair(self.squares) - self.spreads

    @property
    def norm(self) -> float:
        return float(self.squares.mean())

    @property
    def separation(self) -> float:
        """Mean of 1 - cosine over pairs of different tokens."""
        return float(self.separations.sum()) / (self.tokens * (self.tokens - 1))

    @cached_property
    def separations(self) -> Array:
        """1 - cosine = (H - (sqrt q_a - sqrt q_b)^2 / 2) / sqrt(q_a q_b), free of cancellation (n, n)."""
        lengths = np.sqrt(self.squares)
        apart = lengths[:, None] - lengths
        np.square(apart, out=apart)
        apart *= -0.5
        apart += self.spreads
        apart /= lengths[:, None] * lengths
        return without_diagonal(np.clip(apart, 0.0, 2.0, out=apart))

    def scaled(self, factor: float) -> Geometry:
        return Geometry(self.squares * factor, self.spreads * factor)

    def plus(self, other: Geometry) -> Geometry:
        return Geometry(self.squares + other.squares, self.spreads + other.spreads)


def mean_of_pair(values: Array) -> Array:
    """(v_a + v_b) / 2 for a vector v (n, n)."""
    return (values[:, None] + values) / 2


def without_diagonal(matrix: Array) -> Array:
    """The matrix with its diagonal set to 0, in place."""
    np.fill_diagonal(matrix, 0.0)
    return matrix


def simplex(tokens: int, norm: float, overlap: float) -> Geometry:
    """Every token of square q, every pair at the same cosine."""
    return Geometry(np.full(tokens, norm), without_diagonal(np.full((tokens, tokens), norm * (1.0 - overlap))))


def from_overlaps(gram: Array) -> Geometry:
    """The state of a measured Gram matrix x_a.x_b / d, refused unless it can be one."""
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise BadInput(f"the start Gram matrix has shape {gram.shape}; expected (tokens, tokens).")
    if not np.isfinite(gram).all():
        raise BadInput("the start Gram matrix has entries that are not finite numbers; expected x_a.x_b / width.")
    squares = gram.diagonal().copy()
    if (squares <= 0).any():
        token = int(squares.argmin())
        raise BadInput(f"token {token} of the start Gram matrix has square {float(squares[token])}; leave it out.")
    largest = float(squares.max())
    if float(np.abs(gram - gram.T).max()) > 1e-6 * largest:
        raise BadInput("the start Gram matrix is not symmetric; expected x_a.x_b / width for every pair of tokens.")
    lowest = float(np.linalg.eigvalsh((gram + gram.T) / 2)[0])
    if lowest < -1e-6 * float(squares.sum()):
        raise BadInput(f"the start Gram matrix has the eigenvalue {lowest:g}; overlaps of vectors have none below 0.")
    spreads = np.maximum(mean_of_pair(squares) - (gram + gram.T) / 2, 0.0)
    return Geometry(squares, without_diagonal(spreads))


def square_root(matrix: Array, dtype: Precision) -> tuple[Array, Array]:
    """Scales s (n,) and a lower triangular L (n, n) with diag(s) L L^T diag(s) = matrix, positive up to rounding.

    The jitter that products in `dtype` make necessary is relative to each diagonal entry, hence the scales.
    """
    scales = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
    inverse = inverse_or_zero(scales)
    correlations = matrix * inverse[:, None] * inverse
    jitter = max(float(np.finfo(dtype).eps) * len(matrix) ** 0.5, 1e-12)
    while jitter < 0.01:
        np.fill_diagonal(correlations, 1.0 + jitter)
        try:
            return scales, np.asarray(np.linalg.cholesky(correlations), np.float64)
        except np.linalg.LinAlgError:  # not positive: more jitter
            jitter *= 30
    # Deep in collapse distances differ by more digits than a double has: keep what is positive of the correlations.
    np.fill_diagonal(correlations, 1.0)
    values, vectors = np.linalg.eigh(correlations)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    norms = np.sqrt(np.maximum(positive.diagonal(), 1e-300))
    nearest = positive / norms[:, None] / norms
    np.fill_diagonal(nearest, 1.0 + 1e-6)
    return scales, np.asarray(np.linalg.cholesky(nearest), np.float64)


def inverse_or_zero(values: Array) -> Array:
    """1/x, and 0 where x is 0."""
    return np.where(values > 0, 1 / np.where(values > 0, values, 1.0), 0.0)


@dataclass(frozen=True)
class Root:
    """Features f_a = f + g_a with g = R z and f = w.z + t z': covariance U exactly, small g kept apart from f."""

    apart: Real  # R (n, n), lower triangular square root of the centred overlaps
    shared: Real  # w (n,)
    rest: float  # t

    def draw(self, heads: int, width: int, normals: Normals) -> tuple[Real, Real]:
        """f (h, 1, k) and g (h, n, k), one independent feature per head and coordinate."""
        n, dtype = len(self.shared), self.shared.dtype
        z = normals.normal(n, heads * width, dtype=dtype)
        alone = normals.normal(heads * width, dtype=dtype)
        g = lower_product(self.apart, z).reshape(n, heads, width).transpose(1, 0, 2)
        f = self.shared @ z + dtype.type(self.rest) * alone
        return f.reshape(heads, 1, width), g


def lower_product(lower: Real, columns: Real) -> Real:
    """L x for lower triangular L (n, n), in blocks of rows that leave out the zeros above the diagonal."""
    product = np.empty_like(columns)
    for start in range(0, len(lower), BLOCK):
        stop = min(start + BLOCK, len(lower))
        np.matmul(lower[start:stop, :stop], columns[:stop], out=product[start:stop])
    return product


def lower_solve(lower: Array, values: Array) -> Array:
    """L^-1 v for lower triangular L (n, n), block by block."""
    solution = np.empty_like(values)
    for start in range(0, len(lower), BLOCK):
        rows = slice(start, start + BLOCK)
        rest = values[rows] - lower[rows, :start] @ solution[:start]
        solution[rows] = np.linalg.solve(lower[rows, rows], rest)
    return solution


def geometry_root(state: Geometry, dtype: Precision) -> Root:
    """Centre the tokens, x_a = m + y_a: the overlaps of y are the doubly centred -H, those with m follow from q."""
    mean_spread = state.spreads.mean(-1)
    centred = mean_spread[:, None] + mean_spread - mean_spread.mean() - state.spreads
    along = (state.squares - state.squares.mean()) / 2 - (mean_spread - mean_spread.mean())  # m . y_a
    scales, lower = square_root(centred, dtype)
    shared = lower_solve(lower, along * inverse_or_zero(scales))
    square = float(state.squares.mean() - mean_spread.mean())  # |m|^2
    rest = max(0.0, square - float(shared @ shared)) ** 0.5
    return Root((scales[:, None] * lower).astype(dtype), shared.astype(dtype), rest)
