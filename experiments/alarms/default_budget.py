"""Are the alarms right when few steps are sampled? 28 failing and 24 healthy runs under the default budget of 2 %.

Nothing was chosen on these runs: the list, the detectors, the plan of sampling and what counts (`score.py`) were
committed before the first of them was trained. Networks are small, so that a sample costs a good part of a step and
few steps are sampled; how many depends on the machine and on what else it does, and is part of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .claims import claims
from .default_population import FILE
from .picture import picture
from .rows import alarms_of, runs_of
from .score import failing, healthy

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = ("gap", "price", "rows", "sample_ms", "step_ms")  # clocks
DEFAULT, SEEDS = "default", (41, 42)
SCALE = "small encoders on film reviews and digits, budget of 2 %, seeds 41 and 42, made after all thresholds"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    return runs_of(FILE, DEFAULT, SEEDS, None if scale == "full" else {"steps": 20, "batch": 4})


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return alarms_of(case)


def claim(results: Sequence[Result]) -> Claim:
    share = sorted(100 * r.value["rows"] / r.value["steps"] for r in results)
    scale = f"{SCALE}; rows in 100 steps: {median(share):.1f} (median), {share[0]:.1f} to {share[-1]:.1f}"
    return claims(results, DEFAULT, scale, "20 steps or three rows")


def draw(results: Sequence[Result]) -> Figure:
    alarms, steps, _ = healthy(results, DEFAULT)
    title = f"Alarms under the default budget; {alarms} false ones in {steps:,} healthy steps"
    return picture(failing(results, DEFAULT), title)
