"""Does edgewise read every vision model of transformers right?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .common import SENTENCES, bars, judged, try_type, types_of

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = SENTENCES
SMALL = ("vit", "convnext")


def cases(scale: str = "small") -> list[dict[str, Any]]:
    rows = types_of("vision")
    return rows if scale == "full" else [row for row in rows if row["type"] in SMALL]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return try_type(case)


def claim(results: Sequence[Result]) -> Claim:
    return judged(results, "vision models of transformers")


def draw(results: Sequence[Result]) -> Figure:
    return bars(results, "vision models of transformers")
