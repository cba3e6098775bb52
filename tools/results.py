"""Measure committed results again, cheapest first, and keep them; cut off, it goes on where it stopped.

    python tools/results.py                  all of them; says what remains in core-hours
    python tools/results.py --under 10       recipes that cost under ten minutes
    python tools/results.py --small RECIPE   commit a case of the small scale, for the canary
    python tools/results.py RECIPE ...       these, regardless of what they cost
    python tools/results.py --page           write research/measured.md: when each committed result was measured

Run folders are below build/results, with a note of what was kept; `--fresh` begins again. The census has packages of
its own: `make census`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from edgewise.progress import ProgressBar
from edgewise.study import find_recipes, load_recipe, store
from edgewise.study.engine import Work, run
from edgewise.study.recipe import FOLDERS
from edgewise.study.results_file import conclude, keep, recorded_file, recorded_summary

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "results"
APART = ROOT / "experiments" / "census"


@dataclass(frozen=True)
class Todo:
    """A recipe with what its committed results cost, in seconds of one core."""

    path: Path
    seconds: float

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def note(self) -> Path:
        """Exists once the results were kept."""
        return FOLDER / self.path.parent.name / self.path.stem / "kept"


def todo(paths: list[Path], under: float | None) -> list[Todo]:
    """The recipes, cheapest first."""
    rows = [Todo(path, cost(path)) for path in paths]
    return sorted(
        (row for row in rows if under is None or row.seconds < 60 * under), key=lambda row: row.seconds
    )


def cost(path: Path) -> float:
    file = recorded_file(path)
    return sum(record.seconds for record in store.read([file]).done.values()) if file.is_file() else 0.0


def stamps() -> dict[str, tuple[str, str, str, float]]:
    """Of every committed result: date, commit, torch and core-minutes."""
    rows = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).glob("*/recorded/*.jsonl")):
            if ".small" not in file.name:
                first, *cases = map(json.loads, file.read_text().splitlines())
                stamp, seconds = first["stamp"], sum(case.get("seconds") or 0.0 for case in cases)
                name = str(file.relative_to(ROOT)).replace("recorded/", "").removesuffix(".jsonl") + ".py"
                rows[name] = (stamp["date"], stamp["commit"], stamp["torch"], seconds / 60)
    return rows


def page() -> str:
    """The table of `research/measured.md`, oldest first."""
    rows = sorted(stamps().items(), key=lambda row: (row[1][0], row[0]))
    return "\n".join(
        [
            "# When each result was measured",
            "",
            f"As of {datetime.date.today()}, by `python tools/results.py --page`. A row is a recipe: `edgewise run "
            "NAME.py --recorded` judges what is committed, `--full` measures it again. All are of edgewise 0.1.0 "
            "before its release; the commit says which state. `make canary` compares the cheapest case of every recipe "
            "with the code as it is now, so an old date is not a number that nothing checks. The lists of mistakes "
            "of the preflight and the monitor have their commits on [Check](../docs/check.md#how-it-was-tried) and "
            "[Watch](../docs/watch.md#how-many-mistakes-are-named).",
            "",
            "| measured | at | recipe | core-minutes | torch |",
            "|---|---|---|---|---|",
            *(
                f"| {date} | `{commit}` | `{name}` | {minutes:.1f} | {torch} |"
                for name, (date, commit, torch, minutes) in rows
            ),
            "",
        ]
    )


def measure(row: Todo, workers: int) -> str:
    """Measure what its run folder lacks, judge and draw it, and commit it; the outcome before and after."""
    before = recorded_summary(row.path)
    work = Work.of(load_recipe(row.path), "full", FOLDER)
    with ProgressBar() as bar:
        results = run(work, workers, tell=lambda done, total: bar.count(row.path.stem, done, total))
    if results.failures or results.missing:
        return f"{len(results.failures)} cases failed, {results.missing} are missing: not kept"
    claim = conclude(work, results, work.folder / "full")
    keep(work, work.folder / "full")
    row.note.touch()
    seconds = sum(result.seconds for result in results.cases)
    return f"{claim.outcome} (before: {before.outcome if before else 'nothing'}), {seconds:.0f} s"


def measure_small(path: Path) -> str:
    """Commit the cases of the small scale."""
    work = Work.of(load_recipe(path), "small", FOLDER)
    work.start_fresh()
    results = run(work)
    if results.failures or results.missing:
        return f"failed: {next(iter(results.failures.values()), 'cases are missing')}"
    return f"{keep(work).name}, {sum(result.seconds for result in results.cases):.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", type=Path)
    parser.add_argument("--under", type=float, metavar="MINUTES", help="only recipes that cost less")
    parser.add_argument("--small", action="store_true", help="the small scale, for the canary")
    parser.add_argument("--fresh", action="store_true", help="measure what was kept before, too")
    parser.add_argument("--page", action="store_true", help="write research/measured.md")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.page:
        (ROOT / "research" / "measured.md").write_text(page())
        return 0
    paths = [path.resolve() for path in arguments.recipes] or [
        path for folder in FOLDERS for path in find_recipes(ROOT / folder) if APART not in path.parents
    ]
    if arguments.small:
        for path in paths:
            print(f"{path.relative_to(ROOT)}: {measure_small(path)}", flush=True)
        return 0
    if arguments.fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    rows = [row for row in todo(paths, arguments.under) if not row.note.is_file()]
    for number, row in enumerate(rows):
        remaining = sum(each.seconds for each in rows[number:]) / 3600
        print(
            f"{len(rows) - number} recipes remain, {remaining:.2f} core-hours. {row.name}: ",
            end="",
            flush=True,
        )
        print(measure(row, arguments.workers), flush=True)
    print("Nothing remains." if rows else "Everything was kept before; --fresh measures it again.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
