"""Where the source of a model decides: against the checker, or for an error that names what theory lacks."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from .outcome import OUTCOMES

OVERRULED = "right by the source"
RIGHTLY = "refused rightly"
OUTSIDE = "structure right, outside the theory"
ALL_OUTCOMES = (OUTCOMES[0], OVERRULED, OUTSIDE, *OUTCOMES[1:])


@cache
def decisions(kind: str) -> dict[str, Any]:
    """By the name of a type or model."""
    file = Path(__file__).with_name("overruled.json")
    listed: dict[str, Any] = json.loads(file.read_text())[kind]
    return listed


def decided(record: dict[str, Any]) -> dict[str, Any]:
    """The record of a case and its value, decided: first what `describe` says, then what `structure` says."""
    return _by_structure(_by_source(record))


def _by_source(record: dict[str, Any]) -> dict[str, Any]:
    """Overruled where the checker is mistaken in all that it calls wrong, or where the message of a refusal has the
    words that name what the source shows."""
    name = record.get("type") or record.get("model", "")
    if record["outcome"] in ("silently wrong", "wrong with a note"):
        wrong = _facts(record.get("wrong"))
        decision = decisions("overruled").get(name)
        if decision is not None and wrong <= set(decision["facts"]):
            return {
                **record,
                "outcome": OVERRULED,
                "wrong": [f"{', '.join(sorted(wrong))}: {decision['evidence']}"],
            }
    if record["outcome"] in ("refused wrongly", "refused for a wrong reason"):
        decision = decisions("refusals").get(name)
        if decision is not None and decision["reason"] in record["why"]:
            return {**record, "outcome": RIGHTLY, "wrong": [f"{decision['reason']}: {decision['evidence']}"]}
    return record


def _by_structure(record: dict[str, Any]) -> dict[str, Any]:
    """A fact that `structure` states and that is not so is silently wrong, whatever else is right; where nothing is,
    and no fact that matters is open, a model outside the theory is read right."""
    structure = record.get("structure")
    if structure is None or not structure["judged"]:
        return record
    name = record.get("type") or record.get("model", "")
    excused = set(decisions("overruled").get(name, {"facts": ()})["facts"])
    if not _facts(structure["wrong"]) <= excused:
        return {
            **record,
            "outcome": "silently wrong",
            "wrong": [f"structure, {text}" for text in structure["wrong"]],
        }
    if record["outcome"] in (RIGHTLY, "wrong with a note") and not structure["open"]:
        return {**record, "outcome": OUTSIDE}
    return record


def _facts(wrong: list[str] | None) -> set[str]:
    return {text.partition(":")[0] for text in wrong or ()}
