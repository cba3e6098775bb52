"""Does edgewise read transformers right that a stranger wrote by hand, with names that say nothing?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from edgewise.study import Claim, Result

from .common import SENTENCES, bars, judged
from .handwritten import MODELS
from .trial import Made, try_model

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
NOT_COMPARED = SENTENCES
SMALL = ("pairs", "caller's mask")  # both are measured, so that the canary sees a gain that is read wrong


def cases(scale: str = "small") -> list[dict[str, Any]]:
    return [{"model": name} for name in MODELS if scale == "full" or name in SMALL]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    written = MODELS[case["model"]]

    def make() -> Made:
        return (*written.build(), "")

    return try_model(make, list(written.label))


def claim(results: Sequence[Result]) -> Claim:
    return judged(results, "hand-written models")


def draw(results: Sequence[Result]) -> Figure:
    return bars(results, "hand-written models")
