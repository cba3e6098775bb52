"""The dense state of n tokens: their squares and their mutual distances, accurate however close they are.

q_a = |x_a|^2 / d and H_ab = |x_a - x_b|^2 / 2d carry the Gram matrix C_ab = (q_a + q_b)/2 - H_ab without
its cancellation: under rank collapse H falls to 1e-12 of q and keeps all its digits.
Squares are float64; spreads may be float32 while tokens are well apart (`roomy`). Shapes: n tokens.
"""

from __future__ import annotations

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
class Geometry:
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
        """Whether single precision suffices: tokens of ordinary length that are well apart."""
        return self.separation > ROOMY and 1 / ORDINARY < self.norm < ORDINARY

    def in_precision(self, dtype: Precision) -> Geometry:
        """The same with spreads of this type."""
        return self if self.spreads.dtype == dtype else Geometry(self.squares, self.spreads.astype(dtype))

    def scaled(self, factor: float) -> Geometry:
        return self if factor == 1 else Geometry(self.squares * factor, self.spreads * float(factor))

    def plus(self, other: Geometry) -> Geometry:
        return Geometry(self.squares + other.squares, self.spreads + other.spreads)


def mean_of_pair(values: Array, dtype: Precision = np.float64) -> Real:
    """(v_a + v_b) / 2 for a vector v (n, n)."""
    halves = (values * 0.5).astype(dtype)
    return halves[:, None] + halves


def without_diagonal(matrix: Array) -> Array:
    """The matrix with its diagonal set to 0, in place."""
    np.fill_diagonal(matrix, 0.0)
    return matrix


def simplex(tokens: int, norm: float, overlap: float) -> Geometry:
    """Every token of square q, every pair at the same cosine."""
    return Geometry(
        np.full(tokens, norm), without_diagonal(np.full((tokens, tokens), norm * (1.0 - overlap)))
    )


def from_overlaps(gram: Array) -> Geometry:
    """The state of a measured Gram matrix x_a.x_b / d, refused unless it can be one."""
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
    return Geometry(squares, without_diagonal(spreads))
