"""Rebuild the shipped tables (minutes): python -m tools.build_tables averages, or moments."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from rich.progress import track

from edgewise.arrays import Array
from edgewise.theory.averages.functions import SMOOTH
from edgewise.theory.averages.quadrature import TABLES_FILE, Quadrature
from edgewise.theory.softmax.integrals import chords, row_pair, single_row
from edgewise.theory.softmax.moments import (
    DISTANCE_SCALE,
    LARGEST_TOKENS,
    LARGEST_VARIANCE,
    LOWEST_CORRELATION,
    PAIR_NAMES,
    ROW_NAMES,
    TABLE_FILE,
    VARIANCE_SCALE,
    value_at_zero_variance,
)

VARIANCES, CORRELATIONS, TOKENS = 52, 28, 15  # Chebyshev nodes per axis: truncation near 1e-5
STEP = 0.35  # of the quadrature: error near 1e-8, far below the truncation
DIGITS = 1e-11  # what is kept of a coefficient of the moments


SINGLE = 1e-4  # weight below which a component is kept in single precision
TRUNCATION = 1e-11  # weight below which a component is dropped, and digits of the others, which then compress


def factors(table: Array) -> dict[str, Array]:
    """Return the arrays a table is kept as."""
    scale = np.abs(table).max(axis=1)
    left, weights, right = np.linalg.svd(table / scale[:, None], full_matrices=False)
    parts: dict[str, Array] = {"scale": scale}
    relative = weights / weights[0]
    for name, chosen, kind in (
        ("double", relative >= SINGLE, np.float64),
        ("single", (relative < SINGLE) & (relative > TRUNCATION), np.float32),
    ):
        columns = (left[:, chosen] * np.sqrt(weights[chosen])).astype(kind)
        rows = (np.sqrt(weights[chosen])[:, None] * right[chosen]).astype(kind)
        parts[f"{name}_left"] = in_steps(columns, TRUNCATION / np.abs(rows).max(axis=1))
        parts[f"{name}_right"] = in_steps(rows, TRUNCATION / np.abs(columns).max(axis=0)[:, None])
    return parts


def in_steps(values: Array, step: Array | float) -> Array:
    """Return multiples of the power of two below `step`: the zeros at the end of their digits compress well."""
    exact = 2.0 ** np.floor(np.log2(step))
    return np.asarray(np.round(values.astype(np.float64) / exact) * exact).astype(values.dtype)


def variance_at(z: Array) -> Array:
    """Inverse of variance_coordinate."""
    return np.asarray(VARIANCE_SCALE * np.expm1(z * np.log1p(LARGEST_VARIANCE / VARIANCE_SCALE)))


def correlation_at(v: float, y: Array) -> Array:
    """Inverse of correlation_coordinate for v > 0."""
    return np.asarray(
        1 - DISTANCE_SCALE / v * np.expm1(y * np.log1p(v * (1 - LOWEST_CORRELATION) / DISTANCE_SCALE))
    )


def nodes(count: int) -> Array:
    """Chebyshev-Lobatto nodes on [0, 1], increasing."""
    return (1 - np.cos(np.pi * np.arange(count) / (count - 1))) / 2


def coefficients(values: Array) -> Array:
    """Chebyshev coefficients of values at the nodes, along every axis."""
    for axis, count in enumerate(values.shape):
        inverse = np.linalg.inv(chebyshev.chebvander(2 * nodes(count) - 1, count - 1))
        values = np.moveaxis(np.tensordot(inverse, values, (1, axis)), 0, axis)
    return values


def averages(name: str) -> dict[str, Array]:
    """What is kept of one activation: its two pair tables and its two splines."""
    quadrature = Quadrature(SMOOTH[name])
    table, (square, slope_square) = quadrature.build_table(), quadrature.fit_splines()
    if square is None or slope_square is None:
        raise ValueError(f"{name}: E phi^2 or E phi'^2 vanishes, so its logarithm has no spline")
    tables = {"slope": table.coefficients, "chord": table.chord_coefficients}
    parts = {
        f"{which}.{key}": part for which, whole in tables.items() for key, part in factors(whole).items()
    }
    return parts | {"square": square.coefficients, "slope_square": slope_square.coefficients}


def bytewise(values: Array) -> Array:
    """Return the first bytes of all numbers, then the second ones and so on: they compress a fifth better."""
    return np.moveaxis(np.ascontiguousarray(values)[..., None].view(np.uint8), -1, 0)


def write_averages() -> None:
    """Compute the averages of the named activations and write their tables into the package."""
    stored: dict[str, Any] = {}
    for name in SMOOTH:
        stored |= {f"{name}/{key}": bytewise(part) for key, part in averages(name).items()}
    np.savez_compressed(TABLES_FILE, **stored)
    print(f"wrote {TABLES_FILE.name}: {TABLES_FILE.stat().st_size / 1e6:.2f} MB")


def logarithms_at(v: float) -> dict[str, Array]:
    """Logarithms of the tabulated moments over their values at v = 0, at the nodes of (rho, n), for one v."""
    n = 2 * (LARGEST_TOKENS / 2) ** nodes(TOKENS)
    row = single_row(v, n, STEP)
    row["mean_t11"] = (row["s2"] - 1 / n) / v
    pairs = [_pair(v, min(float(rho), 1.0), n, row["s2"]) for rho in correlation_at(v, nodes(CORRELATIONS))]
    moments = {name: row[name] for name in ROW_NAMES}
    moments |= {name: np.array([pair[name] for pair in pairs]) for name in PAIR_NAMES}
    return {name: np.log(value / value_at_zero_variance(name, n)) for name, value in moments.items()}


def _pair(v: float, rho: float, n: Array, s2: Array) -> dict[str, Array]:
    pair = _row_pair(v, rho, n)
    upper, lower = chords(v, rho, n, s2, pair["s11"], pair=_row_pair)
    return pair | {"ratio": upper / lower}


def _row_pair(v: float, rho: float, n: Array) -> dict[str, Array]:
    return row_pair(v, rho, n, STEP)


def write_moments() -> None:
    """Compute the moments of the softmax and write their table into the package."""
    variances = [float(v) for v in variance_at(nodes(VARIANCES))[1:]]
    with ProcessPoolExecutor() as pool:
        rows = list(track(pool.map(logarithms_at, variances), "softmax moments", total=len(variances)))
    equal_weights = {name: np.zeros_like(logarithms) for name, logarithms in rows[0].items()}  # v = 0
    table = {name: np.array([row[name] for row in (equal_weights, *rows)]) for name in equal_weights}
    stored: dict[str, Any] = {name: in_steps(coefficients(values), DIGITS) for name, values in table.items()}
    np.savez_compressed(TABLE_FILE, **stored)
    print(f"wrote {TABLE_FILE.name}: {TABLE_FILE.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    {"averages": write_averages, "moments": write_moments}[sys.argv[1]]()
