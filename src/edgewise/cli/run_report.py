"""What `edgewise run` says: the claim and the files on standard output, what went wrong on the error stream."""

from __future__ import annotations

import json
from pathlib import Path

import click

from edgewise.study.claim import Claim
from edgewise.study.conclusion import document
from edgewise.study.plan import Outcome, Plan
from edgewise.study.recorded import Recorded

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
