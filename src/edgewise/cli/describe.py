"""`edgewise describe`: what a model is, block by block; of what has no modules, its description."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.completion import complete_source
from edgewise.cli.output import printing, prints_aside
from edgewise.models.source import ACCEPTED
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from edgewise.models.behavior.structure import Structure
    from edgewise.models.describe import Description

EPILOG = (
    f"SOURCE is {ACCEPTED}. A model is run on a small input and read by what it does; of a config or knobs, the "
    "description that theory takes is printed. Exit codes: 0 also where theory does not cover the model, 64 bad input, "
    "70 internal error."
)
COVERED = "Theory covers it: edgewise predict says whether it will train."
OUTSIDE = "Theory does not cover it: edgewise measure reads the same numbers from the model itself."


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SOURCE", shell_complete=complete_source)
@click.option(
    "--stack", metavar="NAME", help="Which stack of a model with several.  [default: the language stack]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def describe(source: str, stack: str | None, as_json: bool) -> int:
    """Say what a model is, block by block, and whether theory covers it."""
    with prints_aside(), ProgressBar(f"reading {source}"):
        answer = _answer(source, stack)
    with printing():
        click.echo(json.dumps(_document(answer), allow_nan=False) if as_json else "\n".join(_lines(answer)))
    return exit_codes.FINE


def _answer(source: str, stack: str | None) -> Structure | Description:
    from edgewise.models.describe import describe as describe_source
    from edgewise.models.describe import first_model
    from edgewise.models.source import read_source

    content = read_source(source)
    if content.factory is None:
        return describe_source(content, stack=stack)
    from edgewise.models.structure import structure

    return structure(first_model(content.factory), stack=stack)


def _document(answer: Structure | Description) -> dict[str, Any]:
    """Either of the two; the other is null."""
    kind = "structure" if hasattr(answer, "blocks") and hasattr(answer, "outside") else "description"
    return {"structure": None, "description": None, kind: answer.to_dict()}


def _lines(answer: Structure | Description) -> list[str]:
    document = _document(answer)
    if document["structure"] is not None:
        return [str(answer), COVERED if answer.covered else OUTSIDE]  # type: ignore[union-attr]
    knobs: dict[str, Any] = document["description"]
    notes = {"assumed": "Assumed", "unmodelled": "The theory leaves out"}
    lines = [f"{knobs.get('name') or 'network'}:"]
    lines += [f"  {name} = {_value(value)}" for name, value in knobs.items() if name not in ("name", *notes)]
    lines += [f"  {word}: {line}" for name, word in notes.items() for line in knobs.get(name, ())]
    return [*lines, COVERED]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
