"""Square roots of overlaps, and random features that have these overlaps.

`Root` draws Gaussian features with the covariance of a state, accurate relative to the distances between tokens.
numpy's own Cholesky factor of 256 rows takes three times as long as one in blocks.

Shapes: n tokens, h heads, k head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.theory.gram.geometry import Geometry, Precision, Real
from edgewise.theory.gram.normals import Normals

BLOCK = 64  # rows of a product
SMALL, LARGE = 32, 1e30  # rows of a factor


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


def geometry_root(state: Geometry, dtype: Precision) -> Root:
    """Centre the tokens, x_a = m + y_a: the overlaps of y are the doubly centred -H, those with m follow from q."""
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
    inverse = inverse_or_zero(scales).astype(matrix.dtype)
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
    """What is positive of correlations: deep in collapse distances differ by more digits than a double has."""
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


def inverse_or_zero(values: Array) -> Array:
    """1/x, and 0 where x is 0."""
    return np.where(values > 0, 1 / np.where(values > 0, values, 1.0), 0.0)


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
