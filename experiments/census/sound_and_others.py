"""Does edgewise read every model of sound, of time series, and every tower on its own right?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .common import SENTENCES, bars, judged, try_type, types_of

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = SENTENCES
SMALL = ("whisper", "qwen2_vl_text")


def cases(scale: str = "small") -> list[dict[str, Any]]:
    rows = types_of("audio", "time series", "base")
    return rows if scale == "full" else [row for row in rows if row["type"] in SMALL]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    return try_type(case)


def claim(results: Sequence[Result]) -> Claim:
    return judged(results, "models of sound and time series and single towers of transformers")


def draw(results: Sequence[Result]) -> Figure:
    return bars(results, "sound, time series and single towers")
