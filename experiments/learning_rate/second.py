"""A second blind population: does a longer rehearsal mend the misses on images and with SGD?

Sixteen networks fixed beforehand (`second_population.py`); 300 steps at a ladder of rates, as in `blind.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgewise.study import Result

from .population import DEVELOPMENT
from .second_population import SECOND
from .truth import STEPS, curve


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale == "full":
        return [{"kind": "truth", "steps": STEPS, "row": row} for row in SECOND]
    return [{"kind": "truth", "steps": 12, "row": row} for row in (DEVELOPMENT[6], DEVELOPMENT[9])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return {"truth": curve(case["row"], 0, case["steps"])}


def claim(results: Sequence[Result]) -> Any:
    from . import second_report

    return second_report.claim(results)


def draw(results: Sequence[Result]) -> Any:
    from . import second_report

    return second_report.draw(results)
