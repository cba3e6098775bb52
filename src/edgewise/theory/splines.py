"""Splines over equal steps, fitted and read without scipy: quintic in one variable, cubic in one or two."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array

CHUNK = 2048  # points whose work arrays stay in the cache
_NEIGHBORS = np.arange(4)


@dataclass(frozen=True)
class Quintic:
    """Interpolates values at equal steps of [low, high]; `coefficients` has four entries more than there are values."""

    low: float
    high: float
    coefficients: Array

    @classmethod
    def through(cls, low: float, high: float, values: Array) -> Quintic:
        """Not a knot at the two nodes next to either end, as scipy's make_interp_spline."""
        return cls(low, high, _quintic_collocation(len(values)) @ values)

    def __call__(self, x: Array) -> Array:
        """Return the value at x in [low, high], any shape."""
        cells = len(self.coefficients) - 5
        place = (x - self.low) * (cells / (self.high - self.low))
        first = np.clip(place.astype(np.int64), 0, cells - 1)
        # The six quintic B-splines that overlap a cell, at 0 <= t <= 1 of it.
        t = place - first
        s = 1 - t
        weights = (s**5 / 120, _second(t), _third(t), _third(s), _second(s), t**5 / 120)
        return np.asarray(sum(w * self.coefficients.take(first + k) for k, w in enumerate(weights)))


def _second(t: Array) -> Array:
    return (26 + t * (-50 + t * (20 + t * (20 + t * (-20 + 5 * t))))) / 120


def _third(t: Array) -> Array:
    return (66 + t**2 * (-60 + t**2 * (30 - 10 * t))) / 120


@lru_cache(maxsize=4)
def _quintic_collocation(count: int) -> Array:
    """Values at the nodes, and no jump of the fifth derivative at two nodes next to either end, to coefficients."""
    system = np.zeros((count + 4, count + 4))
    for row in range(count):
        system[row, row : row + 5] = np.array([1, 26, 66, 26, 1]) / 120
    for row, start in enumerate((0, 1, count - 3, count - 4)):
        system[count + row, start : start + 7] = 1, -6, 15, -20, 15, -6, 1
    return np.asarray(np.linalg.inv(system)[:, :count], dtype=np.float64)


def spline_coefficients(values: Array, axis: int) -> Array:
    """B-spline coefficients, two more than values along axis, that interpolate at equal steps of [0, 1]."""
    solved = np.tensordot(_cubic_collocation(values.shape[axis]), values, (1, axis))
    return np.moveaxis(solved, 0, axis)


def spline_values(coefficients: Array, positions: tuple[Array, ...]) -> Array:
    """Values (splines, points) at positions in [0, 1], one flat array per axis.

    coefficients: (splines, one axis per position), as spline_coefficients gives them.
    """
    points = len(positions[0])
    values = np.empty((len(coefficients), points))
    for start in range(0, points, CHUNK):
        part = slice(start, start + CHUNK)
        values[:, part] = _chunk_values(coefficients, [position[part] for position in positions])
    return values


def _chunk_values(coefficients: Array, positions: list[Array]) -> Array:
    """Return sums over the four neighbors along each axis, the last axis innermost."""
    sizes = coefficients.shape[1:]
    index: NDArray[np.int64] = np.zeros((), dtype=np.int64)
    weights = []
    for axis, (position, size) in enumerate(zip(positions, sizes, strict=True)):
        count = size - 2
        scaled = position * (count - 1)
        cell = np.minimum(scaled.astype(np.int64), count - 2)  # the first of the four coefficients
        t = scaled - cell
        s = 1 - t
        t2, s2 = t * t, s * s
        weight = (s2 * s / 6, 2 / 3 - t2 * (1 - t / 2), 2 / 3 - s2 * (1 - s / 2), t2 * t / 6)
        index = (index[..., None, :] if axis else index) * size + cell + _NEIGHBORS[:, None]
        weights.append(weight)
    values = coefficients.reshape(len(coefficients), -1).take(index, axis=1)  # (splines, 4, ..., 4, points)
    for weight in reversed(weights):
        total = weight[0] * values[..., 0, :]
        for k in range(1, 4):
            total += weight[k] * values[..., k, :]
        values = total
    return values


@lru_cache(maxsize=8)
def _cubic_collocation(count: int) -> Array:
    """Values at the grid points, and no jump of the third derivative next to either end, to coefficients."""
    system = np.zeros((count + 2, count + 2))
    for row in range(count):
        system[row, row : row + 3] = 1 / 6, 2 / 3, 1 / 6
    system[count, :5] = system[count + 1, -5:] = 1, -4, 6, -4, 1
    return np.asarray(np.linalg.inv(system)[:, :count], dtype=np.float64)
