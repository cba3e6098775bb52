"""A second blind population, images and SGD: whether a longer rehearsal mends their misses.

Sixteen networks fixed beforehand (`second_population.py`); 300 steps at a ladder of rates, as in `blind.py`. It was
the test of the rule of 18 November 2026, of which the record is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgewise.study import Result

from .blind import rehearsed
from .finders import CONSTANT
from .population import DEVELOPMENT, TINY
from .second_population import SECOND
from .truth import STEPS, curve

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = ("asked",)  # the record is of the rule of 18 November 2026


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale == "full":
        return [{"kind": "blind", "steps": STEPS, "row": row} for row in SECOND]
    return [{"kind": "blind", "steps": 2, "row": row | TINY} for row in (DEVELOPMENT[6], DEVELOPMENT[9])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    row, short = case["row"], case["steps"] < STEPS
    others = {"constant": CONSTANT[row["optimizer"]]}
    return {"truth": curve(row, 0, case["steps"]), "asked": [rehearsed(row, 0, short)], "others": others}


def claim(results: Sequence[Result]) -> Any:
    from . import second_report

    return second_report.claim(results)


def draw(results: Sequence[Result]) -> Any:
    from . import second_report

    return second_report.draw(results)
