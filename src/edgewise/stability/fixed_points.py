"""Fixed points of a map, the eigenvalues there, and bracketed roots of functions of one variable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgewise.arrays import Array

Map = Callable[[Array], Array]

_DOUBLINGS = 8  # a root is sought within a factor 2^8 of the guess
ROUNDING = 1e-14
FACTORS: Array = 2.0 ** np.arange(-_DOUBLINGS, _DOUBLINGS + 1, dtype=np.float64)


def crossings(displacement: Callable[[Array], Array], grid: Array, tolerance: float = 1e-13) -> list[float]:
    """Zeros of a scalar displacement f(x) - x that change sign between neighbors of `grid`, closed to `tolerance`.

    `displacement` is evaluated on the whole grid at once, then on all brackets at once.
    """
    values = displacement(grid)
    zeros = grid[values == 0].tolist()
    left = np.flatnonzero(values[:-1] * values[1:] < 0)
    if len(left):
        ends = (grid[left], grid[left + 1], values[left], values[left + 1])
        zeros += _illinois(displacement, *ends, tolerance).tolist()
    return sorted(zeros)


def fixed_point(step: Map, guess: Array) -> Array | None:
    """Return the point with step(x) = x near `guess`, by damped Newton steps; None if there is none."""
    x, rest = guess, step(guess) - guess
    for _ in range(50):
        if np.abs(rest).max() < ROUNDING:  # what is left is arithmetic, and could be chased without end
            break
        full = -np.linalg.pinv(jacobian(step, x) - np.eye(len(x))) @ rest
        better = _shortened(step, x, rest, full)
        if better is None:
            break
        x, rest = better
    return x if np.abs(rest).max() < 1e-8 else None


def _shortened(step: Map, x: Array, rest: Array, move: Array) -> tuple[Array, Array] | None:
    """Return the first of `move` and its halves that brings the map closer to rest; None if none does."""
    for _ in range(12):
        with np.errstate(all="ignore"):
            after = step(x + move) - x - move
        if np.abs(after).max() < np.abs(rest).max():
            return x + move, after
        move = move / 2
    return None


def jacobian(step: Map, point: Array, size: float = 1e-6) -> Array:
    """Return the derivative of the map at a point, by central differences, column j = d step / d x_j."""
    columns = []
    for j in range(len(point)):
        shift = np.zeros_like(point)
        shift[j] = size * max(abs(point[j]), 1.0)
        columns.append((step(point + shift) - step(point - shift)) / (2 * shift[j]))
    return np.stack(columns, axis=1)


def eigenvalues(step: Map, point: Array) -> Array:
    """Eigenvalues of the linearized map, largest in size first."""
    values = np.linalg.eigvals(jacobian(step, point))
    return np.asarray(values[np.argsort(-np.abs(values))])


def bracketed_root(function: Callable[[Array], Array], guess: Array) -> Array:
    """Zeros of a function of positive numbers, one per guess (m,); nan if there is none within a factor 2^8.

    The sign change nearest to a guess among its doublings and halvings is closed by Illinois steps. `function` takes
    (m,) or (m, k).
    """
    points = guess[:, None] * FACTORS
    values = function(points)
    changes = values[:, :-1] * values[:, 1:] <= 0
    distance = np.where(changes, np.abs(np.arange(len(FACTORS) - 1) + 0.5 - _DOUBLINGS), np.inf)
    at = distance.argmin(axis=1)
    rows = np.arange(len(guess))
    crosses = np.isfinite(distance[rows, at])
    ends = (points[rows, at], points[rows, at + 1], values[rows, at], values[rows, at + 1])
    if not crosses.any():
        return np.full(len(guess), np.nan)
    logs = _illinois(lambda x: function(np.exp(x)), np.log(ends[0]), np.log(ends[1]), ends[2], ends[3])
    return np.where(crosses, np.exp(logs), np.nan)


def _illinois(
    function: Callable[[Array], Array],
    low: Array,
    high: Array,
    f_low: Array,
    f_high: Array,
    tolerance: float = 1e-12,
) -> Array:
    """Regula falsi with the Illinois correction [Dowell and Jarratt 1971]: never outside the bracket."""
    a, b = low, high
    for _ in range(60):
        with np.errstate(divide="ignore", invalid="ignore"):
            x = np.where(f_low == f_high, a, (a * f_high - b * f_low) / (f_high - f_low))
        x = np.clip(np.where(np.isfinite(x), x, a), np.minimum(a, b), np.maximum(a, b))
        f = function(x)
        crossed = f * f_high <= 0
        a, f_low = np.where(crossed, b, a), np.where(crossed, f_high, f_low / 2)
        b, f_high = x, f
        if np.all((np.abs(f) < 1e-13) | (np.abs(b - a) < tolerance)):
            break
    return b
