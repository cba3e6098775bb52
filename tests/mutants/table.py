"""The table of planted mistakes by room, from the recorded results, written into research/reliability.md.

    python -m tests.mutants.table

A mistake that cannot matter is listed in equivalent.json with its reason and is not counted, nor is one whose line
was rewritten before it was tried. "At first" is the first
result of a mistake, "now" its last one, after tests were written for those that survived.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "research" / "reliability.md"
BEGIN, END = "<!-- planted mistakes -->\n", "<!-- end of planted mistakes -->\n"
LISTS = ("first", "fresh", "held", "named")
WHOLE = ("whole1", "whole2", "whole3")  # of all rooms, in proportion to their lines
CAUGHT = ("caught", "too long", "crash")


def records(name: str) -> list[dict[str, Any]]:
    file = HERE / f"{name}.results.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    equivalent = json.loads((HERE / "equivalent.json").read_text(encoding="utf-8"))
    tried = [
        record for record in map(json.loads, lines) if record["outcome"] != "gone"
    ]  # the line was rewritten
    return [record for record in tried if record["key"] not in equivalent]


def counts(name: str) -> dict[str, Counter[str]]:
    """By room: how many were tried, caught at first, and caught now."""
    first, last = {}, {}
    for record in records(name):
        first.setdefault(record["key"], record)
        last[record["key"]] = record
    table: dict[str, Counter[str]] = {}
    for key, record in first.items():
        row = table.setdefault(record["room"], Counter())
        row["tried"] += 1
        row["at first"] += record["outcome"] in CAUGHT
        row["now"] += last[key]["outcome"] in CAUGHT
    return table


def markdown() -> str:
    rows = [
        "| room | first sample | caught at first | caught now | second sample | caught at first | caught now "
        "| third sample | caught |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    *samples, named = (counts(name) for name in LISTS)
    for room in sorted({room for sample in samples for room in sample}):
        rows.append(_row(room, *(sample.get(room, Counter()) for sample in samples)))
    rows.append(_row("all", *(sum(sample.values(), Counter()) for sample in samples)))
    with_name = sum(named.values(), Counter())
    if with_name["tried"]:
        rows += ["", f"Of {with_name['tried']} mistakes with a name, {with_name['now']} are caught."]
    return "\n".join([*rows, "", *_of_all_rooms()]) + "\n"


def _of_all_rooms() -> list[str]:
    """The rows of the samples that were drawn from all rooms together: tried, caught at first, caught now."""
    samples = [counts(name) for name in WHOLE]
    rows = [
        f"| room |{''.join(f' sample {k + 1} | at first | now |' for k in range(len(WHOLE)))}",
        "|---" * 10 + "|",
    ]
    for room in [*sorted({room for sample in samples for room in sample}), "all"]:
        found = [sum(s.values(), Counter()) if room == "all" else s.get(room, Counter()) for s in samples]
        cells = [str(each[name]) for each in found for name in ("tried", "at first", "now")]
        rows.append(f"| {' | '.join([room, *cells])} |")
    return rows


def _row(room: str, first: Counter[str], second: Counter[str], third: Counter[str]) -> str:
    """Of the third sample the first look counts alone."""
    cells = [room, *(sample[name] for sample in (first, second) for name in ("tried", "at first", "now"))]
    return "| " + " | ".join(str(cell) for cell in [*cells, third["tried"], third["at first"]]) + " |"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + markdown() + END + rest.partition(END)[2], encoding="utf-8")
    print(markdown())


if __name__ == "__main__":
    main()
