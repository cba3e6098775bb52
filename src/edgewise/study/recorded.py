"""How a run ends: the claim and the figure beside its records, or committed beside the recipe and read back."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.regular_file import read_text
from edgewise.study import store
from edgewise.study.code_hash import code_hash
from edgewise.study.engine import Results, Work, results_of
from edgewise.study.recipe import Claim
from edgewise.study.store import dumps, key_of, versions
from edgewise.whole_file import whole_file

FILES = ("claim.json", "figure.png")
LARGE = 300_000  # bytes: more does not belong into a repository of code


def conclude(work: Work, results: Results, folder: Path) -> Claim:
    """Judge and draw complete results; writes claim.json and figure.png into the folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    claim = work.recipe.claim(results.cases)
    _replace(folder / "claim.json", json.dumps(document(work, results, claim), indent=1, ensure_ascii=False) + "\n")
    figure = work.recipe.draw(results.cases)
    with whole_file(folder / "figure.png") as file:
        figure.savefig(file, format="png", dpi=150)
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
    with whole_file(path) as file:
        file.write(text.encode())


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


def recorded_file(path: Path) -> Path:
    """<paper>/recorded/<figure>.jsonl, of a recipe's file."""
    return path.parent / "recorded" / f"{path.stem}.jsonl"


def recorded_outcome(path: Path) -> str:
    """What the record of a recipe's file says of its claim, in words; empty where there is none."""
    file = recorded_file(path).with_suffix(".json")
    if not file.is_file():
        return ""
    try:
        claim = json.loads(read_text(file, LARGE))["claim"]
        return {True: "held", False: "not held", None: "undecided"}[claim["held"]]
    except (ValueError, KeyError, TypeError) as mistake:
        raise BadInput(f"{file} is not the record of a claim; record the recipe again with --full --keep.") from mistake


def recorded_changes(path: Path) -> int:
    """How many recorded cases of a recipe's file were measured by other code than today's."""
    code = code_hash(path.resolve())
    return sum(record.code != code for record in store.read([recorded_file(path)]).done.values())


def read_recorded(work: Work) -> Recorded:
    """The recorded results of some work, whatever code measured them; nothing is written or measured."""
    path = recorded_file(work.recipe.path)
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
    target = recorded_file(work.recipe.path)
    target.parent.mkdir(exist_ok=True)
    with whole_file(target) as file:
        file.write(b"".join(done[key].line() for key in work.cases))
    shutil.copyfile(concluded / "figure.png", target.with_suffix(".png"))
    shutil.copyfile(concluded / "claim.json", target.with_suffix(".json"))
    return target
