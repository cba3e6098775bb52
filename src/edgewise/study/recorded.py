"""Results committed beside a recipe: kept from a full run, read back without measuring anything."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from edgewise.errors import BadInput
from edgewise.study import store
from edgewise.study.json_values import dumps
from edgewise.study.plan import Outcome, Plan, outcome_of
from edgewise.study.recipe import Recipe
from edgewise.study.record import key_of

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
