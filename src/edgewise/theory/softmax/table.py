"""The shipped table of softmax moments (built by build_table): its coordinates, its scales, and splines through it.

The table holds Chebyshev coefficients of logarithms of moments, divided by their value at v = 0, in

    z = log(1 + v/3) / log(1 + V/3),   y = log(1 + D/5) / log(1 + 1.05 v/5) with D = v (1 - rho),   log n,

because the crossovers are wide in log v and near collapse everything depends on v (1 - rho). Of T11 the mean
over rho in [0, 1] and the ratio of its means over [rho, 1] and [0, rho] are stored: they give S11 - 1/n and
S2 - S11 as positive numbers that add up exactly. For one number of tokens it becomes cubic splines in z and y, which
are evaluated at many points at once.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.polynomial import chebyshev

from edgewise.arrays import Array
from edgewise.theory.splines import spline_coefficients, spline_values

TABLE_FILE = Path(__file__).with_name("moments.npz")
LARGEST_VARIANCE, LARGEST_TOKENS, LOWEST_CORRELATION = 256.0, 1_000_000, -0.05
VARIANCE_SCALE, DISTANCE_SCALE = 3.0, 5.0
ROW_NAMES = ("mean_t11", "entropy")  # functions of (v, n)
PAIR_NAMES = ("ratio", "t11", "s21", "s22", "pairs")  # functions of (v, rho, n)
Names = tuple[str, ...]
GRID = (193, 161)  # points of the splines in the coordinates of v and rho
ROW, PAIR = ("mean_t11", "r2"), ("ratio", "t11")  # what the recursions need
MORE_ROW, MORE_PAIR = ("entropy", "s3", "s4", "row_pairs"), ("s21", "s22", "pairs")  # what a full report adds
AT_EQUAL_ROWS = {"r2": "t11", "s3": "s21", "s4": "s22", "row_pairs": "pairs"}  # one row is a pair at rho = 1


def variance_coordinate(v: Array) -> Array:
    """z in [0, 1] for v in [0, LARGEST_VARIANCE]."""
    return np.asarray(np.log1p(v / VARIANCE_SCALE) / np.log1p(LARGEST_VARIANCE / VARIANCE_SCALE))


def variance_at(z: Array) -> Array:
    """Inverse of variance_coordinate."""
    return np.asarray(VARIANCE_SCALE * np.expm1(z * np.log1p(LARGEST_VARIANCE / VARIANCE_SCALE)))


def correlation_coordinate(v: Array, rho: Array) -> Array:
    """y in [0, 1] for rho from 1 down to LOWEST_CORRELATION, at variance v."""
    v = np.maximum(v, 1e-9)  # the limit v -> 0 is (1 - rho) / 1.05
    return np.log1p(v * (1 - rho) / DISTANCE_SCALE) / np.log1p(v * (1 - LOWEST_CORRELATION) / DISTANCE_SCALE)


def correlation_at(v: float, y: Array) -> Array:
    """Inverse of correlation_coordinate for v > 0."""
    return np.asarray(
        1 - DISTANCE_SCALE / v * np.expm1(y * np.log1p(v * (1 - LOWEST_CORRELATION) / DISTANCE_SCALE))
    )


def tokens_coordinate(n: Array | float) -> Array:
    """Log n mapped to [0, 1] for n from 2 to LARGEST_TOKENS."""
    return np.asarray(np.log(np.asarray(n) / 2) / np.log(LARGEST_TOKENS / 2))


def value_at_zero_variance(name: str, n: Array | float) -> Array | float:
    """What each tabulated moment is divided by: its value for equal weights 1/n."""
    slope = (n - 1) / n**2
    scales = {"mean_t11": slope, "t11": slope, "pairs": slope / n, "s21": n**-2.0, "s22": n**-3.0}
    return (scales | {"ratio": 1.0, "entropy": np.log(n)})[name]


def nodes(count: int) -> Array:
    """Chebyshev-Lobatto nodes on [0, 1], increasing."""
    return (1 - np.cos(np.pi * np.arange(count) / (count - 1))) / 2


def coefficients(values: Array) -> Array:
    """Chebyshev coefficients of values at the nodes, along every axis."""
    for axis, count in enumerate(values.shape):
        inverse = np.linalg.inv(chebyshev.chebvander(2 * nodes(count) - 1, count - 1))
        values = np.moveaxis(np.tensordot(inverse, values, (1, axis)), 0, axis)
    return values


@lru_cache(maxsize=1)
def stored_coefficients() -> dict[str, Array]:
    """The shipped coefficients, by name: axes (z, log n) for ROW_NAMES and (z, y, log n) for PAIR_NAMES."""
    with np.load(TABLE_FILE) as file:
        return {name: file[name].astype(np.float64) for name in (*ROW_NAMES, *PAIR_NAMES)}


def logarithms_on_grid(name: str, tokens: int, z: Array, y: Array) -> Array:
    """Log of the moment over its value at v = 0, on the grid z (x y for a pair), for one number of tokens."""
    coefs = stored_coefficients()[name]
    coefs = coefs @ _basis(tokens_coordinate(float(tokens)), coefs.shape[-1])[0]
    along_z = _basis(z, coefs.shape[0]) @ coefs
    return np.asarray(along_z if name in ROW_NAMES else along_z @ _basis(y, coefs.shape[1]).T)


def _basis(position: Array, count: int) -> Array:
    return np.asarray(chebyshev.chebvander(2 * np.atleast_1d(position) - 1, count - 1), dtype=np.float64)


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
        z = variance_coordinate(v)
        return {"entropy": np.exp(spline_values(_splines(self.tokens, ("entropy",)), (z,))[0])}

    def everything(self, v: Array, rho: Array) -> dict[str, Array]:
        """All ten moments."""
        (entropy, s3, s4, row_pairs), (s21, s22, pairs) = self._values(v, rho, MORE_ROW, MORE_PAIR)
        more = {"s3": s3, "ss": s4 + row_pairs, "s21": s21, "oo": s22 + pairs, "entropy": entropy}
        return self.overlaps(v, rho) | more

    def _values(self, v: Array, rho: Array, row: Names, pair: Names) -> tuple[Array, Array]:
        z, y = variance_coordinate(v), correlation_coordinate(v, rho)
        rows = spline_values(_splines(self.tokens, row), (z,))
        pairs = spline_values(_splines(self.tokens, pair), (z, y))
        return np.exp(rows), np.exp(pairs)


@lru_cache(maxsize=256)
def _splines(tokens: int, names: Names) -> Array:
    """Coefficients (names, grid) of the logarithms of the named moments."""
    return np.ascontiguousarray(
        np.stack([_spline(tokens, name) for name in names])
    )  # else every reading copies it


def _spline(tokens: int, name: str) -> Array:
    z, y = (np.linspace(0, 1, count) for count in GRID)
    stored = AT_EQUAL_ROWS.get(name, name)
    logarithms = logarithms_on_grid(stored, tokens, z, y[:1] if name in AT_EQUAL_ROWS else y)
    values = logarithms + np.log(value_at_zero_variance(stored, float(tokens)))
    if name in AT_EQUAL_ROWS:
        values = values[:, 0]
    for axis in range(values.ndim):
        values = spline_coefficients(values, axis)
    return values
