"""How a run ends: the claim and the figure beside its records, or committed beside the recipe and read back."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.study import store
from edgewise.study.engine import Results, Work, results_of
from edgewise.study.recipe import Claim, Recipe
from edgewise.study.store import dumps, key_of, versions

FILES = ("claim.json", "figure.png")
LARGE = 300_000  # bytes: more does not belong into a repository of code


def conclude(work: Work, results: Results, folder: Path) -> Claim:
    """Judge and draw complete results; writes claim.json and figure.png into the folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    claim = work.recipe.claim(results.cases)
    _replace(folder / "claim.json", json.dumps(document(work, results, claim), indent=1, ensure_ascii=False) + "\n")
    figure = work.recipe.draw(results.cases)
    unfinished = folder / "unfinished.png"
    figure.savefig(unfinished, dpi=150)
    os.replace(unfinished, folder / "figure.png")
    _close(figure)
    return claim


def withdraw(folder: Path) -> None:
    """Remove the claim and figure of earlier results: they do not belong to what the store holds now."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def document(work: Work, results: Results, claim: Claim | None) -> dict[str, Any]:
    """What claim.json and `--json` say of a run."""
    words: dict[str, Any] = {
        "recipe": work.recipe.name, "title": work.recipe.title, "at": work.scale, "cases": len(work.cases),
        "measured": len(results.cases), "claim": None if claim is None else claim.to_dict(), "code": work.code,
        "versions": versions(), "seconds": round(sum(result.seconds for result in results.cases), 3),
    }  # fmt: skip
    return dict(json.loads(dumps(words)))  # numbers that are not finite by name, as in the store


def _replace(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


def _close(figure: Any) -> None:
    """A figure made through pyplot stays in memory until it is closed there."""
    import matplotlib.pyplot

    matplotlib.pyplot.close(figure)


@dataclass(frozen=True)
class Recorded:
    """What was recorded of some work; `changed`: how many by other code than today's, `codes`: by which."""

    results: Results
    changed: int
    codes: tuple[str, ...]


def recorded_file(recipe: Recipe) -> Path:
    """<paper>/recorded/<figure>.jsonl"""
    return recipe.path.parent / "recorded" / f"{recipe.path.stem}.jsonl"


def read_recorded(work: Work) -> Recorded:
    """The recorded results of some work, whatever code measured them; nothing is written or measured."""
    path = recorded_file(work.recipe)
    if not path.is_file():
        raise BadInput(f"Nothing is recorded for {work.recipe.path}: {path} is absent. Run it without --recorded.")
    contents = store.read([path])
    current = store.Contents(damaged=contents.damaged)
    changed, codes = 0, set()
    for record in contents.done.values():
        key = key_of(dumps(record.case), work.code)
        if key in work.cases:
            current.add(replace(record, key=key))
            changed += record.code != work.code
            codes.add(record.code)
    return Recorded(results_of(work, current), changed, tuple(sorted(codes)))


def keep(work: Work, concluded: Path) -> Path:
    """Copy a complete run's records, in the order of the cases, with its figure and claim to recorded/."""
    done = work.contents().done
    target = recorded_file(work.recipe)
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_bytes(b"".join(done[key].line() for key in work.cases))
    os.replace(unfinished, target)
    shutil.copyfile(concluded / "figure.png", target.with_suffix(".png"))
    shutil.copyfile(concluded / "claim.json", target.with_suffix(".json"))
    return target
