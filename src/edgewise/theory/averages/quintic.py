"""Quintic splines over equal steps in one variable, fitted and read without scipy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from edgewise.arrays import Array


@dataclass(frozen=True)
class Quintic:
    """Interpolates values at equal steps of [low, high]; `coefficients` has four entries more than there are values."""

    low: float
    high: float
    coefficients: Array

    @classmethod
    def through(cls, low: float, high: float, values: Array) -> Quintic:
        """Not a knot at the two nodes next to either end, as scipy's make_interp_spline."""
        return cls(low, high, _inverse_collocation(len(values)) @ values)

    def __call__(self, x: Array) -> Array:
        """The value at x in [low, high], any shape."""
        cells = len(self.coefficients) - 5
        place = (x - self.low) * (cells / (self.high - self.low))
        first = np.clip(place.astype(np.int64), 0, cells - 1)
        weights = _weights(place - first)
        return np.asarray(sum(w * self.coefficients.take(first + k) for k, w in enumerate(weights)))


def _weights(t: Array) -> tuple[Array, ...]:
    """The six quintic B-splines that overlap a cell, at 0 <= t <= 1 of it."""
    s = 1 - t
    return (s**5 / 120, _second(t), _third(t), _third(s), _second(s), t**5 / 120)


def _second(t: Array) -> Array:
    return (26 + t * (-50 + t * (20 + t * (20 + t * (-20 + 5 * t))))) / 120


def _third(t: Array) -> Array:
    return (66 + t**2 * (-60 + t**2 * (30 - 10 * t))) / 120


@lru_cache(maxsize=4)
def _inverse_collocation(count: int) -> Array:
    """Values at the nodes, and no jump of the fifth derivative at two nodes next to either end, to coefficients."""
    system = np.zeros((count + 4, count + 4))
    for row in range(count):
        system[row, row : row + 5] = np.array([1, 26, 66, 26, 1]) / 120
    for row, start in enumerate((0, 1, count - 3, count - 4)):
        system[count + row, start : start + 7] = 1, -6, 15, -20, 15, -6, 1
    return np.asarray(np.linalg.inv(system)[:, :count], dtype=np.float64)
