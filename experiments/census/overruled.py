"""Where the source of a model decides: against the checker, or for a refusal that names a structure outside the theory.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from .outcome import OUTCOMES

OVERRULED = "right by the source"
RIGHTLY = "refused rightly"
ALL_OUTCOMES = (OUTCOMES[0], OVERRULED, *OUTCOMES[1:])


@cache
def decisions(kind: str) -> dict[str, Any]:
    """By the name of a type or model."""
    file = Path(__file__).with_name("overruled.json")
    listed: dict[str, Any] = json.loads(file.read_text())[kind]
    return listed


def decided(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a case and its value; overruled where the checker is mistaken in all that it calls wrong, or where
    the message of a refusal has the words that name what the source shows."""
    name = record.get("type") or record.get("model", "")
    if record["outcome"] in ("silently wrong", "wrong with a note"):
        wrong = {text.partition(":")[0] for text in record.get("wrong") or ()}
        decision = decisions("overruled").get(name)
        if decision is not None and wrong <= set(decision["facts"]):
            return {**record, "outcome": OVERRULED, "wrong": [f"{', '.join(sorted(wrong))}: {decision['evidence']}"]}
    if record["outcome"] in ("refused wrongly", "refused for a wrong reason"):
        decision = decisions("refusals").get(name)
        if decision is not None and decision["reason"] in record["why"]:
            return {**record, "outcome": RIGHTLY, "wrong": [f"{decision['reason']}: {decision['evidence']}"]}
    return record
