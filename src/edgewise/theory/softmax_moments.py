"""Softmax moments of Gaussian logits, the public face: exact at finite n, vectorised over variance and correlation."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgewise.errors import BadInput
from edgewise.theory.softmax_quadrature import SoftmaxMoments, quadrature_moments

__all__ = ["MomentTable", "OverlapMoments", "SoftmaxMoments", "moment_table", "softmax_moments"]
Array = NDArray[np.float64]


class OverlapMoments(NamedTuple):
    """The five moments the simplex recursion needs, each of the shape of its arguments."""

    s2: Array
    s11: Array
    chord: Array
    r2: Array
    t11: Array


class MomentTable:
    """Moments for one number of tokens, as functions of variance v and correlation rho."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def overlaps(self, variance: ArrayLike, correlation: ArrayLike) -> OverlapMoments:
        """s2, s11, chord, r2, t11 at broadcast (variance, correlation)."""
        moments = self.moments(variance, correlation)
        return OverlapMoments(*(getattr(moments, name) for name in OverlapMoments._fields))

    def moments(self, variance: ArrayLike, correlation: ArrayLike) -> SoftmaxMoments:
        """Every moment at broadcast (variance, correlation)."""
        v, rho = np.broadcast_arrays(np.asarray(variance, float), np.asarray(correlation, float))
        points = [_point(float(a), float(b), self.tokens) for a, b in zip(v.ravel(), rho.ravel(), strict=True)]
        names = [f.name for f in fields(SoftmaxMoments)]
        return SoftmaxMoments.of(**{m: np.reshape([getattr(p, m) for p in points], v.shape) for m in names})

    def entropy(self, variance: ArrayLike) -> Array:
        """Expected row entropy E[-sum s log s]."""
        return self.moments(variance, 0.0).entropy


@lru_cache(maxsize=64)
def moment_table(tokens: int) -> MomentTable:
    """The table for one number of tokens n >= 1, kept for the next call."""
    if tokens < 1 or int(tokens) != tokens:
        raise BadInput(f"tokens must be a whole number >= 1, got {tokens}: pass the number of keys a row attends to")
    return MomentTable(int(tokens))


def softmax_moments(variance: ArrayLike, correlation: ArrayLike, tokens: int) -> SoftmaxMoments:
    """All moments of softmax rows over n keys with logits N(0, v), correlation rho between two rows."""
    return moment_table(tokens).moments(variance, correlation)


@lru_cache(maxsize=4096)
def _point(variance: float, correlation: float, tokens: int) -> SoftmaxMoments:
    return quadrature_moments(variance, correlation, tokens)
