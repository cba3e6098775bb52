"""Measure the cases that have no record yet, and those that are named, and write them beside the others.

    python -m experiments.census.fill [RECIPE ...] [--again NAME ...]

Each group of records follows the stamp of what measured it: `edgewise run RECIPE --recorded` prints versions and dates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edgewise.files import whole_file
from edgewise.study import load_recipe, store
from edgewise.study.engine import Work, measured
from edgewise.study.results_file import conclude, keep_claim, read_recorded, recorded_file
from edgewise.study.store import Record, lines_of

from . import table

HERE = Path(__file__).parent


@dataclass
class Book:
    """The cases of one recipe, and the records that it has."""

    name: str
    work: Work
    path: Path
    records: dict[str, Record]

    @classmethod
    def of(cls, name: str) -> Book:
        work = Work.of(load_recipe(HERE / f"{name}.py"), "full")
        path = recorded_file(work.recipe.path)
        return cls(name, work, path, store.read([path]).done if path.is_file() else {})

    def wanted(self, again: set[str]) -> list[str]:
        """The cases without a record, and those that are named."""
        return [t for t in self.work.cases if t not in self.records or table.name_of(json.loads(t)) in again]

    def measure(self, text: str) -> None:
        """Measure one case; the file of records is whole afterwards."""
        record = measured(self.work.recipe, text)
        if record.value is None:
            raise RuntimeError(record.error)
        self.records[text] = record
        write(self.path, [self.records[other] for other in self.work.cases if other in self.records])
        print(self.name, table.name_of(record.case), record.value["outcome"], sep=" | ", flush=True)


def fill(names: list[str], again: set[str]) -> None:
    """Measure what the recipes lack, in turns: wherever it is stopped, each has the same share of its cases."""
    books = [Book.of(name) for name in names]
    for number, text in in_turns([book.wanted(again) for book in books]):
        books[number].measure(text)
    for book in books:
        if len(book.records) >= len(book.work.cases):
            judge(book.work)


def in_turns(lists: list[list[str]]) -> list[tuple[int, str]]:
    """(number of the list, entry) so that after any part of them every list has had the same part of its own."""
    places = [((k + 0.5) / len(own), i, text) for i, own in enumerate(lists) for k, text in enumerate(own)]
    return [(i, text) for _, i, text in sorted(places)]


def write(path: Path, records: list[Record]) -> None:
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as file:
        file.write(lines_of(records))


def judge(work: Work) -> None:
    """Write the claim and the figure beside complete records."""
    with tempfile.TemporaryDirectory() as folder:
        conclude(work, read_recorded(work), Path(folder))
        keep_claim(work, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cases of the census that have no record.")
    parser.add_argument(
        "recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(table.GROUPS)}; all if none"
    )
    parser.add_argument("--again", action="append", default=[], metavar="NAME", help="measure this one again")
    options = parser.parse_args()
    fill(options.recipes or list(table.GROUPS), set(options.again))
    table.main()


if __name__ == "__main__":
    main()
