"""The rows of the sources (papers/rows.yaml): everything they describe, and which recorded statements answer it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.files import read_text, read_yaml
from edgewise.present.markup import prose

SOURCES = {
    "A": "talk on softmax descent [Tarmoun 2025]",
    "B": "poster on attention kernels [Song 2024]",
    "C": "talk on signal propagation [Cowsik 2024, Poole 2016, Schoenholz 2017]",
    "D": "abstract on structure-aware descent [Goel 2026]",
}
FILE, LARGEST = "papers/rows.yaml", 2_000_000  # bytes


def source_rows(home: Path | None, sources: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each row, in the order of the file; empty where there is no such file."""
    if home is None or not (home / FILE).is_file():
        return []
    answers = _answers(sources)
    return [_entry(name, row, answers.get(name, [])) for name, row in _read(home / FILE)]


def _read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(name, row), from a mapping by name or a list of rows with a name each."""
    rows = read_yaml(read_text(path, LARGEST), FILE)
    rows = rows.get("rows", rows) if isinstance(rows, dict) else rows
    if isinstance(rows, dict):
        return [(str(name), row if isinstance(row, dict) else {"says": row}) for name, row in rows.items()]
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "row" in row for row in rows):
        raise BadInput(f"{FILE} must hold rows by name, or a list of rows with a name (`row`) each.")
    return [(str(row["row"]), row) for row in rows]


def _answers(sources: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By the name of a row: which recipes answer it, and how many of their statements had which outcome."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for recipe in (recipe for source in sources for recipe in source["recipes"]):
        for statement in recipe["statements"]:
            key = (recipe["recipe"], statement["outcome"])
            for name in statement["rows"]:
                entry = {"recipe": key[0], "outcome": key[1], "kind": statement["kind"], "count": 0}
                found.setdefault(name, {}).setdefault(key, entry)["count"] += 1
    return {name: list(entries.values()) for name, entries in found.items()}


def _entry(name: str, row: dict[str, Any], answers: list[dict[str, Any]]) -> dict[str, Any]:
    """What the source says, and what answers it: recorded statements, a part of the library, or nothing so far."""
    where = str(row.get("where", ""))
    return {
        "row": name,
        "source": SOURCES.get(name[:1], ""),
        "says": prose(str(row.get("says", ""))),
        "where": where,
        "status": "" if answers else "part of the library" if where else "no recorded statement",
        "answers": answers,
    }
