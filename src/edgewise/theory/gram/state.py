"""The dense state of n tokens, its square root, and random features that have its overlaps.

q_a = |x_a|^2 / d and H_ab = |x_a - x_b|^2 / 2d carry the Gram matrix C_ab = (q_a + q_b)/2 - H_ab without
its cancellation: under rank collapse H falls to 1e-12 of q and keeps all its digits.
Squares are float64; spreads may be float32 while tokens are well apart (`roomy`).

`Root` draws Gaussian features with the covariance of a state, accurate relative to the distances between tokens, from
normal numbers that depend on a seed alone: words of SFC64 [Doty-Humphrey 2018] and Box-Muller.
numpy's own Cholesky factor of 256 rows takes three times as long as one in blocks.

Shapes: n tokens, h heads, k head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput

Precision = Any  # numpy.float32 or numpy.float64, of the sampled heads
Real = NDArray[Any]  # in that precision


ROOMY = 0.01  # mean of 1 - cosine above which single precision tells tokens apart to five digits
ORDINARY = 1e6  # norms up to this, and from its inverse on, are far from the ends of single precision


@dataclass(frozen=True)
class GramState:
    """Squares q (n,) and spreads H (n, n), both per coordinate."""

    squares: Array
    spreads: Real

    @property
    def tokens(self) -> int:
        return len(self.squares)

    @property
    def overlaps(self) -> Real:
        """The Gram matrix C (n, n)."""
        overlaps = mean_of_pair(self.squares, self.spreads.dtype)
        overlaps -= self.spreads
        return overlaps

    @property
    def norm(self) -> float:
        return float(self.squares.mean())

    @cached_property
    def separation(self) -> float:
        """Mean of 1 - cosine over pairs of different tokens."""
        return float(self.separations.sum(dtype=np.float64)) / (self.tokens * (self.tokens - 1))

    @cached_property
    def separations(self) -> Real:
        """1 - cosine = (H - (sqrt q_a - sqrt q_b)^2 / 2) / sqrt(q_a q_b), free of cancellation (n, n)."""
        lengths = np.sqrt(self.squares).astype(self.spreads.dtype)
        apart = lengths[:, None] - lengths
        np.square(apart, out=apart)
        apart *= -0.5
        apart += self.spreads
        inverse = 1 / lengths
        apart *= inverse[:, None]
        apart *= inverse
        return without_diagonal(np.clip(apart, 0.0, 2.0, out=apart))

    @property
    def roomy(self) -> bool:
        """True if single precision suffices: tokens of ordinary length that are well apart."""
        return self.separation > ROOMY and 1 / ORDINARY < self.norm < ORDINARY

    def in_precision(self, dtype: Precision) -> GramState:
        """Return the same with spreads of this type."""
        return self if self.spreads.dtype == dtype else GramState(self.squares, self.spreads.astype(dtype))

    def scaled(self, factor: float) -> GramState:
        return self if factor == 1 else GramState(self.squares * factor, self.spreads * float(factor))

    def plus(self, other: GramState) -> GramState:
        return GramState(self.squares + other.squares, self.spreads + other.spreads)


def mean_of_pair(values: Array, dtype: Precision = np.float64) -> Real:
    """(v_a + v_b) / 2 for a vector v (n, n)."""
    halves = (values * 0.5).astype(dtype)
    return np.asarray(halves[:, None] + halves)


def without_diagonal(matrix: Array) -> Array:
    """Return the matrix with its diagonal set to 0, in place."""
    np.fill_diagonal(matrix, 0.0)
    return matrix


def simplex(tokens: int, norm: float, overlap: float) -> GramState:
    """Every token of square q, every pair at the same cosine."""
    return GramState(
        np.full(tokens, norm), without_diagonal(np.full((tokens, tokens), norm * (1.0 - overlap)))
    )


def from_overlaps(gram: Array) -> GramState:
    """Return the state of a measured Gram matrix x_a.x_b / d, raise unless it can be one."""
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise BadInput(f"the start Gram matrix has shape {gram.shape}; expected (tokens, tokens).")
    if not np.isfinite(gram).all():
        raise BadInput(
            "the start Gram matrix has entries that are not finite numbers; expected x_a.x_b / width."
        )
    squares = gram.diagonal().copy()
    if (squares <= 0).any():
        token = int(squares.argmin())
        raise BadInput(
            f"token {token} of the start Gram matrix has square {float(squares[token])}; leave it out."
        )
    largest = float(squares.max())
    if float(np.abs(gram - gram.T).max()) > 1e-6 * largest:
        raise BadInput(
            "the start Gram matrix is not symmetric; expected x_a.x_b / width for every pair of tokens."
        )
    lowest = float(np.linalg.eigvalsh((gram + gram.T) / 2)[0])
    if lowest < -1e-6 * float(squares.sum()):
        raise BadInput(
            f"the start Gram matrix has the eigenvalue {lowest:g}; overlaps of vectors have none below 0."
        )
    spreads = np.maximum(mean_of_pair(squares) - (gram + gram.T) / 2, 0.0)
    return GramState(squares, without_diagonal(spreads))


CHUNK = 2**14  # numbers whose work arrays stay in the cache; even


class Normals:
    """Draws in single or double precision; the same seed gives the same numbers."""

    def __init__(self, seed: int) -> None:
        self._words = np.random.SFC64(seed)

    def uniform(self, size: int, dtype: Precision = np.float32) -> Real:
        """In [0, 1): 24 bits of half a word, or 53 of one."""
        if dtype == np.float32:
            halves = self._draw((size + 1) // 2).view(np.uint32)[:size]
            return (halves >> np.uint32(8)).view(np.int32).astype(np.float32) * np.float32(2.0**-24)
        return (self._draw(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, *shape: int, dtype: Precision = np.float32) -> Real:
        """Independent normal numbers of this shape."""
        size = math.prod(shape)
        values = np.empty(size + size % 2, dtype)
        for first in range(0, size, CHUNK):
            part = values[first : first + CHUNK]
            _box_muller(self.uniform(part.size, dtype), part)
        return values[:size].reshape(shape)

    def _draw(self, size: int) -> NDArray[np.uint64]:
        return np.asarray(self._words.random_raw(size), np.uint64)


def _box_muller(uniform: Real, out: Real) -> None:
    """r cos(a), r sin(a) with r = sqrt(-2 log(1 - u)), a = 2 pi u'."""
    radius, angle = uniform.reshape(2, -1)
    np.log(np.subtract(1, radius, out=radius), out=radius)
    np.sqrt(np.multiply(radius, -2, out=radius), out=radius)
    angle *= 2 * math.pi
    first, second = out.reshape(2, -1)
    np.multiply(np.cos(angle, out=first), radius, out=first)
    np.multiply(np.sin(angle, out=second), radius, out=second)


