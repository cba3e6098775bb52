"""Are the alarms right on runs that nothing was chosen on? 64 failing and 32 healthy runs, every step sampled.

The list of runs, the detectors and what counts (`score.py`) were committed before the first of them was trained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .claims import cause, detection, false_alarms, warning
from .held_out_population import FILE
from .picture import picture
from .rows import alarms_of
from .score import failing, healthy

EVERY = "every step"
LOGITS = ("logits ramped", "query-key rate")
SCALE = "small encoders on film reviews and digits, every step sampled, seeds 11 to 14, made after all thresholds"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    runs = [run for run in json.loads(FILE.read_text())["runs"] if run["half"] == EVERY]
    return runs if scale == "full" else [{**run, "steps": 30} for run in (runs[0], runs[-1])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return alarms_of(case)


def claim(results: Sequence[Result]) -> Claim:
    full = len(results) > 2
    runs = failing(results, EVERY)
    of_logits = [run for run in runs if run.name in LOGITS]
    return Claim.all([
        detection(runs, SCALE, full), warning(of_logits, runs, SCALE, full),
        false_alarms(results, EVERY, SCALE, full), cause(runs, SCALE, full),
    ])  # fmt: skip


def draw(results: Sequence[Result]) -> Figure:
    alarms, steps, _ = healthy(results, EVERY)
    return picture(failing(results, EVERY), f"Alarms on held-out runs; {alarms} false ones in {steps:,} healthy steps")
