"""Carry records over to renamed or reshaped code, where cases measured again are bitwise equal.

    python tools/migrate_records.py [--seconds S] [--within R] [--as-on avx2] [RECIPE ...]
    python tools/migrate_records.py --before REVISION [--within R] [RECIPE ...]
    python tools/migrate_records.py --definition REVISION [RECIPE ...]

A record names the code that measured it by a hash, which changes when an identifier does. Without a revision, a sample
of the recorded cases is measured by the code of the working tree, through the engine, and held against what is
recorded: the three cheapest ones, and the cheapest for every value of every knob but the seed, as far as S seconds go.
With one, the cheapest recorded cases (small-scale ones where those take over half a minute) are measured by the code of
REVISION, which must be that of the record, and by that of the working tree.

If all values are equal to the last bit, the record's hash becomes today's; if one differs, the record is left as it is
and has to be measured again. `--within` allows a relative difference of numbers, for a change of numerics whose size is
known and logged. `--as-on avx2` lets a processor with wider vectors round as one without them does: sums of a training
end in other last digits there, and a hundred steps later in other numbers.

`--definition` is for a change of what the hash counts: records of the code of REVISION, by its own definition, get the
hash that today's definition gives to that same code. Nothing is measured; what is out of date stays so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgewise.study import store
from edgewise.study.code_hash import code_hash
from edgewise.study.engine import Work, run
from edgewise.study.recipe import find_recipes, load_recipe
from edgewise.study.store import Record, dumps, key_of
from edgewise.whole_file import whole_file

ROOT = Path(__file__).parents[1]
FOLDERS = ("papers", "experiments")
CASES = 3
INSTRUCTIONS = {  # how torch, oneDNN and MKL are told to use no wider vectors
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}
AFFORDABLE = 30.0  # seconds that the cheapest recorded cases may take together
ANSWER = """
import json, sys
from pathlib import Path
from edgewise.study.code_hash import code_hash
from edgewise.study.recipe import load_recipe
recipe = load_recipe(sys.argv[1])
values = [recipe.checked_value(recipe.module.measure(case)) for case in json.load(sys.stdin)]
print(json.dumps([code_hash(Path(sys.argv[1])), values]))
"""
NAMED = """
import json, sys
from pathlib import Path
from edgewise.study import code_hash
code_hash.LIBRARY = Path(sys.argv[2])  # today's definition may be asked for the code of another tree
print(json.dumps([code_hash.code_hash(Path(sys.argv[1])), []]))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", metavar="REVISION", help="the last commit before the change; default: the record")
    parser.add_argument("--definition", metavar="REVISION", help="the hash counts other things since this commit")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="recorded time of a sample")
    parser.add_argument("--within", type=float, default=0.0, metavar="R", help="relative difference; default: 0")
    parser.add_argument("--as-on", choices=INSTRUCTIONS, help="instructions of the processor; default: its own")
    parser.add_argument("recipes", nargs="*", type=Path, help="default: all that have a record")
    arguments = parser.parse_args()
    os.environ.update(INSTRUCTIONS.get(arguments.as_on, {}))  # read when torch computes first
    recipes = arguments.recipes or [path for name in FOLDERS for path in find_recipes(ROOT / name)]
    with revision(arguments.before or arguments.definition) as before:
        for recipe in map(Path.resolve, recipes):
            how = Migration(recipe, arguments.within)
            former = None if before is None else before / recipe.relative_to(ROOT)
            if before is None or former is None:
                outcome = how.from_record(arguments.seconds)
            else:
                outcome = how.redefined(former, before) if arguments.definition else how.from_code(former, before)
            print(f"{recipe.parent.name}/{recipe.stem}: {outcome}", flush=True)
    return 0


@contextmanager
def revision(name: str | None) -> Iterator[Path | None]:
    """A checkout of an earlier revision, removed afterwards."""
    if name is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "before"
        git("worktree", "add", "--quiet", "--detach", str(place), name)
        try:
            yield place
        finally:
            git("worktree", "remove", "--force", str(place))


def git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


