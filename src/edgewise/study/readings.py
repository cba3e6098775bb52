"""What a recorded statement comes to: held, depends on the reading, open, or not held, and whose statement it is.

A source's statement that did not hold is "not held" only if `papers/readings.yaml` says that it is refuted by its own
definition at a fair scale. If our reading differs from the sentence it depends on the reading; if the run was too small
to tell it is open. Goals and questions of ours are counted apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from edgewise.errors import BadInput
from edgewise.files import Document, read_text, read_yaml
from edgewise.study.recipe import home

FILE, LARGEST = "papers/readings.yaml", 2_000_000  # bytes
OUTCOMES = ("held", "depends on the reading", "open", "not held")
KINDS = {"refuted": "not held", "reading": "depends on the reading", "small": "open", "asked": "open"}
OURS = re.compile(r"\(?ours?\b|\((?:our )?question", re.IGNORECASE)


@dataclass(frozen=True)
class Judgement:
    """An outcome, whether the statement is ours, and how it was read (empty if the sentence leaves no choice)."""

    outcome: str
    ours: bool
    reading: Document


def judgement(recipe: str, statement: Document) -> Judgement:
    """Return what a recorded statement comes to; `recipe` is its name with folders: papers/song2024kernels/text."""
    said, held = statement["published"], statement["held"]
    reading = next((each for each in _readings(recipe) if said.startswith(each["starts"])), {})
    kind = "" if held else reading.get("kind", "")
    uncited = recipe.startswith("experiments/") and not re.search(r"\[|\btalk\b", said)
    if kind == "ours" or OURS.match(said) or uncited:
        return Judgement({True: "held", False: "not held", None: "open"}[held], True, reading)
    if kind:
        return Judgement(KINDS[kind], False, reading)
    return Judgement({True: "held", False: "not held", None: "open"}[held], False, reading)


def learned() -> dict[str, Document]:
    """Return what was learned, by the letter of a source: folder, text and the recipe with the most telling picture."""
    where = home()
    return (
        {} if where is None or not (where / FILE).is_file() else dict(_read(where / FILE).get("learned", {}))
    )


def recipe_key(path: Path) -> str:
    """Return the name of a recipe's file, with its folder, by which its readings are stored."""
    path = path.resolve()
    return "/".join((*path.parts[-3:-1], path.stem))


def _readings(recipe: str) -> list[Document]:
    where = home()
    return [] if where is None or not (where / FILE).is_file() else _read(where / FILE).get(recipe, [])  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _read(path: Path) -> Document:
    table = read_yaml(read_text(path, LARGEST), FILE)
    if not isinstance(table, dict):
        raise BadInput(f"{FILE} must hold lists of readings by the name of a recipe.")
    for name, entries in table.items():
        for entry in entries if name != "learned" else ():
            if entry.get("kind", "") not in ("", "ours", *KINDS):
                raise BadInput(
                    f"{FILE}: {name} has kind {entry['kind']!r}. Expected ours, {', '.join(KINDS)}."
                )
    return table
