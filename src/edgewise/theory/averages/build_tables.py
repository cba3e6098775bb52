"""Rebuild the shipped averages of the named activations: python -m edgewise.theory.averages.build_tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.theory.averages.functions import SMOOTH
from edgewise.theory.averages.quadrature import Quadrature
from edgewise.theory.averages.shipped import TABLES_FILE, factors


def averages(name: str) -> dict[str, Array]:
    """What is kept of one activation: its two pair tables and its two splines."""
    quadrature = Quadrature(SMOOTH[name]())
    table, (square, slope_square) = quadrature.build_table(), quadrature.fit_splines()
    if square is None or slope_square is None:
        raise ValueError(f"{name}: E phi^2 or E phi'^2 vanishes, so its logarithm has no spline")
    tables = {"slope": table.coefficients, "chord": table.chord_coefficients}
    parts = {
        f"{which}.{key}": part for which, whole in tables.items() for key, part in factors(whole).items()
    }
    return parts | {"square": square.coefficients, "slope_square": slope_square.coefficients}


def main() -> None:
    """Compute the tables and write them next to this file."""
    stored: dict[str, Any] = {}
    for name in SMOOTH:
        stored |= {f"{name}/{key}": part for key, part in averages(name).items()}
    np.savez_compressed(TABLES_FILE, **stored)
    print(f"wrote {TABLES_FILE.name}: {TABLES_FILE.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
