"""What our own figures share: one random network, measured, and the scale that a figure states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import edgewise
from edgewise.study import Result, rounded, simulated


def orbit(case: dict[str, Any]) -> dict[str, Any]:
    """Norm, 1 - overlap and both gradients (log, over the last) of one random network, embedding first."""
    network = edgewise.transformer(**case["knobs"])
    found = simulated(network, seed=case["seed"], start_overlap=case["start_overlap"])
    return {name: rounded(row) for name, row in vars(found).items()}


def seeds_of(results: Sequence[Result]) -> int:
    """How many random networks stand behind a point."""
    return len({r.case["seed"] for r in results if "seed" in r.case})
