"""What a run's alarms are worth: detected or not, by which alarm, how long before the loss turned; too early ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.study import Result

from .failures import BAD_BATCH, start_of
from .population import CAUSES

LATE = 20  # steps after the turn of the loss within which an alarm still counts
LATE_ROWS = 3  # or sampled rows, where these are more steps
NONE = "none"


def onset(case: dict[str, Any]) -> int:
    """The step before which a failing run is healthy."""
    start = start_of(case)
    begins = {"bad batch": start + BAD_BATCH, "none": 0, "sharp start": 0, "query-key rate": 0}
    return begins.get(case["failure"], start)


@dataclass(frozen=True)
class Scored:
    """One failing run: its first alarm that counts, and the steps of warning where its loss turned."""

    name: str
    first: str  # kind, or none
    step: int | None
    turn: int | None
    early: int  # alarms before anything was wrong
    where: str = ""  # task and seed, for a list of what is missed

    @property
    def detected(self) -> bool:
        return self.first != NONE

    @property
    def right(self) -> bool:
        return self.first in CAUSES[self.name]

    @property
    def warning(self) -> int | None:
        return None if self.turn is None or self.step is None else self.turn - self.step


def scored(result: Result) -> Scored:
    """Alarms count from the onset to 20 steps, or 3 rows, after the loss turned (to the end if it never did)."""
    case, value = result.case, result.value
    begin, turn = onset(case), value["turn"]
    last = (
        value["steps"] if turn is None or turn < begin else turn + max(LATE, LATE_ROWS * value.get("gap", 1))
    )
    counted = [a for a in value["alarms"] if begin <= a["step"] <= last]
    early = sum(a["step"] < begin for a in value["alarms"])
    first = counted[0] if counted else None
    return Scored(
        case["name"],
        first["kind"] if first else NONE,
        first and first["step"],
        turn,
        early,
        f"{case['task']}, seed {case['seed']}",
    )


def failing(results: Sequence[Result], half: str) -> list[Scored]:
    return [scored(r) for r in results if r.case["name"] != "healthy" and r.case["half"] == half]


def healthy(results: Sequence[Result], half: str) -> tuple[int, int, Counter[str]]:
    """(alarms, steps, alarms by kind) of the healthy runs."""
    runs = [r.value for r in results if r.case["name"] == "healthy" and r.case["half"] == half]
    kinds = Counter(a["kind"] for run in runs for a in run["alarms"])
    return kinds.total(), sum(run["steps"] for run in runs), kinds


def confusion(runs: Sequence[Scored]) -> dict[str, Counter[str]]:
    """How often each kind of alarm was the first, by what was wrong."""
    table: dict[str, Counter[str]] = {}
    for run in runs:
        table.setdefault(run.name, Counter())[run.first] += 1
    return table
