"""Today's rehearsals on the networks of `blind`; no test, because the rule came from some of them.

    python -m experiments.learning_rate.again      about 2 core-minutes; writes recorded/again.json, resumable
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from edgewise.study import Result, store

from .blind import advice, learns, rehearsed, score
from .population import BLIND

FOLDER = Path(__file__).parent / "recorded"
FILE = FOLDER / "again.json"
GROUPS = ("text adamw", "images adamw", "text sgd", "images sgd")


def asked() -> dict[str, Any]:
    """What is named for every network, rehearsed once."""
    torch.set_num_threads(1)
    known: dict[str, Any] = json.loads(FILE.read_text())["asked"] if FILE.exists() else {}
    for row in BLIND:
        if row["name"] not in known:
            known[row["name"]] = rehearsed(row, 0, False)
            FILE.write_text(json.dumps({"asked": known}) + "\n")
    return known


def with_answers(answers: dict[str, Any]) -> list[Result]:
    """The recorded networks that learn at some rate, with what is named today in place of what was."""
    records = [r for r in store.read([FOLDER / "blind.jsonl"]).done.values() if r.case["kind"] == "blind" and r.value]
    rows = [Result(r.case, {**r.value, "asked": [answers[r.case["row"]["name"]]], "before": r.value["asked"]}, 0.0)
            for r in records]  # fmt: skip
    return [row for row in rows if learns(row)]


def group(result: Result) -> str:
    row = result.case["row"]
    return f"{row['task']} {'sgd' if row['optimizer'] == 'sgd' else 'adamw'}"


def table(rows: list[Result]) -> dict[str, Any]:
    """The numbers of `blind` by group, before and today."""
    before = [Result(r.case, {**r.value, "asked": r.value["before"]}, 0.0) for r in rows]
    result = {}
    for name in GROUPS:
        old, new = ([r for r in some if group(r) == name] for some in (before, rows))
        passes = [r.value["asked"][0]["passes"] for r in new]
        result[name] = {"before": _short(old), "today": _short(new) | {"steps": round(sum(passes) / len(passes))}}
    return result


def _short(rows: list[Result]) -> dict[str, Any]:
    numbers = score(rows, "rehearsal")
    within = sum(0.5 <= (advice(r, "rehearsal") or math.inf) / r.value["truth"]["best"] <= 2 for r in rows)
    return {"networks": len(rows), "within_2": within, "given_median": round(numbers["given"], 3),
            "given_worst": round(numbers["given_worst"], 3), "above_the_edge": numbers["above"]}  # fmt: skip


if __name__ == "__main__":
    answers = asked()
    numbers = table(with_answers(answers))
    made_by = "python -m experiments.learning_rate.again"
    FILE.write_text(json.dumps({"made_by": made_by, "table": numbers, "asked": answers}) + "\n")
    print(json.dumps(numbers, indent=1))
