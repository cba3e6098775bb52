"""Cubic splines on uniform grids of [0, 1]^k: fitted once, evaluated at many points."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
CHUNK = 16384  # points whose work arrays stay in the cache


def spline_coefficients(values: Array, axis: int) -> Array:
    """B-spline coefficients, two more than values along axis, that interpolate at equal steps of [0, 1]."""
    solved = np.tensordot(_inverse_collocation(values.shape[axis]), values, (1, axis))
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
    """Sums over the four neighbours along each axis, the last axis innermost."""
    sizes = coefficients.shape[1:]
    strides = [int(np.prod(sizes[axis + 1 :])) for axis in range(len(sizes))]
    found = [_weights(position, size - 2) for position, size in zip(positions, sizes, strict=True)]
    weights = [weight for _, weight in found]
    flat = coefficients.reshape(len(coefficients), -1)

    def total(axis: int, index: NDArray[np.int64]) -> Array:
        if axis == len(sizes):
            return flat.take(index, axis=1)
        result = weights[axis][0] * total(axis + 1, index)
        for k in range(1, 4):
            result += weights[axis][k] * total(axis + 1, index + k * strides[axis])
        return result

    first = np.zeros(len(positions[0]), dtype=np.int64)
    for (cell, _), stride in zip(found, strides, strict=True):
        first += cell * stride
    return total(0, first)


def _weights(position: Array, count: int) -> tuple[NDArray[np.int64], tuple[Array, Array, Array, Array]]:
    """The first of the four coefficients a point touches, and the four cubic B-spline weights."""
    scaled = position * (count - 1)
    cell = np.minimum(scaled.astype(np.int64), count - 2)
    t = scaled - cell
    s = 1 - t
    t2, s2 = t * t, s * s
    return cell, (s2 * s / 6, 2 / 3 - t2 * (1 - t / 2), 2 / 3 - s2 * (1 - s / 2), t2 * t / 6)


@lru_cache(maxsize=8)
def _inverse_collocation(count: int) -> Array:
    """Values at the grid points, and no jump of the third derivative next to either end, to coefficients."""
    system = np.zeros((count + 2, count + 2))
    for row in range(count):
        system[row, row : row + 3] = 1 / 6, 2 / 3, 1 / 6
    system[count, :5] = system[count + 1, -5:] = 1, -4, 6, -4, 1
    return np.asarray(np.linalg.inv(system)[:, :count], dtype=np.float64)
