"""Papers view: every statement of every source, published and ours, with its figure and its command.

Read from the recorded claims that come with edgewise, in a checkout or in the wheel; nothing is run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import Field

from edgewise.errors import BadInput
from edgewise.explorer.answers import as_bytes
from edgewise.explorer.responses import ERRORS, in_turn, json_reply
from edgewise.files import Document, read_text, read_yaml
from edgewise.present.html import prose
from edgewise.study.recipe import FOLDERS, home
from edgewise.study.results_file import OUTCOMES, judgement, learned
from edgewise.study.store import Stamp, span

router = APIRouter()
NOT_HERE = "The recipes and their records did not come with this installation of edgewise."
KINDS = {"held": "trains", "not held": "fails"}
LARGEST_FIGURE = 4_000_000  # bytes
NOT_FOUND: dict[int | str, Document] = {404: {"description": "Not found: this figure."}}
SOURCES = {
    "A": "talk on softmax descent [Tarmoun 2025]",
    "B": "poster on attention kernels [Song 2024]",
    "C": "talk on signal propagation [Cowsik 2024, Poole 2016, Schoenholz 2017]",
    "D": "abstract on structure-aware descent [Goel 2026]",
}
FILE, LARGEST = "papers/rows.yaml", 2_000_000  # bytes


@router.get("/papers")
def papers() -> Response:
    """Return all statements, by source."""
    return json_reply(in_turn(_papers))


@router.get("/papers/figure", responses=ERRORS | NOT_FOUND, response_class=Response)
def figure(recipe: Annotated[str, Field(max_length=200), Query()]) -> Response:
    """Return the recorded figure of a recipe, if the checkout has it."""
    path = figures().get(recipe)
    if path is None or path.stat().st_size > LARGEST_FIGURE:
        raise HTTPException(404, "this figure was not found.")
    return Response(path.read_bytes(), media_type="image/png")


@lru_cache(maxsize=1)
def _papers() -> bytes:
    sources = [source(folder) for folder in folders()]
    sources = [each for each in sources if each["recipes"]]
    statements = [each for one in sources for recipe in one["recipes"] for each in recipe["statements"]]
    counts = {word: sum(each["outcome"] == word for each in statements) for word in OUTCOMES}
    return as_bytes(
        {
            "sources": sources,
            "counts": counts,
            "rows": source_rows(home(), sources),
            "empty": "" if home() is not None else NOT_HERE,
        }
    )


def folders() -> list[Path]:
    """Return one folder for each source, those of others first."""
    where = home()
    if where is None:
        return []
    return [
        place
        for kind in FOLDERS
        for place in sorted((where / kind).iterdir())
        if (place / "recorded").is_dir()
    ]


@lru_cache(maxsize=1)
def figures() -> dict[str, Path]:
    """Return the figures by the name of their recipe: nothing else can be asked for."""
    paths = [path for folder in folders() for path in sorted((folder / "recorded").glob("*.png"))]
    return {f"{path.parents[1].name}/{path.stem}": path for path in paths}


def source(folder: Path) -> Document:
    """Return a source with its recipes, by the heading of its README."""
    readme = folder / "README.md"
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []
    heading = next((line[2:].strip() for line in lines if line.startswith("# ")), folder.name)
    records = sorted((folder / "recorded").glob("*.json"))
    recipes = [entry for path in records if (entry := recipe_of(path)) is not None]
    return {
        "name": folder.name,
        "title": heading,
        "published": folder.parent.name == FOLDERS[0],
        "learned": next(
            (prose(each["text"]) for each in learned().values() if each["folder"] == folder.name), ""
        ),
        "recipes": recipes,
    }


def recipe_of(path: Path) -> Document | None:
    """Return a recorded claim; None for files beside the records that hold none."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict) or not isinstance(record.get("claim"), dict):
        return None
    folder = path.parents[1]
    name = f"{folder.name}/{path.stem}"
    return {
        "recipe": name,
        "title": record.get("title", path.stem),
        "at": record.get("at", ""),
        "cases": record.get("cases"),
        "seconds": record.get("seconds"),
        "measured": span(Stamp(**stamp) for stamp in record.get("stamps", ())),
        "command": f"edgewise run {folder.parent.name}/{name}.py --recorded",
        "figure": name in figures(),
        "statements": [
            statement(f"{folder.parent.name}/{name}", part)
            for part in record["claim"].get("parts") or [record["claim"]]
        ],
    }


def statement(recipe: str, claim: Document) -> Document:
    """Return one statement beside what we see and how it was read; `rows` names the rows of the sources it answers."""
    judged = judgement(recipe, claim)
    return {
        "published": prose(claim["published"]),
        "ours": prose(claim["ours"]),
        "scale": prose(claim["scale"]),
        "outcome": judged.outcome,
        "kind": KINDS.get(judged.outcome, "undecided"),
        "own": judged.ours,
        "reading": {
            key: prose(str(judged.reading[key]))
            for key in ("spoken", "reading", "others", "settle")
            if key in judged.reading
        },
        "rows": list(claim.get("rows", ())),
    }


def source_rows(home: Path | None, sources: Sequence[Document]) -> list[Document]:
    """Return one entry for each row, in the order of the file; empty without the file."""
    if home is None or not (home / FILE).is_file():
        return []
    # By the name of a row: which recipes answer it, and how many of their statements had which outcome.
    found: dict[str, dict[tuple[str, str], Document]] = {}
    for recipe in (recipe for source in sources for recipe in source["recipes"]):
        for statement in recipe["statements"]:
            key = (recipe["recipe"], statement["outcome"])
            for name in statement["rows"]:
                entry = {"recipe": key[0], "outcome": key[1], "kind": statement["kind"], "count": 0}
                found.setdefault(name, {}).setdefault(key, entry)["count"] += 1
    return [_entry(name, row, list(found.get(name, {}).values())) for name, row in _read(home / FILE)]


def _read(path: Path) -> list[tuple[str, Document]]:
    """(name, row), from a mapping by name or a list of rows with a name each."""
    rows = read_yaml(read_text(path, LARGEST), FILE)
    rows = rows.get("rows", rows) if isinstance(rows, dict) else rows
    if isinstance(rows, dict):
        return [(str(name), row if isinstance(row, dict) else {"says": row}) for name, row in rows.items()]
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "row" in row for row in rows):
        raise BadInput(f"{FILE} must hold rows by name, or a list of rows with a name (`row`) each.")
    return [(str(row["row"]), row) for row in rows]


def _entry(name: str, row: Document, answers: list[Document]) -> Document:
    """Return what the source says, and what answers it: recorded statements, a part of the library, or nothing."""
    where = str(row.get("where", ""))
    return {
        "row": name,
        "source": SOURCES.get(name[:1], ""),
        "says": prose(str(row.get("says", ""))),
        "where": where,
        "status": "" if answers else "part of the library" if where else "no recorded statement",
        "answers": answers,
    }
