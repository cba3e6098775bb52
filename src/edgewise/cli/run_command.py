"""`edgewise run`: measure what is missing of a recipe, judge its claim, draw it; `--list` shows the recipes.

`--list` shows the recipes instead, with how many of their cases are stored; it runs none of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli import exit_codes
from edgewise.cli.exit_codes import printing, prints_aside
from edgewise.cli.options import json_option
from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from edgewise.study.engine import Results, Work
    from edgewise.study.recipe import Claim

_SHOWN = 3  # failures that are printed; all of them are in the store and in --json
EPILOG = (
    "FILE is a recipe: a Python file with cases, measure, claim and draw (docs/run.md), or one that comes with "
    "edgewise, as --list shows them. Results are kept below "
    "DIR by the content of the case: running again measures only what is missing, also after Ctrl-C or a crash, and "
    "--fresh measures all of it again. Exit codes: 0 the claim held, 1 it did not, or is undecided (cases missing), "
    "2 cases failed, 64 bad input, 70 internal error, 130 interrupted."
)


@click.command(epilog=EPILOG)
@click.argument("recipe", metavar="[FILE]", required=False)
@click.option(
    "--list",
    "listing",
    is_flag=True,
    help="List the recipes of papers/ and experiments/ (or of the folder FILE).",
)
@click.option("--full", is_flag=True, help="The full scale instead of the small one.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes; 1 works in this one.  [default: one per core]",
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Send the cases to a Dask scheduler, such as tcp://host:8786."
)
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="Measure at most N of the missing cases."
)
@click.option(
    "--fresh", is_flag=True, help="Set earlier results of this folder aside and measure every case again."
)
@click.option("--into", default="runs", metavar="DIR", help="Folder of runs; may be shared.")
@click.option(
    "--recorded", is_flag=True, help="Judge and draw the results recorded beside FILE; measure nothing."
)
@click.option(
    "--keep",
    is_flag=True,
    help="Record results, figure and claim of --full (or figure and claim of --recorded) beside FILE.",
)
@json_option
def run(
    recipe: str | None,
    listing: bool,
    full: bool,
    workers: int | None,
    scheduler: str | None,
    limit: int | None,
    fresh: bool,
    into: str,
    recorded: bool,
    keep: bool,
    as_json: bool,
) -> int:
    """Measure what is missing of a recipe's cases, judge its claim and draw its figure."""
    os.environ.setdefault("MPLBACKEND", "Agg")  # figures are files here, with or without a screen
    _check(recipe, listing, full, recorded, keep, fresh)
    if scheduler is not None:  # one that cannot be is rejected before the recipe is loaded
        from edgewise.study.engine import check_address

        check_address(scheduler)
    if listing:
        return list_recipes([recipe] if recipe else None, into, as_json)
    assert recipe is not None
    with prints_aside(), ProgressBar("loading the recipe"):
        from edgewise.study.engine import Work
        from edgewise.study.recipe import load_recipe
        from edgewise.study.results_file import read_recorded

        plan = Work.of(load_recipe(recipe), "full" if full or recorded else "small", into)
    if fresh:
        plan.start_fresh()
    outcome = read_recorded(plan) if recorded else _measure(plan, workers, scheduler, limit)
    return _conclude(plan, outcome, plan.folder / ("recorded" if recorded else plan.scale), keep, as_json)


def _check(recipe: str | None, listing: bool, full: bool, recorded: bool, keep: bool, fresh: bool) -> None:
    if recipe is None and not listing:
        raise click.UsageError("Missing argument FILE: a recipe to run, or --list to see them.")
    if fresh and recorded:
        raise BadInput("--recorded measures nothing, so --fresh cannot go with it. Use one of them.")
    if keep and not (recorded or full):
        raise BadInput(
            "--keep records a run at full scale: use it with --full, or with --recorded for its claim."
        )
    if keep and recipe is not None and not Path(recipe).is_file():
        raise BadInput(
            f"--keep writes beside FILE, and {recipe} is not a file here. Copy it, and name the copy."
        )


