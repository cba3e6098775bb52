"""Every statement of every source: published, ours, at which scale, held or not, with its figure and its command.

Read from the recorded claims that come with edgewise, in a checkout or in the wheel; nothing is run.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response
from pydantic import Field

from edgewise.explorer.answers import as_bytes
from edgewise.explorer.replies import REFUSED, in_turn, json_reply
from edgewise.explorer.source_rows import source_rows
from edgewise.present.markup import prose
from edgewise.study.recipe import FOLDERS, home
from edgewise.study.store import Stamp, span

router = APIRouter()
OUTCOMES = {True: "held", False: "not held", None: "undecided"}
KINDS = {True: "trains", False: "fails", None: "undecided"}
LARGEST_FIGURE = 4_000_000  # bytes
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "There is no such figure."}}


@router.get("/papers")
def papers() -> Response:
    """All statements, by source."""
    return json_reply(in_turn(_papers))


@router.get("/papers/figure", responses=REFUSED | NOT_FOUND, response_class=Response)
def figure(recipe: Annotated[str, Field(max_length=200), Query()]) -> Response:
    """The recorded figure of a recipe, where the checkout has it."""
    path = figures().get(recipe)
    if path is None or path.stat().st_size > LARGEST_FIGURE:
        raise HTTPException(404, "there is no such figure here.")
    return Response(path.read_bytes(), media_type="image/png")


@lru_cache(maxsize=1)
def _papers() -> bytes:
    sources = [source(folder) for folder in folders()]
    sources = [each for each in sources if each["recipes"]]
    statements = [each for one in sources for recipe in one["recipes"] for each in recipe["statements"]]
    counts = {word: sum(each["outcome"] == word for each in statements) for word in OUTCOMES.values()}
    return as_bytes(
        {"sources": sources, "counts": counts, "rows": source_rows(home(), sources), "empty": _empty()}
    )


def _empty() -> str:
    where = home()
    return (
        ""
        if where is not None
        else "The recipes and their records did not come with this installation of edgewise."
    )


def folders() -> list[Path]:
    """One folder for each source, those of others first."""
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
    """The figures by the name of their recipe: nothing else can be asked for."""
    paths = [path for folder in folders() for path in sorted((folder / "recorded").glob("*.png"))]
    return {f"{path.parents[1].name}/{path.stem}": path for path in paths}


def source(folder: Path) -> dict[str, Any]:
    """A source with its recipes, by the heading of its README."""
    heading = next(
        (line[2:].strip() for line in _lines(folder / "README.md") if line.startswith("# ")), folder.name
    )
    records = sorted((folder / "recorded").glob("*.json"))
    recipes = [entry for path in records if (entry := recipe_of(path)) is not None]
    return {
        "name": folder.name,
        "title": heading,
        "published": folder.parent.name == FOLDERS[0],
        "recipes": recipes,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def recipe_of(path: Path) -> dict[str, Any] | None:
    """A recorded claim; None for files beside the records that hold none."""
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
        "statements": [statement(part) for part in record["claim"].get("parts") or [record["claim"]]],
    }


def statement(claim: dict[str, Any]) -> dict[str, Any]:
    """One statement beside what we see; `rows` names the rows of the sources that it answers."""
    held = claim.get("held")
    return {
        "published": prose(claim["published"]),
        "ours": prose(claim["ours"]),
        "scale": prose(claim["scale"]),
        "outcome": OUTCOMES[held],
        "kind": KINDS[held],
        "rows": list(claim.get("rows", ())),
    }
