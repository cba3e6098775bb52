"""`edgewise run`: a recipe at any scale; what is missing is measured, then judged and drawn.

What `edgewise run` says: the claim and the files on standard output, what went wrong on the error stream.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli import exit_codes
from edgewise.errors import BadInput
from edgewise.progress import ProgressBar
from edgewise.study.engine import Outcome, Plan
from edgewise.study.recipe import Claim
from edgewise.study.recorded import Recorded, document

if TYPE_CHECKING:
    from edgewise.study.engine import Outcome, Plan

_SHOWN = 3  # failures told in words; all of them are in the store and in --json


def print_json(plan: Plan, outcome: Outcome, claim: Claim | None, folder: Path) -> None:
    extra = {
        "computed": outcome.computed, "missing": outcome.missing, "lost": outcome.lost, "damaged": outcome.damaged,
        "differing": outcome.differing, "folder": str(folder),
        "failures": [{"case": json.loads(case), "error": error} for case, error in outcome.failures.items()],
    }  # fmt: skip
    click.echo(json.dumps({**document(plan, outcome, claim), **extra}, allow_nan=False))


def print_text(plan: Plan, outcome: Outcome, claim: Claim | None, folder: Path) -> None:
    counts = f"{len(outcome.results)} of {len(plan.cases)} cases, {outcome.computed} measured now"
    click.echo(f"{plan.recipe.title}\n{plan.recipe.name}, {plan.scale}: {counts}")
    if claim is None:
        click.echo(f"Claim undecided: {outcome.missing} cases are missing.")
    else:
        click.echo(f"{claim}\nWrote {shown(folder / 'figure.png')} and claim.json")


def warn(outcome: Outcome) -> None:
    """Everything that a reader of the result must know about how it came about."""
    if outcome.damaged:
        _tell(f"{outcome.damaged} damaged lines in the store were left out (half-written at a kill, or garbled).")
    if outcome.differing:
        _tell(f"{outcome.differing} cases were measured twice with different values: measure is not deterministic.")
    if outcome.lost:
        _tell(f"{outcome.lost} cases lost their worker each time (out of memory?). Fewer --workers may help.")
    for case, error in list(outcome.failures.items())[:_SHOWN]:
        _tell(f"failed: {case}\n{error.rstrip()}")
    if outcome.failures:
        _tell(f"{len(outcome.failures)} cases failed; they are tried again at the next run.")


def warn_changed(plan: Plan, found: Recorded) -> None:
    if found.changed:
        then, now = ", ".join(found.codes), plan.code
        _tell(f"the code behind measure has changed since {found.changed} cases were recorded ({then}, now {now}).")


def shown(path: Path) -> str:
    """Relative where that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _tell(words: str) -> None:
    click.echo(f"edgewise: {words}", err=True)


EPILOG = (
    "FILE is a recipe: a Python file with cases, measure, claim and draw (docs/run.md). Results are kept below "
    "DIR by the content of the case and the code that measures it: running again measures only what is missing, "
    "also after Ctrl-C or a crash. Exit codes: 0 the claim held, 1 it did not, or is undecided (cases missing), "
    "2 cases failed, 64 bad input, 70 internal error, 130 interrupted."
)


@click.command(epilog=EPILOG)
@click.argument("recipe", metavar="[FILE]", required=False)
@click.option("--list", "listing", is_flag=True,
              help="List the recipes of papers/ and experiments/ (or of the folder FILE).")
@click.option("--full", is_flag=True, help="The full scale instead of the small one.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N",
              help="Processes; 1 works in this one.  [default: one per core]")
@click.option("--scheduler", metavar="ADDRESS", help="Send the cases to a Dask scheduler, such as tcp://host:8786.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Measure at most N of the missing cases.")
@click.option("--into", default="runs", show_default=True, metavar="DIR", help="Folder of runs; may be shared.")
@click.option("--recorded", is_flag=True, help="Judge and draw the results recorded beside FILE; measure nothing.")
@click.option("--keep", is_flag=True, help="With --full: record results, figure and claim beside FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")  # fmt: skip
def run(
    recipe: str | None, listing: bool, full: bool, workers: int | None, scheduler: str | None, limit: int | None,
    into: str, recorded: bool, keep: bool, as_json: bool,
) -> int:  # fmt: skip
    """Measure what is missing of a recipe's cases, judge its claim and draw its figure."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures are files here, with or without a screen
    _check(recipe, listing, full, recorded, keep)
    if listing:
        from edgewise.cli.run_list import list_recipes

        return list_recipes([recipe] if recipe else None, into, as_json)
    assert recipe is not None
    plan = _plan(recipe, full or recorded, into)
    outcome = _recorded(plan) if recorded else _measure(plan, workers, scheduler, limit)
    return _conclude(plan, outcome, plan.folder / ("recorded" if recorded else plan.scale), keep, as_json)


def _check(recipe: str | None, listing: bool, full: bool, recorded: bool, keep: bool) -> None:
    if recipe is None and not listing:
        raise click.UsageError("Missing argument FILE: a recipe to run, or --list to see them.")
    if keep and (recorded or not full):
        raise BadInput("--keep records a run at full scale: use it with --full and without --recorded.")


def _plan(recipe: str, full: bool, into: str) -> Plan:
    with ProgressBar() as bar:
        bar.say("loading the recipe")
        from edgewise.study.engine import Plan
        from edgewise.study.recipe import load_recipe

        return Plan.of(load_recipe(recipe), "full" if full else "small", into)


def _measure(plan: Plan, workers: int | None, scheduler: str | None, limit: int | None) -> Outcome:
    import joblib

    from edgewise.study.engine import run as run_plan

    try:
        with ProgressBar("reading the store, starting workers") as bar:
            tell = partial(bar.count, plan.recipe.name)
            return run_plan(plan, workers or joblib.cpu_count(), scheduler, limit, tell)
    except KeyboardInterrupt:
        stored = len(plan.contents().done)
        click.echo(f"\n{stored} of {len(plan.cases)} cases are stored; the same command goes on from there.", err=True)
        raise


def _recorded(plan: Plan) -> Outcome:
    from edgewise.study.recorded import read_recorded

    found = read_recorded(plan)
    warn_changed(plan, found)
    return found.outcome


def _conclude(plan: Plan, outcome: Outcome, folder: Path, keep: bool, as_json: bool) -> int:
    from edgewise.study.recorded import conclude, withdraw

    warn(outcome)
    if outcome.missing:
        withdraw(folder)
    claim = None if outcome.missing else conclude(plan, outcome, folder)
    (print_json if as_json else print_text)(plan, outcome, claim, folder)
    if keep and claim is not None:
        _keep(plan, folder)
    return exit_codes.of_claim(None if claim is None else claim.held, bool(outcome.failures or outcome.lost))


def _keep(plan: Plan, folder: Path) -> None:
    from edgewise.study.recorded import LARGE
    from edgewise.study.recorded import keep as keep_results

    path = keep_results(plan, folder)
    size = path.stat().st_size
    click.echo(f"Recorded in {path} ({size:,} bytes)", err=True)
    if size > LARGE:
        click.echo(f"edgewise: that is above {LARGE:,} bytes: let measure return less, or use fewer cases.", err=True)
