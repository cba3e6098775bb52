"""`edgewise run --list`: the recipes that are there, how many cases they have and how many are stored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from edgewise.cli import exit_codes
from edgewise.errors import BadInput
from edgewise.progress import ProgressBar
from edgewise.study.engine import Plan
from edgewise.study.recipe import FOLDERS, SCALES, find_recipes, load_recipe
from edgewise.study.recorded import recorded_file


def list_recipes(folders: Sequence[str] | None, into: str, as_json: bool) -> int:
    """Print one line per recipe; one that cannot be used is shown with its reason, and the exit code is 64."""
    with ProgressBar() as bar:
        rows = []
        for path in _recipes(folders):
            bar.say(f"loading {path.name}")
            rows.append(_row(path, into))
    click.echo(json.dumps(rows)) if as_json else _print(rows)
    return exit_codes.BAD_INPUT if any("problem" in row for row in rows) else exit_codes.FINE


def _recipes(folders: Sequence[str] | None) -> list[Path]:
    """Those of the named folders, by default of the ones that a checkout of edgewise has."""
    present = [folder for folder in folders or FOLDERS if Path(folder).is_dir()]
    if not present:
        named = " or ".join(folders or FOLDERS)
        raise BadInput(f"There is no folder {named} of recipes here. Name one: edgewise run --list FOLDER.")
    return [path for folder in present for path in find_recipes(folder)]


def _row(path: Path, into: str) -> dict[str, Any]:
    try:
        recipe = load_recipe(path)
        plans = {scale: Plan.of(recipe, scale, into) for scale in SCALES}
    except BadInput as mistake:
        return {"path": str(path), "problem": str(mistake)}
    counts = {scale: {"cases": len(plan.cases), "stored": len(plan.contents().done)} for scale, plan in plans.items()}
    recorded = recorded_file(recipe).is_file()
    return {"path": str(path), "recipe": recipe.name, "title": recipe.title, **counts, "recorded": recorded}


def _print(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        click.echo(row["path"])
        if "problem" in row:
            click.echo(f"    cannot be used: {row['problem']}")
            continue
        counts = ", ".join(f"{scale} {row[scale]['stored']}/{row[scale]['cases']} stored" for scale in SCALES)
        click.echo(f"    {row['title']}\n    {counts}{', recorded' if row['recorded'] else ''}")
    if not rows:
        click.echo("No recipes found.", err=True)
