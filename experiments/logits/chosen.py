"""The best setting and rate of every arm; those recorded by `tune` are what the comparison takes to fresh seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgewise.study import Result, recorded_results

from .methods import Arm, arm_of

RECORDED = Path(__file__).parent / "recorded" / "tune.jsonl"


def best(runs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[Arm, dict[str, Any]]:
    """The case with the lowest loss at the end, per arm."""
    found: dict[Arm, tuple[float, dict[str, Any]]] = {}
    for case, value in runs:
        arm = arm_of(case)
        if arm not in found or value["end"] < found[arm][0]:
            found[arm] = (value["end"], case)
    return {arm: case for arm, (_, case) in found.items()}


def best_of(results: Sequence[Result]) -> dict[Arm, dict[str, Any]]:
    return best([(r.case, r.value) for r in results])


def chosen() -> dict[Arm, dict[str, Any]]:
    """What tuning chose, as recorded."""
    return best_of(recorded_results(RECORDED))