def _measure(plan: Work, workers: int | None, scheduler: str | None, limit: int | None) -> Results:
    import joblib

    from edgewise.study.engine import run as run_plan

    try:
        with prints_aside(), ProgressBar("reading the store, starting workers") as bar:
            tell = partial(bar.count, plan.recipe.name)
            outcome = run_plan(plan, workers or joblib.cpu_count(), scheduler, limit, tell)
    except KeyboardInterrupt:
        stored = len(plan.contents().done)
        click.echo(
            f"\n{stored} of {len(plan.cases)} cases are stored; the same command continues from there.",
            err=True,
        )
        raise
    warn_earlier(plan, outcome)
    return outcome


def _conclude(plan: Work, outcome: Results, folder: Path, keep: bool, as_json: bool) -> int:
    from edgewise.study.results_file import conclude, withdraw

    warn(outcome)
    if outcome.missing:
        withdraw(folder)
    with prints_aside():
        claim = None if outcome.missing else conclude(plan, outcome, folder)
    with printing():
        (print_json if as_json else print_text)(plan, outcome, claim, folder)
    if keep and claim is not None:
        _keep(plan, folder)
    return exit_codes.of_claim(None if claim is None else claim.held, bool(outcome.failures or outcome.lost))


def _keep(plan: Work, folder: Path) -> None:
    from edgewise.study.results_file import LARGE, keep_claim
    from edgewise.study.results_file import keep as keep_results

    if folder.name == "recorded":
        keep_claim(plan, folder)
        return
    path = keep_results(plan, folder)
    size = path.stat().st_size
    click.echo(f"Recorded in {path} ({size:,} bytes)", err=True)
    if size > LARGE:
        click.echo(
            f"edgewise: that is above {LARGE:,} bytes: let measure return less, or use fewer cases.", err=True
        )


def print_json(plan: Work, outcome: Results, claim: Claim | None, folder: Path) -> None:
    """Print the recorded document, and how the run went, as JSON."""
    from edgewise.study.results_file import document

    extra = {
        **{n: getattr(outcome, n) for n in ("computed", "missing", "lost", "damaged", "differing")},
        "folder": str(folder),
        "failures": [{"case": json.loads(case), "error": error} for case, error in outcome.failures.items()],
    }
    click.echo(json.dumps({**document(plan, outcome, claim), **extra}, allow_nan=False))


def print_text(plan: Work, outcome: Results, claim: Claim | None, folder: Path) -> None:
    """Print the claim and the files."""
    from edgewise.study.store import span

    counts = f"{len(outcome.cases)} of {len(plan.cases)} cases, {outcome.computed} measured now"
    click.echo(f"{plan.recipe.title}\n{plan.recipe.name}, {plan.scale}: {counts}")
    if outcome.cases:
        click.echo(f"Measured by {span(outcome.stamps)}")
    if claim is None:
        click.echo(f"Claim undecided: {outcome.missing} cases are missing.")
    else:
        for line in (
            str(claim),
            *_readings(plan, claim),
            f"Wrote {shown(folder / 'figure.png')} and claim.json",
        ):
            click.echo(line)


def _readings(plan: Work, claim: Claim) -> Iterator[str]:
    """Yield how a source's statements that did not hold were read, and what that makes of them."""
    from edgewise.study.results_file import judgement, recipe_key

    for part in claim.parts or (claim,):
        judged = judgement(recipe_key(plan.recipe.path), part.to_dict())
        if part.held is not True and judged.reading and not judged.ours:
            yield f"  of the source: {judged.outcome}. It said: {judged.reading['spoken']}"
            names = {"reading": "Read as", "others": "Other readings", "settle": "What would settle it"}
            yield from (
                f"    {names[name]}: {judged.reading[name]}" for name in names if name in judged.reading
            )


def warn(outcome: Results) -> None:
    """Print what a reader of the result must know about how it came about."""
    if outcome.damaged:
        _tell(
            f"{outcome.damaged} damaged lines in the store were left out (half-written at a kill, or garbled)."
        )
    if outcome.differing:
        _tell(
            f"{outcome.differing} cases were measured twice with different values: measure is not deterministic."
        )
    if outcome.lost:
        _tell(f"{outcome.lost} cases lost their worker each time (out of memory?). Fewer --workers may help.")
    for case, error in list(outcome.failures.items())[:_SHOWN]:
        _tell(f"failed: {case}\n{error.rstrip()}")
    if outcome.failures:
        _tell(f"{len(outcome.failures)} cases failed; they are tried again at the next run.")


