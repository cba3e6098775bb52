"""Fixed points of a map and the eigenvalues there; nothing here knows what the map describes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, root

from edgewise.arrays import Array

Map = Callable[[Array], Array]


def crossings(displacement: Callable[[Array], Array], grid: Array, tolerance: float = 1e-13) -> list[float]:
    """Zeros of a scalar displacement f(x) - x that change sign between neighbours of `grid`, refined by brentq.

    `displacement` is evaluated on the whole grid at once.
    """
    values = displacement(grid)
    found = [float(x) for x, y in zip(grid, values, strict=True) if y == 0]
    for i in np.flatnonzero(values[:-1] * values[1:] < 0):
        found.append(brentq(lambda x: float(displacement(np.array([x]))[0]), grid[i], grid[i + 1], xtol=tolerance))
    return sorted(found)


def fixed_point(step: Map, guess: Array) -> Array | None:
    """The point with step(x) = x near `guess`, by Powell's hybrid method; None when it is not found."""
    solution = root(lambda x: step(x) - x, guess, method="hybr", tol=1e-13)
    return np.asarray(solution.x) if np.abs(step(solution.x) - solution.x).max() < 1e-8 else None


def jacobian(step: Map, point: Array, size: float = 1e-6) -> Array:
    """The derivative of the map at a point, by central differences, column j = d step / d x_j."""
    columns = []
    for j in range(len(point)):
        shift = np.zeros_like(point)
        shift[j] = size * max(abs(point[j]), 1.0)
        columns.append((step(point + shift) - step(point - shift)) / (2 * shift[j]))
    return np.stack(columns, axis=1)


def eigenvalues(step: Map, point: Array) -> Array:
    """Eigenvalues of the linearised map, largest in size first."""
    values = np.linalg.eigvals(jacobian(step, point))
    return np.asarray(values[np.argsort(-np.abs(values))])
