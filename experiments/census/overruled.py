"""Where the checker is mistaken: the outcome of a model on which its source decides for edgewise."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from .outcome import OUTCOMES

OVERRULED = "right by the source"
ALL_OUTCOMES = (OUTCOMES[0], OVERRULED, *OUTCOMES[1:])


@cache
def _decisions() -> dict[str, Any]:
    file = Path(__file__).with_name("overruled.json")
    decisions: dict[str, Any] = json.loads(file.read_text())["overruled"]
    return decisions


def decided(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a case and its value; overruled where the checker is mistaken in all that it calls wrong."""
    decision = _decisions().get(record.get("type") or record.get("model", ""))
    wrong = {text.partition(":")[0] for text in record.get("wrong") or ()}
    if record["outcome"] != "silently wrong" or decision is None or not wrong <= set(decision["facts"]):
        return record
    return {**record, "outcome": OVERRULED, "wrong": [f"{', '.join(sorted(wrong))}: {decision['evidence']}"]}