def warn_earlier(plan: Work, outcome: Results) -> None:
    """Say what measured the cases that were there before, if it may not be the code as it is now."""
    from edgewise.study.store import commit, files_of, span

    now, reused = commit(), len(outcome.cases) - outcome.computed
    changed = plan.recipe.path.stat().st_mtime
    newer = any(changed > file.stat().st_mtime for file in files_of(plan.records))
    other = now is None or now.endswith("+") or any(stamp.commit != now for stamp in outcome.earlier)
    if outcome.earlier and reused > 0 and (newer or other):
        _tell(f"{reused} cases were stored before by {span(outcome.earlier)}; --fresh measures them again.")


def shown(path: Path) -> str:
    """Return relative if that is shorter."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _tell(words: str) -> None:
    click.echo(f"edgewise: {words}", err=True)


def list_recipes(folders: Sequence[str] | None, into: str, as_json: bool) -> int:
    """Print one line per recipe; one that cannot be used is shown with its reason, and the exit code is 64."""
    with prints_aside(), ProgressBar() as bar:
        rows = []
        for path in _recipes(folders):
            bar.say(f"reading {path.name}")
            rows.append(_row(path, into))
    with printing():
        if as_json:
            click.echo(json.dumps(rows))
        elif not rows:
            click.echo("No recipes found.", err=True)
        for row in () if as_json else rows:
            click.echo(row["path"])
            if "problem" in row:
                click.echo(f"    cannot be used: {row['problem']}")
                continue
            stored = [f"{row['stored']} cases stored"] if row["stored"] or not row["recorded"] else []
            held = [f"statements that held: {row['outcome']} ({row['measured']})"] if row["recorded"] else []
            click.echo(f"    {row['title']}\n    {'; '.join(stored + held)}")
    return exit_codes.BAD_INPUT if any("problem" in row for row in rows) else exit_codes.FINE


def _recipes(folders: Sequence[str] | None) -> list[Path]:
    """Those of the named folders; by default of papers/ and experiments/ here, else those that come with edgewise."""
    from edgewise.study.recipe import FOLDERS, find_recipes, home

    present = [Path(folder) for folder in folders or FOLDERS if Path(folder).is_dir()]
    if not present and not folders and (shipped := home()) is not None:
        present = [shipped / folder for folder in FOLDERS]
    if not present:
        named = " or ".join(folders or FOLDERS)
        raise BadInput(f"No folder {named} of recipes was found here. Name one: edgewise run --list FOLDER.")
    return [path for folder in present for path in find_recipes(folder)]


def _row(path: Path, into: str) -> Document:
    """Read and not run: a folder of recipes may come from a stranger."""
    from edgewise.study.engine import records_of
    from edgewise.study.recipe import read_heading
    from edgewise.study.results_file import recorded_summary
    from edgewise.study.store import files_of, read

    try:
        recipe = read_heading(path)
        stored = len(read(files_of(records_of(recipe.name, into))).done)
        recorded = recorded_summary(recipe.path)
    except BadInput as mistake:
        return {"path": str(path), "problem": str(mistake)}
    outcome, measured = ("", "") if recorded is None else (recorded.outcome, recorded.measured)
    return {
        "path": name_of(path),
        "recipe": recipe.name,
        "title": recipe.title,
        "stored": stored,
        "recorded": recorded is not None,
        "outcome": outcome,
        "measured": measured,
    }


def name_of(path: Path) -> str:
    """Return how `edgewise run` is told about it from here: a recipe that comes with edgewise by its place below it."""
    from edgewise.study.recipe import home

    shipped = home()
    inside = shipped is not None and path.is_absolute() and path.is_relative_to(shipped)
    return str(path.relative_to(shipped)) if inside and shipped is not None else str(path)
