"""Measure the cheapest committed case of every recipe again, judge its committed results, and say what parted.

    python tools/canary.py                     the cheapest case of each (of its small scale, if that is committed)
    python tools/canary.py --whole             every case of the recipes that cost under ten minutes; goes on if cut off
    python tools/canary.py RECIPE ...          of these recipes

A recipe states its `TOLERANCE`: how far a number may be from the committed one, as a share of the largest in its entry,
from the scatter of its own seeds. Entries in `NOT_COMPARED` (as "structure.prints") are times, amplify rounding,
or are sentences, which may be improved any day: outcomes and numbers are compared. A number that parted is not
forbidden: the commit that explains it measures the recipe again and says so in the changelog. Exit code 0: all as
committed. 3: a number parted, which CI reports and passes. 1: a recipe raised, which fails CI.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from edgewise.errors import BadInput
from edgewise.progress import ProgressBar
from edgewise.study import find_recipes, load_recipe, store
from edgewise.study.engine import Work, measured, run
from edgewise.study.recipe import FOLDERS, Recipe
from edgewise.study.results_file import read_recorded, recorded_file
from edgewise.study.store import Record, dumps

ROOT = Path(__file__).parents[1]
DEAREST = 20.0  # seconds of a case that the canary measures
WHOLE = 600.0  # seconds of a recipe that is measured whole every night
FOLDER = ROOT / "build" / "nightly"
PARTED, RAISED = 3, 1  # exit codes
ROUNDING = 1e-14  # of numbers that are zero but for rounding
APART = {  # recipes that cannot be compared here, and why
    "experiments/census/packages.py": "needs the packages of `make census`",
    "experiments/census/adapters.py": "needs the packages of `make census`",
    "experiments/alarms/default_budget.py": "the clock of the machine decides which steps are sampled",
}


@dataclass(frozen=True)
class Parted:
    """An entry of a value that is not what is committed; `by` is None if it is not a matter of size."""

    entry: str
    by: float | None
    committed: Any
    now: Any


@dataclass(frozen=True)
class Outcome:
    """Of one recipe: its largest difference within the tolerance, and what is beyond it."""

    recipe: str
    seconds: float
    tolerance: float
    largest: float
    parted: tuple[Parted, ...]
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.recipe}: {self.problem}"
        said = "parted" if self.parted else "as committed"
        return f"{self.recipe}: {said}, {self.seconds:.1f} s, at most {self.largest:.1e} apart ({self.tolerance:g})"


def differences(
    committed: dict[str, Any], now: dict[str, Any], skipped: tuple[str, ...] = ()
) -> Iterator[Parted]:
    """Every entry with its largest difference, as a share of the largest committed number in it."""
    committed, now = without(committed, skipped), without(now, skipped)
    for entry in sorted(committed.keys() | now.keys()):
        if entry not in committed or entry not in now:
            yield Parted(entry, None, committed.get(entry, "absent"), now.get(entry, "absent"))
            continue
        pairs = list(_pairs(committed[entry], now[entry]))
        scale = max((abs(a) for a, _ in pairs if _finite(a)), default=0.0) or 1.0
        worst = max(pairs, key=lambda pair: _apart(*pair, scale), default=(0.0, 0.0))
        by = _apart(*worst, scale)
        yield Parted(entry, None if math.isinf(by) else by, *worst)


def without(value: Any, skipped: tuple[str, ...]) -> Any:
    """The value without entries that are not compared; "asked.notes" is the entry `notes` of all that `asked` holds."""
    if isinstance(value, list):
        return [without(each, skipped) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without(each, tuple(name[len(key) + 1 :] for name in skipped if name.startswith(f"{key}.")))
        for key, each in value.items()
        if key not in skipped
    }


def _pairs(committed: Any, now: Any) -> Iterator[tuple[Any, Any]]:
    """Numbers and words that stand at the same place."""
    if isinstance(committed, dict) and isinstance(now, dict) and committed.keys() == now.keys():
        for key in committed:
            yield from _pairs(committed[key], now[key])
    elif isinstance(committed, list) and isinstance(now, list) and len(committed) == len(now):
        for one, other in zip(committed, now, strict=True):
            yield from _pairs(one, other)
    else:
        yield committed, now


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _apart(committed: Any, now: Any, scale: float) -> float:
    """Infinite for words, booleans and what is not finite, unless they are the same."""
    if _finite(committed) and _finite(now):
        return 0.0 if abs(now - committed) < ROUNDING else abs(now - committed) / scale
    return 0.0 if repr(committed) == repr(now) else math.inf


def tolerance_of(recipe: Recipe) -> float:
    value = getattr(recipe.module, "TOLERANCE", None)
    if not isinstance(value, float) or not 0 < value < 1:
        raise ValueError(f"{recipe.path}: TOLERANCE is {value!r}. A float between 0 and 1 is expected.")
    return value


def compare(recipe: Recipe, committed: list[Record], now: list[Record]) -> Outcome:
    """Of cases that were measured again, in the same order, and of what is said of all of them."""
    name = name_of(recipe.path)
    tolerance, skipped = tolerance_of(recipe), tuple(getattr(recipe.module, "NOT_COMPARED", ()))
    failed = [record for record in now if record.value is None]
    if failed:
        return Outcome(name, failed[0].seconds, tolerance, math.nan, (), f"failed\n{failed[0].error}")
    pairs = [(before.value or {}, after.value or {}) for before, after in zip(committed, now, strict=True)]
    entries = [each for pair in (*pairs, judged_again(recipe)) for each in differences(*pair, skipped)]
    parted = tuple(each for each in entries if each.by is None or each.by > tolerance)
    largest = max((math.inf if each.by is None else each.by for each in entries), default=0.0)
    return Outcome(name, sum(record.seconds for record in now), tolerance, largest, parted)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def judged_again(recipe: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the committed claim found in the committed results, and what the recipe finds in them now, by its theory."""
    work = Work.of(recipe, "full")
    file = recorded_file(recipe.path).with_suffix(".json")
    if not file.is_file():
        return {}, {}
    committed = json.loads(file.read_text(encoding="utf-8"))["claim"]
    now = json.loads(dumps(recipe.claim(read_recorded(work).cases).to_dict()))
    return _found(committed), _found(now)