@dataclass(frozen=True)
class Migration:
    """What becomes of one recipe's record, in words."""

    recipe: Path
    within: float

    @property
    def record(self) -> Path:
        return self.recipe.parent / "recorded" / f"{self.recipe.stem}.jsonl"

    def from_record(self, seconds: float) -> str:
        """A sample measured today, held against the record."""
        if (now := self.today()) is None:
            return self.settled()
        chosen = sample(self.records(), seconds)
        return self.judged([item.value for item in chosen], measured(self.recipe, chosen, now), now)

    def from_code(self, former: Path, before: Path) -> str:
        """A few cases measured by the code of the record and by today's."""
        if not former.is_file() or (now := self.today()) is None:
            return self.settled()
        if {item.code for item in self.records()} != {answer(former, before, [])[0]}:
            return "was out of date before; left as it is"
        cases = few(self.recipe, self.records())
        then, today = (answer(*place, cases)[1] for place in ((former, before), (self.recipe, ROOT)))
        small = cases[0] not in [item.case for item in self.records()]
        return self.judged(then, today, now, f"{len(cases)} small-scale cases" if small else None)

    def redefined(self, former: Path, before: Path) -> str:
        """Today's name of the code of an earlier revision, for a record of that code."""
        if not former.is_file() or (now := self.today()) is None:
            return self.settled()
        library = before / "src" / "edgewise"
        then, code = (told(NAMED, tree, [], str(former), str(library))[0] for tree in (before, ROOT))
        if {item.code for item in self.records()} != {then}:
            return "not of this revision; left as it is"
        rewrite(self.record, self.records(), code)
        return "up to date" if code == now else "renamed, out of date"

    def records(self) -> list[Record]:
        return list(store.read([self.record]).done.values())

    def today(self) -> str | None:
        """The hash of today's code, where a record has another."""
        if not self.record.is_file():
            return None
        code = code_hash(self.recipe)
        return None if {item.code for item in self.records()} == {code} else code

    def settled(self) -> str:
        return "up to date" if self.record.is_file() else "no record, or new"

    def judged(self, then: list[Any], today: list[Any], code: str, count: str | None = None) -> str:
        apart = max((difference(a, b) for a, b in zip(then, today, strict=True)), default=0.0)
        count = count or f"{len(today)} of {len(self.records())} cases"
        if apart > self.within:
            return f"DIFFERS by {apart:.2g}, {count}"
        rewrite(self.record, self.records(), code)
        return f"carried over, {count} {f'within {apart:.2g}' if apart else 'equal'}"


def measured(recipe: Path, chosen: list[Record], code: str) -> list[Any]:
    """What today's code gives for these cases, one thread and random numbers as the engine sets them."""
    with tempfile.TemporaryDirectory() as folder:
        cases = {key_of(dumps(item.case), code): dumps(item.case) for item in chosen}
        results = run(Work(load_recipe(recipe), "sample", Path(folder), code, cases))
    if results.failures:
        raise SystemExit(f"{recipe} failed:\n{next(iter(results.failures.values()))}")
    return [result.value for result in results.cases]


def sample(records: list[Record], seconds: float) -> list[Record]:
    """Three of the cheapest cases at least, and the cheapest with each value of each knob, as far as the time goes."""
    chosen: list[Record] = []
    seen: set[str] = set()
    for item in sorted(records, key=lambda item: item.seconds):
        new = values_of(item.case) - seen
        affordable = sum(other.seconds for other in (*chosen, item)) <= seconds
        if len(chosen) < CASES or (affordable and new):
            chosen.append(item)
            seen |= new
    return chosen


def values_of(case: dict[str, Any]) -> set[str]:
    """Every knob of a case but the seed, with its value."""
    return {f"{name}={dumps(value)}" for name, value in case.items() if name != "seed"}


def difference(one: Any, other: Any) -> float:
    """The largest relative difference of numbers in two values; infinite where anything else differs."""
    if one == other or (one != one and other != other):  # the same, or two that are no numbers
        return 0.0
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max(difference(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(difference(a, b) for a, b in zip(one, other, strict=True))
    numbers = isinstance(one, float) and isinstance(other, float)
    return abs(one - other) / max(abs(one), abs(other)) if numbers else math.inf


def few(recipe: Path, records: list[Record]) -> list[dict[str, Any]]:
    """The cheapest recorded cases, or small-scale ones where those are not cheap."""
    cheapest = sorted(records, key=lambda item: item.seconds)[:CASES]
    if sum(item.seconds for item in cheapest) <= AFFORDABLE:
        return [item.case for item in cheapest]
    return load_recipe(recipe).cases("small")[:CASES]


def answer(recipe: Path, tree: Path, cases: list[dict[str, Any]]) -> tuple[str, list[Any]]:
    """The hash and the values that the code of a tree gives; JSON keeps every bit of a number."""
    return told(ANSWER, tree, cases, str(recipe))


def told(program: str, tree: Path, cases: list[dict[str, Any]], *arguments: str) -> tuple[str, list[Any]]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", program, *arguments], input=json.dumps(cases), text=True,
                         capture_output=True, cwd=tree, env=environment)  # fmt: skip
    if run.returncode:
        raise SystemExit(f"{arguments[0]} failed:\n{run.stderr}")
    code, values = json.loads(run.stdout.splitlines()[-1])
    return code, values


def rewrite(record: Path, records: list[Record], code: str) -> None:
    """The same values under the new hash, the whole file or nothing; the claim beside them names it too."""
    lines = [replace(item, code=code, key=key_of(dumps(item.case), code)).line() for item in records]
    with whole_file(record) as file:
        file.write(b"".join(lines))
    claim = record.with_suffix(".json")
    document = json.loads(claim.read_text(encoding="utf-8")) | {"code": code}
    with whole_file(claim) as file:
        file.write((json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
