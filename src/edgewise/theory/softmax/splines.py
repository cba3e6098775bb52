"""The shipped table of softmax moments for one number of tokens, as cubic splines evaluated at many points at once."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.theory.softmax import table

CHUNK = 16384  # points whose work arrays stay in the cache
Names = tuple[str, ...]
GRID = (193, 161)  # points of the splines in the coordinates of v and rho
ROW, PAIR = ("mean_t11", "r2"), ("ratio", "t11")  # what the recursions need
MORE_ROW, MORE_PAIR = ("entropy", "s3", "s4", "row_pairs"), ("s21", "s22", "pairs")  # what a full report adds
AT_EQUAL_ROWS = {"r2": "t11", "s3": "s21", "s4": "s22", "row_pairs": "pairs"}  # one row is a pair at rho = 1


class TokenSplines:
    """Moments for one n in [2, 1e6] at flat arrays of v in [0, 256] and rho in [-0.05, 1]."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def overlaps(self, v: Array, rho: Array) -> dict[str, Array]:
        """s2, s11, chord, r2, t11 from the mean M of T11 over [0, 1] and the ratio m1/m0 of its partial means.

        S2 = 1/n + v M,  S11 = 1/n + rho v m0,  S2 - S11 = (1 - rho) v m1,  M = rho m0 + (1 - rho) m1,
        m0 the mean over [0, rho] and m1 over [rho, 1].
        """
        (mean, r2), (ratio, t11) = self._values(v, rho, ROW, PAIR)
        lower = mean / (rho + (1 - rho) * ratio)
        n = self.tokens
        return {
            "s2": 1 / n + v * mean,
            "s11": 1 / n + rho * v * lower,
            "chord": ratio * lower,
            "r2": r2,
            "t11": t11,
        }

    def entropy(self, v: Array) -> dict[str, Array]:
        """The row entropy alone."""
        z = table.variance_coordinate(v)
        return {"entropy": np.exp(spline_values(_splines(self.tokens, ("entropy",)), (z,))[0])}

    def everything(self, v: Array, rho: Array) -> dict[str, Array]:
        """All ten moments."""
        (entropy, s3, s4, row_pairs), (s21, s22, pairs) = self._values(v, rho, MORE_ROW, MORE_PAIR)
        more = {"s3": s3, "ss": s4 + row_pairs, "s21": s21, "oo": s22 + pairs, "entropy": entropy}
        return self.overlaps(v, rho) | more

    def _values(self, v: Array, rho: Array, row: Names, pair: Names) -> tuple[Array, Array]:
        z, y = table.variance_coordinate(v), table.correlation_coordinate(v, rho)
        rows = spline_values(_splines(self.tokens, row), (z,))
        pairs = spline_values(_splines(self.tokens, pair), (z, y))
        return np.exp(rows), np.exp(pairs)


@lru_cache(maxsize=256)
def _splines(tokens: int, names: Names) -> Array:
    """Coefficients (names, grid) of the logarithms of the named moments."""
    return np.ascontiguousarray(np.stack([_spline(tokens, name) for name in names]))  # else every reading copies it


def _spline(tokens: int, name: str) -> Array:
    z, y = (np.linspace(0, 1, count) for count in GRID)
    stored = AT_EQUAL_ROWS.get(name, name)
    logarithms = table.logarithms_on_grid(stored, tokens, z, y[:1] if name in AT_EQUAL_ROWS else y)
    values = logarithms + np.log(table.value_at_zero_variance(stored, float(tokens)))
    if name in AT_EQUAL_ROWS:
        values = values[:, 0]
    for axis in range(values.ndim):
        values = spline_coefficients(values, axis)
    return values


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
    cells = [_weights(position, size - 2) for position, size in zip(positions, sizes, strict=True)]
    weights = [weight for _, weight in cells]
    flat = coefficients.reshape(len(coefficients), -1)

    def total(axis: int, index: NDArray[np.int64]) -> Array:
        if axis == len(sizes):
            return flat.take(index, axis=1)
        result = weights[axis][0] * total(axis + 1, index)
        for k in range(1, 4):
            result += weights[axis][k] * total(axis + 1, index + k * strides[axis])
        return result

    first = np.zeros(len(positions[0]), dtype=np.int64)
    for (cell, _), stride in zip(cells, strides, strict=True):
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
