"""Are the alarms right when few steps are sampled? 24 failing and 24 healthy runs under the default budget of 2 %.

Nothing was chosen on these runs: the list, the detectors, the plan of sampling and what counts (`score.py`) were
committed before the first of them was trained. Networks are small, so that a sample costs a good part of a step and
few steps are sampled; how many depends on the machine and on what else it does, and is part of the record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .claims import cause, detection, false_alarms, warning
from .default_population import FILE
from .picture import picture
from .rows import alarms_of
from .score import failing, healthy

DEFAULT = "default"
LOGITS = ("logits ramped", "query-key rate")
SCALE = "small encoders on film reviews and digits, budget of 2 %, seeds 31 and 32, made after all thresholds"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    runs = [run for run in json.loads(FILE.read_text())["runs"] if run["half"] == DEFAULT]
    return runs if scale == "full" else [{**run, "steps": 20, "batch": 4} for run in (runs[0], runs[-1])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return alarms_of(case)


def claim(results: Sequence[Result]) -> Claim:
    full = len(results) > 2
    runs = failing(results, DEFAULT)
    of_logits = [run for run in runs if run.name in LOGITS]
    share = sorted(100 * r.value["rows"] / r.value["steps"] for r in results)
    scale = f"{SCALE}; rows in 100 steps: {median(share):.1f} (median), {share[0]:.1f} to {share[-1]:.1f}"
    return Claim.all([
        detection(runs, scale, full, "20 steps or three rows"), warning(of_logits, runs, scale, full),
        false_alarms(results, DEFAULT, scale, full), cause(runs, scale, full),
    ])  # fmt: skip


def draw(results: Sequence[Result]) -> Figure:
    alarms, steps, _ = healthy(results, DEFAULT)
    title = f"Alarms under the default budget; {alarms} false ones in {steps:,} healthy steps"
    return picture(failing(results, DEFAULT), title)
