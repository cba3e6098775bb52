"""Cubic splines on uniform grids of [0, 1]^k: fitted once, one sparse product for many points."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Array = NDArray[np.float64]


def spline_coefficients(values: Array, axis: int) -> Array:
    """B-spline coefficients, two more than values along axis, that interpolate at equal steps of [0, 1]."""
    solved = np.tensordot(_inverse_collocation(values.shape[axis]), values, (1, axis))
    return np.moveaxis(solved, 0, axis)


def interpolation_matrix(positions: tuple[Array, ...], counts: tuple[int, ...]) -> csr_array:
    """Rows of weights, one per point: the product with flattened coefficients is the spline at the points.

    positions: one array (points,) per axis with values in [0, 1]; counts: grid points per axis.
    """
    index, weight = _weights(positions[0], counts[0])
    for position, count in zip(positions[1:], counts[1:], strict=True):
        more_index, more_weight = _weights(position, count)
        index = (index[:, :, None] * np.int32(count + 2) + more_index[:, None, :]).reshape(len(index), -1)
        weight = (weight[:, :, None] * more_weight[:, None, :]).reshape(len(weight), -1)
    points, size = index.shape
    pointer = np.arange(0, points * size + 1, size, dtype=np.int32)
    columns = int(np.prod([count + 2 for count in counts]))
    return csr_array((weight.ravel(), index.ravel(), pointer), shape=(points, columns))


def _weights(position: Array, count: int) -> tuple[NDArray[np.int32], Array]:
    """The four coefficients a point touches and their cubic B-spline weights."""
    scaled = position * (count - 1)
    cell = np.minimum(scaled.astype(np.int32), count - 2)
    t = scaled - cell
    s = 1 - t
    weight = np.empty((len(position), 4))
    weight[:, 0] = s * s * s / 6
    weight[:, 3] = t * t * t / 6
    weight[:, 1] = 2 / 3 - t * t * (1 - t / 2)
    weight[:, 2] = 2 / 3 - s * s * (1 - s / 2)
    return cell[:, None] + np.arange(4, dtype=np.int32), weight


@lru_cache(maxsize=8)
def _inverse_collocation(count: int) -> Array:
    """Values at the grid points, and no jump of the third derivative next to either end, to coefficients."""
    system = np.zeros((count + 2, count + 2))
    for row in range(count):
        system[row, row : row + 3] = 1 / 6, 2 / 3, 1 / 6
    system[count, :5] = system[count + 1, -5:] = 1, -4, 6, -4, 1
    return np.linalg.inv(system)[:, :count]