BLOCK = 64  # rows of a product
SMALL, LARGE = 32, 1e30  # rows of a factor


@dataclass(frozen=True)
class Root:
    """Features f_a = f + g_a with g = R z and f = w.z + t z': covariance U exactly, small g kept apart from f."""

    apart: Real  # R (n, n), lower triangular square root of the centered overlaps
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


def geometry_root(state: GramState, dtype: Precision) -> Root:
    """Centre the tokens, x_a = m + y_a: the overlaps of y are the doubly centered -H, those with m follow from q."""
    mean_spread = state.spreads.mean(-1, dtype=np.float64)
    excess = mean_spread - mean_spread.mean()
    rows = np.empty((state.tokens + 1, state.tokens), state.spreads.dtype)
    np.subtract(excess.astype(rows.dtype)[:, None], state.spreads, out=rows[:-1])
    rows[:-1] += mean_spread.astype(rows.dtype)
    rows[-1] = (state.squares - state.squares.mean()) / 2 - excess  # m . y_a
    scales, lower = square_root(rows, dtype)
    shared = lower[-1].astype(np.float64)
    square = float(state.squares.mean() - mean_spread.mean())  # |m|^2
    rest = max(0.0, square - float(shared @ shared)) ** 0.5
    return Root(scaled_rows(scales, lower[:-1], dtype), shared.astype(dtype), rest)


