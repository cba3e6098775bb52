"""Results committed beside a recipe: kept from a full run, read back without measuring anything.

The end of a run: the claim and the figure, written beside the records.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.study import store
from edgewise.study.engine import Outcome, Plan, outcome_of
from edgewise.study.recipe import Claim, Recipe
from edgewise.study.store import dumps, key_of, versions

FILES = ("claim.json", "figure.png")


def conclude(plan: Plan, outcome: Outcome, folder: Path) -> Claim:
    """Judge and draw complete results; writes claim.json and figure.png into the folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    claim = plan.recipe.claim(outcome.results)
    _replace(folder / "claim.json", json.dumps(document(plan, outcome, claim), indent=1, ensure_ascii=False) + "\n")
    figure = plan.recipe.draw(outcome.results)
    unfinished = folder / "unfinished.png"
    figure.savefig(unfinished, dpi=150)
    os.replace(unfinished, folder / "figure.png")
    _close(figure)
    return claim


def withdraw(folder: Path) -> None:
    """Remove the claim and figure of earlier results: they do not belong to what the store holds now."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def document(plan: Plan, outcome: Outcome, claim: Claim | None) -> dict[str, Any]:
    """What claim.json and `--json` say of a run."""
    words: dict[str, Any] = {
        "recipe": plan.recipe.name, "title": plan.recipe.title, "at": plan.scale, "cases": len(plan.cases),
        "measured": len(outcome.results), "claim": None if claim is None else claim.to_dict(), "code": plan.code,
        "versions": versions(), "seconds": round(sum(result.seconds for result in outcome.results), 3),
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


LARGE = 300_000  # bytes: more does not belong into a repository of code


@dataclass(frozen=True)
class Recorded:
    """What was recorded of a plan's cases; `changed`: how many by other code than today's, `codes`: by which."""

    outcome: Outcome
    changed: int
    codes: tuple[str, ...]


def recorded_file(recipe: Recipe) -> Path:
    """<paper>/recorded/<figure>.jsonl"""
    return recipe.path.parent / "recorded" / f"{recipe.path.stem}.jsonl"


def read_recorded(plan: Plan) -> Recorded:
    """The recorded results of a plan's cases, whatever code measured them; nothing is written or measured."""
    path = recorded_file(plan.recipe)
    if not path.is_file():
        raise BadInput(f"Nothing is recorded for {plan.recipe.path}: {path} is absent. Run it without --recorded.")
    contents = store.read([path])
    found = store.Contents(damaged=contents.damaged)
    changed, codes = 0, set()
    for record in contents.done.values():
        key = key_of(dumps(record.case), plan.code)
        if key in plan.cases:
            found.add(replace(record, key=key))
            changed += record.code != plan.code
            codes.add(record.code)
    return Recorded(outcome_of(plan, found), changed, tuple(sorted(codes)))


def keep(plan: Plan, concluded: Path) -> Path:
    """Copy a complete run's records, in the order of the cases, with its figure and claim to recorded/."""
    done = plan.contents().done
    target = recorded_file(plan.recipe)
    target.parent.mkdir(exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_bytes(b"".join(done[key].line() for key in plan.cases))
    os.replace(unfinished, target)
    shutil.copyfile(concluded / "figure.png", target.with_suffix(".png"))
    shutil.copyfile(concluded / "claim.json", target.with_suffix(".json"))
    return target
