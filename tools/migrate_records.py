"""Carry records over to renamed or reshaped code, where a few cases computed before and after are bitwise equal.

    python tools/migrate_records.py --before REVISION [--within R] [RECIPE ...]

A record names the code that measured it by a hash, which changes when an identifier does. For every recipe whose
record was measured by the code of REVISION, the cheapest recorded cases (small-scale ones where those take over
half a minute) are measured by that code and by the code of the working tree, one process each. If all values are equal
to the last bit, the record's hash becomes today's; if one differs, the record is left as it is and has to be measured
again. `--within` allows a relative difference of numbers, for a change of numerics whose size is known and logged.
A record that was already out of date at REVISION stays out of date.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgewise.study import store
from edgewise.study.recipe import find_recipes, load_recipe
from edgewise.study.store import Record, dumps, key_of
from edgewise.whole_file import whole_file

ROOT = Path(__file__).parents[1]
FOLDERS = ("papers", "experiments")
CASES = 3
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, metavar="REVISION", help="the last commit before the change")
    parser.add_argument("--within", type=float, default=0.0, metavar="R", help="relative difference; default: 0")
    parser.add_argument("recipes", nargs="*", type=Path, help="default: all that have a record")
    arguments = parser.parse_args()
    recipes = arguments.recipes or [path for name in FOLDERS for path in find_recipes(ROOT / name)]
    with revision(arguments.before) as before:
        former = {path.stem: path for name in FOLDERS for path in find_recipes(before / name)}
        for recipe in recipes:
            outcome = migrate(recipe.resolve(), former, before, arguments.within)
            print(f"{recipe.parent.name}/{recipe.stem}: {outcome}", flush=True)
    return 0


@contextmanager
def revision(name: str) -> Iterator[Path]:
    """A checkout of an earlier revision, removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "before"
        git("worktree", "add", "--quiet", "--detach", str(place), name)
        try:
            yield place
        finally:
            git("worktree", "remove", "--force", str(place))


def git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


def migrate(recipe: Path, former: dict[str, Path], before: Path, within: float) -> str:
    """What became of a recipe's record, in words."""
    record = recipe.parent / "recorded" / f"{recipe.stem}.jsonl"
    if not record.is_file() or recipe.stem not in former:
        return "no record, or new"
    records = list(store.read([record]).done.values())
    codes = {item.code for item in records}
    if codes == {answer(recipe, ROOT, [])[0]}:
        return "up to date"
    if codes != {answer(former[recipe.stem], before, [])[0]}:
        return "was out of date before; left as it is"
    cases = few(recipe, records)
    _, values_before = answer(former[recipe.stem], before, cases)
    code_now, values_now = answer(recipe, ROOT, cases)
    apart = max((difference(a, b) for a, b in zip(values_before, values_now, strict=True)), default=0.0)
    if apart > within:
        return f"DIFFERS by {apart:.2g}, of {len(cases)} cases"
    rewrite(record, records, code_now)
    return f"carried over, {len(cases)} cases {f'within {apart:.2g}' if apart else 'equal'}"


def difference(one: Any, other: Any) -> float:
    """The largest relative difference of numbers in two values; infinite where anything else differs."""
    if one == other:
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
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", ANSWER, str(recipe)], input=json.dumps(cases), text=True,
                         capture_output=True, cwd=tree, env=environment)  # fmt: skip
    if run.returncode:
        raise SystemExit(f"{recipe} failed:\n{run.stderr}")
    code, values = json.loads(run.stdout.splitlines()[-1])
    return code, values


def rewrite(record: Path, records: list[Record], code: str) -> None:
    """The same values under the new hash, the whole file or nothing."""
    lines = [replace(item, code=code, key=key_of(dumps(item.case), code)).line() for item in records]
    with whole_file(record) as file:
        file.write(b"".join(lines))


if __name__ == "__main__":
    sys.exit(main())
