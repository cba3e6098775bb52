"""Coordinates, scales and contraction of the shipped table of softmax moments (built by build_table).

The table holds Chebyshev coefficients of logarithms of moments, divided by their value at v = 0, in

    z = log(1 + v/3) / log(1 + V/3),   y = log(1 + D/5) / log(1 + 1.05 v/5) with D = v (1 - rho),   log n,

because the crossovers are wide in log v and near collapse everything depends on v (1 - rho). Of T11 the mean
over rho in [0, 1] and the ratio of its means over [rho, 1] and [0, rho] are stored: they give S11 - 1/n and
S2 - S11 as positive numbers that add up exactly.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.polynomial import chebyshev

from edgewise.arrays import Array

TABLE_FILE = Path(__file__).with_name("moments.npz")
LARGEST_VARIANCE, LARGEST_TOKENS, LOWEST_CORRELATION = 256.0, 1_000_000, -0.05
VARIANCE_SCALE, DISTANCE_SCALE = 3.0, 5.0
ROW_NAMES = ("mean_t11", "entropy")  # functions of (v, n)
PAIR_NAMES = ("ratio", "t11", "s21", "s22", "pairs")  # functions of (v, rho, n)


def variance_coordinate(v: Array) -> Array:
    """z in [0, 1] for v in [0, LARGEST_VARIANCE]."""
    return np.log1p(v / VARIANCE_SCALE) / np.log1p(LARGEST_VARIANCE / VARIANCE_SCALE)


def variance_at(z: Array) -> Array:
    """Inverse of variance_coordinate."""
    return VARIANCE_SCALE * np.expm1(z * np.log1p(LARGEST_VARIANCE / VARIANCE_SCALE))


def correlation_coordinate(v: Array, rho: Array) -> Array:
    """y in [0, 1] for rho from 1 down to LOWEST_CORRELATION, at variance v."""
    v = np.maximum(v, 1e-9)  # the limit v -> 0 is (1 - rho) / 1.05
    return np.log1p(v * (1 - rho) / DISTANCE_SCALE) / np.log1p(v * (1 - LOWEST_CORRELATION) / DISTANCE_SCALE)


def correlation_at(v: float, y: Array) -> Array:
    """Inverse of correlation_coordinate for v > 0."""
    return 1 - DISTANCE_SCALE / v * np.expm1(y * np.log1p(v * (1 - LOWEST_CORRELATION) / DISTANCE_SCALE))


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
    return along_z if name in ROW_NAMES else along_z @ _basis(y, coefs.shape[1]).T


def _basis(position: Array, count: int) -> Array:
    return np.asarray(chebyshev.chebvander(2 * np.atleast_1d(position) - 1, count - 1), dtype=np.float64)
