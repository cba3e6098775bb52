"""Result files of recipes: claim and figure beside the records, committed results read back, what they come to.

A source's statement that did not hold is "not held" only if `papers/readings.yaml` says that it is refuted by its own
definition at a fair scale. If our reading differs from the sentence it depends on the reading; if the run was too small
to tell it is open. Goals and questions of ours are counted apart.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from edgewise.errors import BadInput
from edgewise.files import Document, read_text, read_yaml, whole_file
from edgewise.study import store
from edgewise.study.engine import Results, Work, results_of
from edgewise.study.recipe import Claim, Result, home
from edgewise.study.store import Stamp, dumps, lines_of, span

READINGS, LARGEST = "papers/readings.yaml", 2_000_000  # bytes
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
    reading: Document = next(
        (each for each in _readings().get(recipe, []) if said.startswith(each["starts"])), {}
    )
    kind = "" if held else reading.get("kind", "")
    uncited = recipe.startswith("experiments/") and not re.search(r"\[|\btalk\b", said)
    ours = kind == "ours" or bool(OURS.match(said)) or uncited
    plain = {True: "held", False: "not held", None: "open"}[held]
    return Judgement(KINDS[kind] if kind and not ours else plain, ours, reading)


def learned() -> dict[str, Document]:
    """Return what was learned, by the letter of a source: folder, text and the recipe with the most telling picture."""
    return dict(_readings().get("learned", {}))


def recipe_key(path: Path) -> str:
    """Return the name of a recipe's file, with its folder, by which its readings are stored."""
    path = path.resolve()
    return "/".join((*path.parts[-3:-1], path.stem))


def _readings() -> Document:
    where = home()
    return {} if where is None or not (where / READINGS).is_file() else _read(where / READINGS)


@lru_cache(maxsize=1)
def _read(path: Path) -> Document:
    table = read_yaml(read_text(path, LARGEST), READINGS)
    if not isinstance(table, dict):
        raise BadInput(f"{READINGS} must hold lists of readings by the name of a recipe.")
    for name, entries in table.items():
        for entry in entries if name != "learned" else ():
            if entry.get("kind", "") not in ("", "ours", *KINDS):
                raise BadInput(
                    f"{READINGS}: {name} has kind {entry['kind']!r}. Expected ours, {', '.join(KINDS)}."
                )
    return table


FILES = ("claim.json", "figure.png")
LARGE = 300_000  # bytes: more does not belong into a repository of code


def conclude(work: Work, results: Results, folder: Path) -> Claim:
    """Judge and draw complete results; writes claim.json and figure.png into the folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    claim = work.recipe.claim(results.cases)
    with whole_file(folder / "claim.json") as file:
        text = json.dumps(document(work, results, claim), indent=1, ensure_ascii=False)
        file.write(f"{text}\n".encode())
    figure = work.recipe.draw(results.cases)
    with whole_file(folder / "figure.png") as file:
        figure.savefig(file, format="png", dpi=150)
    import matplotlib.pyplot

    matplotlib.pyplot.close(figure)  # one made through pyplot stays in memory until it is closed there
    return claim


def withdraw(folder: Path) -> None:
    """Remove the claim and figure of earlier results: they do not belong to what the store holds now."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def document(work: Work, results: Results, claim: Claim | None) -> Document:
    """Return what claim.json and `--json` say of a run."""
    words: Document = {
        "recipe": work.recipe.name,
        "title": work.recipe.title,
        "at": work.scale,
        "cases": len(work.cases),
        "measured": len(results.cases),
        "claim": None if claim is None else claim.to_dict(),
        "stamps": [asdict(stamp) for stamp in results.stamps],
        "seconds": round(sum(result.seconds for result in results.cases), 3),
    }
    return dict(json.loads(dumps(words)))  # numbers that are not finite by name, as in the store


def recorded_file(path: Path, scale: str = "full") -> Path:
    """Return <paper>/recorded/<figure>.jsonl, of a recipe's file.

    Cases of the small scale are in <figure>.small.jsonl.
    """
    return path.parent / "recorded" / f"{path.stem}{'' if scale == 'full' else f'.{scale}'}.jsonl"


def recorded_results(file: Path) -> list[Result]:
    """Return the cases in a committed file, in its order."""
    if not file.is_file():
        raise BadInput(f"{file} is absent. Measure its recipe with edgewise run RECIPE --full --keep.")
    return [
        Result(record.case, record.value or {}, record.seconds) for record in store.read([file]).done.values()
    ]


@dataclass(frozen=True)
class CommittedClaim:
    """What the committed claim of a recipe says: how many statements held, and what measured them and when."""

    outcome: str
    measured: str


def tally(claim: Document, path: Path) -> str:
    """Count the outcomes of a source's statements and of ours apart: "source 2 of 3 (1 open), ours 1 of 2"."""
    found: dict[str, list[str]] = {}
    for part in claim.get("parts") or [claim]:
        judged = judgement(recipe_key(path), part)
        found.setdefault("ours" if judged.ours else "source", []).append(judged.outcome)
    counts = []
    for name in sorted(found, reverse=True):
        rest = [f"{found[name].count(word)} {word}" for word in OUTCOMES[1:3] if word in found[name]]
        counts.append(
            f"{name} {found[name].count('held')} of {len(found[name])}"
            + (f" ({', '.join(rest)})" if rest else "")
        )
    return ", ".join(counts)


def recorded_summary(path: Path) -> CommittedClaim | None:
    """Return the committed claim of a recipe's file; None if no result of it is committed."""
    file = recorded_file(path).with_suffix(".json")
    if not file.is_file():
        return None
    try:
        record = json.loads(read_text(file, LARGE))
        return CommittedClaim(
            tally(record["claim"], path), span(Stamp(**stamp) for stamp in record["stamps"])
        )
    except (ValueError, KeyError, TypeError, AttributeError) as mistake:
        raise BadInput(f"{file} is not a recorded claim; write it again with --recorded --keep.") from mistake


def read_recorded(work: Work) -> Results:
    """Return the committed results of some work; nothing is written or measured."""
    path = recorded_file(work.recipe.path)
    if not path.is_file():
        raise BadInput(
            f"Nothing is recorded for {work.recipe.path}: {path} is absent. Run it without --recorded."
        )
    return results_of(work, store.read([path], set(work.cases)))


def keep(work: Work, concluded: Path | None = None) -> Path:
    """Write a complete run's records, in the order of the cases, to recorded/, with its figure and claim if given."""
    done = work.contents().done
    target = recorded_file(work.recipe.path, work.scale)
    target.parent.mkdir(exist_ok=True)
    with whole_file(target) as file:
        file.write(lines_of([done[case] for case in work.cases]))
    if concluded is not None:
        keep_claim(work, concluded)
    return target


def keep_claim(work: Work, concluded: Path) -> None:
    """Copy a claim and its figure beside the committed results."""
    target = recorded_file(work.recipe.path)
    shutil.copyfile(concluded / "figure.png", target.with_suffix(".png"))
    shutil.copyfile(concluded / "claim.json", target.with_suffix(".json"))
