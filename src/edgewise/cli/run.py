"""`edgewise run`: a recipe at any scale; what is missing is measured, then judged and drawn."""

from __future__ import annotations

import json

import click

from edgewise.cli import exit_codes


@click.command()
@click.argument("recipe", metavar="FILE")
@click.option("--full", is_flag=True, help="The recorded scale instead of the small one.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes; 1 runs in this one.")
@click.option("--scheduler", metavar="ADDRESS", help="Send the cases to this Dask scheduler.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Measure at most N of the missing cases.")
@click.option("--into", default="runs", show_default=True, metavar="DIR", help="Folder of runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def run(
    recipe: str, full: bool, workers: int | None, scheduler: str | None, limit: int | None, into: str, as_json: bool
) -> int:
    """Measure what is missing of a recipe's cases, judge its claim and draw its figure."""
    from edgewise.study.conclusion import conclude
    from edgewise.study.engine import run as run_plan
    from edgewise.study.plan import Plan
    from edgewise.study.recipe import load_recipe

    plan = Plan.of(load_recipe(recipe), "full" if full else "small", into)
    outcome = run_plan(plan, workers or 2, scheduler, limit)
    if outcome.missing:
        click.echo(f"{outcome.missing} of {len(plan.cases)} cases missing, {len(outcome.failures)} failed", err=True)
        for case, error in outcome.failures.items():
            click.echo(f"{case}\n{error}", err=True)
        return exit_codes.RISKY
    claim, document = conclude(plan, outcome)
    click.echo(json.dumps(document) if as_json else f"{plan.recipe.title}\n{claim}\n{plan.folder / plan.scale}")
    return exit_codes.FINE if claim.held else exit_codes.RISKY