def _found(claim: dict[str, Any]) -> dict[str, Any]:
    """Outcomes and numbers of its statements, without their words."""
    parts = claim.get("parts") or [claim]
    numbers = {f"numbers of statement {place}": part["numbers"] for place, part in enumerate(parts, 1)}
    return {"held": [part["held"] for part in parts], "rows": [part.get("rows") for part in parts], **numbers}


def committed_records(path: Path, scale: str = "full") -> list[Record]:
    """The committed results of one scale."""
    file = recorded_file(path, scale)
    return [record for record in store.read([file]).done.values() if record.value] if file.is_file() else []


def cheapest(path: Path) -> Outcome | None:
    """The cheapest committed case, of the small scale if that is committed; None if it costs too much or none is."""
    records = committed_records(path, "small") or committed_records(path)
    record = min(records, key=lambda each: each.seconds, default=None)
    if record is None or record.seconds > DEAREST:
        return None
    recipe = load_recipe(path)
    return compare(recipe, [record], [measured(recipe, dumps(record.case))])


def whole(path: Path) -> Outcome | None:
    """Every case measured again, in a run folder that is gone on with; None if too dear or none is committed."""
    before = committed_records(path)
    if not before or sum(record.seconds for record in before) > WHOLE:
        return None
    recipe = load_recipe(path)
    work = Work.of(recipe, "full", FOLDER)
    run(work)
    done = work.contents()
    pairs = [(record, again) for record in before if (again := _again(done, record)) is not None]
    return compare(recipe, [record for record, _ in pairs], [again for _, again in pairs])


def _again(contents: store.Contents, record: Record) -> Record | None:
    case = dumps(record.case)
    return contents.done.get(case) or contents.failed.get(case)


def asked(path: Path, every_case: bool) -> Outcome | None:
    """Measure one recipe; if it cannot be loaded, measured or judged, that is its outcome."""
    try:
        return whole(path) if every_case else cheapest(path)
    except BadInput as mistake:
        return Outcome(name_of(path), 0.0, 0.0, math.nan, (), f"failed\n{mistake}")


def table(outcomes: list[Outcome]) -> str:
    """What parted, by how much."""
    lines = [f"{'recipe':58}{'entry':24}{'committed':>14}{'now':>14}{'by':>10}{'of':>9}"]
    for outcome in outcomes:
        for each in outcome.parted:
            by = "-" if each.by is None else f"{each.by:.1e}"
            numbers = "".join(f"{str(value)[:12]:>14}" for value in (each.committed, each.now))
            lines.append(f"{outcome.recipe:58}{each.entry:24}{numbers}{by:>10}{outcome.tolerance:>9g}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", type=Path)
    parser.add_argument(
        "--whole", action="store_true", help="every case of the recipes that cost under ten minutes"
    )
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    listed = [path for folder in FOLDERS for path in find_recipes(ROOT / folder)]
    paths = [path.resolve() for path in arguments.recipes] or [
        path for path in listed if str(path.relative_to(ROOT)) not in APART
    ]
    began, outcomes, left = time.perf_counter(), [], []
    stream: Any = Parallel(n_jobs=arguments.workers, return_as="generator")(
        delayed(asked)(path, arguments.whole) for path in paths
    )
    with ProgressBar() as bar:
        for path, outcome in zip(paths, stream, strict=True):
            bar.count("canary", len(outcomes) + len(left), len(paths))
            if outcome is None:
                why = "too long" if committed_records(path) else "no result is committed"
                left.append(f"{path.relative_to(ROOT)} ({why})")
                continue
            outcomes.append(outcome)
            print(outcome, flush=True)
    parted, raised = [each for each in outcomes if each.parted], [each for each in outcomes if each.problem]
    if parted:
        print(f"\n{table(parted)}")
    if not arguments.recipes:
        left += [f"{name} ({why})" for name, why in APART.items()]
    print("".join(f"\nnot measured: {name}" for name in left))
    same = len(outcomes) - len(parted) - len(raised)
    print(f"{same} of {len(outcomes)} recipes as committed, {time.perf_counter() - began:.0f} s")
    if parted:
        print(
            f"{len(parted)} parted, which fails nothing: explain it in the changelog and measure the recipe again "
            "with edgewise run RECIPE --full --fresh --keep."
        )
    if raised:
        print(f"{len(raised)} raised, which fails CI: {', '.join(each.recipe for each in raised)}")
    return RAISED if raised else PARTED if parted else 0


if __name__ == "__main__":
    sys.exit(main())