def square_root(matrix: Real, dtype: Precision) -> tuple[Array, Real]:
    """Scales s (n,) and a lower triangular L (n, n) with diag(s) L L^T diag(s) = matrix, positive up to rounding.

    Rows B below the matrix become B (diag(s) L)^-T. The jitter that products in `dtype` make necessary is relative to
    each diagonal entry, hence the scales. A matrix in single precision is tried in that first.
    """
    n = matrix.shape[1]
    scales = np.sqrt(np.maximum(matrix.diagonal(), 0.0, dtype=np.float64))
    inverse = np.where(scales > 0, 1 / np.where(scales > 0, scales, 1.0), 0.0).astype(matrix.dtype)
    correlations = matrix * inverse
    correlations[:n] *= inverse[:, None]
    jitter = max(float(np.finfo(dtype).eps) * n**0.5, 1e-12)
    while jitter < 0.01:
        np.fill_diagonal(correlations, 1.0 + jitter)
        try:
            return scales, cholesky(correlations)
        except np.linalg.LinAlgError:  # not positive: more digits, then more jitter
            jitter *= 30 if correlations.dtype == np.float64 else 1
            correlations = correlations.astype(np.float64)
    return scales, cholesky(np.concatenate([_nearest(correlations[:n]), correlations[n:]]))


def _nearest(correlations: Array) -> Array:
    """Return what is positive of correlations: deep in collapse distances differ by more digits than a double has."""
    np.fill_diagonal(correlations, 1.0)
    values, vectors = np.linalg.eigh(correlations)
    positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
    norms = np.sqrt(np.maximum(positive.diagonal(), 1e-300))
    nearest = positive / norms[:, None] / norms
    np.fill_diagonal(nearest, 1.0 + 1e-6)
    return np.asarray(nearest, np.float64)


def scaled_rows(scales: Array, lower: Real, dtype: Precision) -> Real:
    """diag(s) L (n, n), in the precision of the heads."""
    root = lower.astype(dtype)
    root *= scales.astype(dtype)[:, None]
    return root


def cholesky(matrix: Real) -> Real:
    """Lower triangular L with L L^T = matrix (n, n); what stands below it, rows B, becomes B L^-T.

    In blocks: the factor of [[A, 1], [1, large]] holds that of A, and the inverse that the rows below it need.
    LinAlgError if the matrix is not positive.
    """
    n = matrix.shape[1]
    lower = np.zeros_like(matrix)
    for start in range(0, n, SMALL):
        size = min(SMALL, n - start)
        stop = start + size
        panel = matrix[start:, start:stop] - lower[start:, :start] @ lower[start:stop, :start].T
        bordered = np.diag(np.full(2 * size, LARGE, matrix.dtype))
        bordered[:size, :size] = panel[:size]
        np.fill_diagonal(bordered[size:, :size], 1.0)
        factor = np.linalg.cholesky(bordered)
        lower[start:stop, start:stop] = factor[:size, :size]
        np.matmul(panel[size:], factor[size:, :size], out=lower[stop:, start:stop])
    return lower


def lower_product(lower: Real, columns: Real) -> Real:
    """L x for lower triangular L (n, n), in blocks of rows that leave out the zeros above the diagonal."""
    product = np.empty_like(columns)
    for start in range(0, len(lower), BLOCK):
        stop = min(start + BLOCK, len(lower))
        np.matmul(lower[start:stop, :stop], columns[:stop], out=product[start:stop])
    return product
