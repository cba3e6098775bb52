"""The shipped tables of the named activations, factors of low rank (built by build_tables).

A table A (I, J) is kept as diag(s) L R with s the largest entry of each row; components whose weight is below 1e-4 are
in single precision. The error is at most 1e-9 of the largest entry of the row.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from edgewise.arrays import Array
from edgewise.theory.averages.pair_table import LARGEST_LENGTH, SMALLEST_LENGTH, PairTable
from edgewise.theory.averages.quintic import Quintic

TABLES_FILE = Path(__file__).with_name("averages.npz")
SINGLE = 1e-4  # weight below which a component is kept in single precision
TRUNCATION = 1e-11  # weight below which a component is dropped


def factors(table: Array) -> dict[str, Array]:
    """The arrays a table is kept as."""
    scale = np.abs(table).max(axis=1)
    left, weights, right = np.linalg.svd(table / scale[:, None], full_matrices=False)
    parts: dict[str, Array] = {"scale": scale}
    relative = weights / weights[0]
    for name, chosen, kind in (
        ("double", relative >= SINGLE, np.float64),
        ("single", (relative < SINGLE) & (relative > TRUNCATION), np.float32),
    ):
        parts[f"{name}_left"] = (left[:, chosen] * np.sqrt(weights[chosen])).astype(kind)
        parts[f"{name}_right"] = (np.sqrt(weights[chosen])[:, None] * right[chosen]).astype(kind)
    return parts


def product(parts: dict[str, Array]) -> Array:
    """The table again."""
    rest = parts["single_left"].astype(np.float64) @ parts["single_right"].astype(np.float64)
    return parts["scale"][:, None] * (parts["double_left"] @ parts["double_right"] + rest)


def shipped_table(name: str) -> PairTable | None:
    """The pair averages of a named activation; None where none are shipped."""
    stored = _stored(name)
    if not stored:
        return None
    tables = [
        product({key.split(".")[1]: value for key, value in stored.items() if key.startswith(f"{which}.")})
        for which in ("slope", "chord")
    ]
    return PairTable(tables[0], tables[1])


def shipped_splines(name: str) -> tuple[Quintic, Quintic] | None:
    """log E phi^2 and log E phi'^2 of a named activation against log q; None where none are shipped."""
    stored = _stored(name)
    if not stored:
        return None
    low, high = float(np.log(SMALLEST_LENGTH)), float(np.log(LARGEST_LENGTH))
    return Quintic(low, high, stored["square"]), Quintic(low, high, stored["slope_square"])


@lru_cache(maxsize=4)
def _stored(name: str) -> dict[str, Array]:
    with np.load(TABLES_FILE) as file:
        return {key.partition("/")[2]: file[key] for key in file.files if key.startswith(f"{name}/")}
