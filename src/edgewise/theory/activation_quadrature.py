"""Gaussian averages of an activation that has no closed form: panels, directly."""

from __future__ import annotations

import numpy as np

from edgewise.theory import gaussian_mean
from edgewise.theory.activation_functions import Pointwise
from edgewise.theory.gaussian_mean import Array, Function


class Quadrature:
    """Averages of a pointwise activation. Arrays q and e come broadcast to one shape."""

    def __init__(self, pointwise: Pointwise) -> None:
        self.pointwise = pointwise
        self.value, self.slope = pointwise.value, pointwise.slope
        self.kinks = pointwise.kinks

    def _mean(self, function: Function, q: Array) -> Array:
        return gaussian_mean.mean(function, q, self.pointwise.centres)

    def square(self, q: Array) -> Array:
        return self._mean(lambda x: self.value(x) ** 2, q)

    def slope_square(self, q: Array) -> Array:
        return self._mean(lambda x: self.slope(x) ** 2, q)

    def mean(self, q: Array) -> Array:
        return self._mean(self.value, q)

    def curvature_square(self, q: Array) -> Array | None:
        curvature = self.pointwise.curvature
        return None if curvature is None else self._mean(lambda x: curvature(x) ** 2, q)

    def length_slope(self, q: Array) -> Array:
        curvature = self.pointwise.curvature
        if curvature is not None:
            return self._mean(lambda x: self.slope(x) ** 2 + self.value(x) * curvature(x), q)
        q = np.maximum(q, 1e-12)  # E[u phi phi'] / q is 0/0 at q = 0
        return np.asarray(self._mean(lambda x: x * self.value(x) * self.slope(x), q) / q)

    def slope_product(self, q: Array, e: Array) -> Array:
        """One pair quadrature per point: exact and slow."""
        flat = [self._pair(float(v), float(s)) for v, s in zip(np.ravel(q), np.ravel(e), strict=True)]
        return np.asarray(flat).reshape(np.shape(q))

    def _pair(self, q: float, e: float) -> float:
        sign = 1.0 if e <= 1 else -1.0
        kinked = bool(self.kinks)
        return gaussian_mean.pair_mean(self.slope, q, min(e, 2 - e), sign, self.pointwise.centres, kinked)

    def chord(self, q: Array, e: Array) -> Array:
        """Mean of slope_product over [1 - e, 1], graded towards e = 0 where q e passes 1."""
        flat = [self._chord(float(v), float(s)) for v, s in zip(np.ravel(q), np.ravel(e), strict=True)]
        return np.asarray(flat).reshape(np.shape(q))

    def _chord(self, q: float, e: float) -> float:
        if e == 0:
            return self._pair(q, 0.0)
        # Half-angles: kinked activations are smooth in them, and steep ones vary within 1/sqrt(q) of both ends.
        near = 0.5 ** np.arange(4.0 + max(0.0, np.log2(max(q, 1.0)) / 2))
        marks = np.concatenate([[0.0], near * np.pi / 4, np.pi / 2 - near * np.pi / 4, [np.pi / 2]])
        t, weights = gaussian_mean.panel_nodes(np.unique(np.minimum(marks, np.arcsin(np.sqrt(e / 2)))))
        separations = 2 * np.sin(t) ** 2
        values = np.asarray([self._pair(q, float(s)) for s in separations])
        return float(np.sum(weights * values * 4 * np.sin(t) * np.cos(t)) / e)
