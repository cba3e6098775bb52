"""`edgewise run`: a recipe at any scale; what is missing is measured, then judged and drawn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli import exit_codes
from edgewise.cli.patience import Patience
from edgewise.cli.run_progress import RunProgress
from edgewise.errors import BadInput

if TYPE_CHECKING:
    from edgewise.study.plan import Outcome, Plan

EPILOG = (
    "FILE is a recipe: a Python file with cases, measure, claim and draw (docs/run.md). Results are kept below "
    "DIR by the content of the case and the code that measures it: running again measures only what is missing, "
    "also after Ctrl-C or a crash. Exit codes: 0 the claim held, 1 it did not, or is undecided (cases missing), "
    "2 cases failed, 64 bad input, 70 internal error, 130 interrupted."
)


@click.command(epilog=EPILOG)
@click.argument("recipe", metavar="[FILE]", required=False)
@click.option("--list", "listing", is_flag=True, help="List the recipes in papers/ (or the folder FILE).")
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

        return list_recipes(recipe or "papers", into, as_json)
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
    with Patience() as patience:
        patience.say("loading the recipe")
        from edgewise.study.plan import Plan
        from edgewise.study.recipe import load_recipe

        return Plan.of(load_recipe(recipe), "full" if full else "small", into)


def _measure(plan: Plan, workers: int | None, scheduler: str | None, limit: int | None) -> Outcome:
    import joblib

    from edgewise.study.engine import run as run_plan

    try:
        with RunProgress(plan.recipe.name) as progress:
            return run_plan(plan, workers or joblib.cpu_count(), scheduler, limit, progress.tell)
    except KeyboardInterrupt:
        stored = len(plan.contents().done)
        click.echo(f"\n{stored} of {len(plan.cases)} cases are stored; the same command goes on from there.", err=True)
        raise


def _recorded(plan: Plan) -> Outcome:
    from edgewise.cli.run_report import warn_changed
    from edgewise.study.recorded import read_recorded

    found = read_recorded(plan)
    warn_changed(plan, found)
    return found.outcome


def _conclude(plan: Plan, outcome: Outcome, folder: Path, keep: bool, as_json: bool) -> int:
    from edgewise.cli.run_report import print_json, print_text, warn
    from edgewise.study.conclusion import conclude, withdraw

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
