"""Measure the cases that have no record yet, and those that are named, and write them beside the others.

    python -m experiments.census.fill [RECIPE ...] [--again NAME ...]

`run` measures every case that today's code has not measured. This keeps the records of older code: each record names
the code that it is of, and `edgewise run RECIPE --recorded` says how many are of other code than today's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from edgewise.study import load_recipe, store
from edgewise.study.engine import Work
from edgewise.study.recorded import conclude, read_recorded, recorded_file
from edgewise.study.store import Record, dumps, key_of
from edgewise.whole_file import whole_file

from . import table

HERE = Path(__file__).parent


def fill(name: str, again: set[str]) -> None:
    """Measure what one recipe lacks; the file of records is whole after every case."""
    work = Work.of(load_recipe(HERE / f"{name}.py"), "full")
    path = recorded_file(work.recipe.path)
    records = {dumps(r.case): r for r in store.read([path]).done.values()} if path.is_file() else {}
    for text in work.cases.values():
        case = json.loads(text)
        if text not in records or table.name_of(case) in again:
            records[text] = measured(work, case)
            write(path, [records[other] for other in work.cases.values() if other in records])
            print(name, table.name_of(case), records[text].value["outcome"], sep=" | ", flush=True)  # type: ignore[index]
    if len(records) >= len(work.cases):
        judge(work)


def measured(work: Work, case: dict[str, Any]) -> Record:
    """The record of one case by today's code."""
    start = time.perf_counter()
    value = work.recipe.checked_value(work.recipe.module.measure(case))
    seconds = round(time.perf_counter() - start, 6)
    return Record(key_of(dumps(case), work.code), case, work.code, seconds, value, versions=store.versions())


def write(path: Path, records: list[Record]) -> None:
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as file:
        file.write(b"".join(record.line() for record in records))


def judge(work: Work) -> None:
    """Write the claim and the figure beside complete records."""
    target = recorded_file(work.recipe.path)
    with tempfile.TemporaryDirectory() as folder:
        conclude(work, read_recorded(work).results, Path(folder))
        shutil.copyfile(Path(folder) / "claim.json", target.with_suffix(".json"))
        shutil.copyfile(Path(folder) / "figure.png", target.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cases of the census that have no record.")
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(table.GROUPS)}; all if none")
    parser.add_argument("--again", action="append", default=[], metavar="NAME", help="measure this one again")
    options = parser.parse_args()
    for name in options.recipes or table.GROUPS:
        fill(name, set(options.again))
    table.main()


if __name__ == "__main__":
    main()
