"""Are the alarms right? 80 runs that fail in known ways and 64 healthy ones, under the detectors of `edgewise.watch`.

Thresholds were chosen on the runs with odd seeds; the claim is about those with even ones. Rows are trained once and
kept (`rows.py`); detectors read them again. `held_out.py` asks the same of runs that were made after all that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .claims import GOALS, cause, detection, false_alarms, warning
from .picture import picture
from .population import DRIVEN, FILE, UNDRIVEN
from .rows import alarms_of
from .score import failing, healthy

REPORTED, FRESH = "reported", "fresh"
SCALE = "small encoders on film reviews and digits, every step sampled, even seeds, which were looked at twice"
ABOUT_LOGITS = ("logit_growth", "entropy_collapse")


def cases(scale: str = "small") -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(FILE.read_text())["runs"]
    if scale == "full":
        return runs
    few = [next(run for run in runs if run["name"] == name and run["half"] == REPORTED) for name in DRIVEN | UNDRIVEN]
    return [{**run, "steps": 30} for run in (few[0], runs[-1])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return alarms_of(case)


def claim(results: Sequence[Result]) -> Claim:
    full = len(results) > 2
    runs = failing(results, REPORTED)
    of_logits = [run for run in runs if run.first in ABOUT_LOGITS]
    return Claim.all([
        detection(runs, SCALE, full), warning(of_logits, runs, SCALE, full),
        false_alarms(results, REPORTED, SCALE, full), cause(runs, SCALE, full), _fresh(results, full),
    ])  # fmt: skip


def _fresh(results: Sequence[Result], full: bool) -> Claim:
    """The same questions of runs that were made when nothing was left to choose."""
    runs, (alarms, steps, kinds) = failing(results, FRESH), healthy(results, FRESH)
    caught, wrong = sum(run.detected for run in runs), sum(run.detected and not run.right for run in runs)
    early = sum(run.early for run in runs)
    return Claim(
        "The same holds for a seed that was added after the even ones had been looked at, on digits alone.",
        f"{caught} of {len(runs)} failing runs, {wrong} by a wrong cause; {alarms} false alarms in {steps} healthy "
        f"steps ({', '.join(kinds) or 'none'}) and {early} early ones.",
        "small encoders on digits, seed 5",
        None if not full else bool(
            caught >= GOALS["detection"] * len(runs) and wrong <= GOALS["wrong cause"] * caught
            and 1e4 * alarms <= GOALS["false alarms"] * steps
        ),
        {"caught": caught, "runs": len(runs), "wrong": wrong, "alarms": alarms, "steps": steps, "early": early},
    )  # fmt: skip


def draw(results: Sequence[Result]) -> Figure:
    alarms, steps, _ = healthy(results, REPORTED)
    return picture(
        failing(results, REPORTED),
        f"Alarms on the runs with even seeds; {alarms} false ones in {steps:,} healthy steps",
    )
