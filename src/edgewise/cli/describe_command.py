"""`edgewise describe` and `edgewise presets`: what a model is, block by block, and the networks known by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.options import Batches, batch_option, complete_source, load_batches
from edgewise.cli.output import Document, printing, prints_aside
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
COLUMNS = ("name", "depth", "width", "heads", "norm", "activation", "tokens")


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SOURCE", shell_complete=complete_source)
@batch_option("made from the model's own signature")
@click.option(
    "--stack", metavar="NAME", help="Which stack of a model with several.  [default: the language stack]"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def describe(source: str, batch: str | None, stack: str | None, as_json: bool) -> int:
    """Say what a model is, block by block, and whether theory covers it."""
    with prints_aside(), ProgressBar(f"reading {source}"):
        answer = _answer(source, load_batches(batch), stack)
    with printing():
        click.echo(json.dumps(_document(answer), allow_nan=False) if as_json else "\n".join(_lines(answer)))
    return exit_codes.FINE


def _answer(source: str, batches: Batches | None, stack: str | None) -> Structure | Description:
    from edgewise.models.describe import describe as describe_source
    from edgewise.models.describe import first_model
    from edgewise.models.source import read_source

    content = read_source(source)
    batch = None if batches is None else batches.first()
    if content.factory is None:
        return describe_source(content, batch, stack=stack)
    from edgewise.models.structure import structure

    return structure(first_model(content.factory), batch, stack=stack)


def _document(answer: Structure | Description) -> Document:
    """Either of the two; the other is null."""
    kind = "structure" if hasattr(answer, "blocks") and hasattr(answer, "outside") else "description"
    return {"structure": None, "description": None, kind: answer.to_dict()}


def _lines(answer: Structure | Description) -> list[str]:
    document = _document(answer)
    if document["structure"] is not None:
        return [str(answer), COVERED if answer.covered else OUTSIDE]  # type: ignore[union-attr]
    knobs: Document = document["description"]
    notes = {"assumed": "Assumed", "unmodelled": "The theory leaves out"}
    lines = [f"{knobs.get('name') or 'network'}:"]
    lines += [f"  {name} = {_value(value)}" for name, value in knobs.items() if name not in ("name", *notes)]
    lines += [f"  {word}: {line}" for name, word in notes.items() for line in knobs.get(name, ())]
    return [*lines, COVERED]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@click.command(epilog="Any of them is a SOURCE, as in `edgewise predict gpt2`. Exit code 0.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def presets(as_json: bool) -> int:
    """List the networks that are known by name, with their sizes."""
    rows = preset_rows()
    with printing():
        click.echo(json.dumps(rows, allow_nan=False) if as_json else "\n".join(_preset_lines(rows)))
    return exit_codes.FINE


def preset_rows() -> list[Document]:
    """Return what each preset is described as; tokens are what is predicted unless --tokens says otherwise."""
    from edgewise.models.describe import describe
    from edgewise.models.source import preset_names

    described = {name: describe(name).to_dict() for name in preset_names()}
    return [{"name": name} | {key: knobs[key] for key in COLUMNS[1:]} for name, knobs in described.items()]


def _preset_lines(rows: list[Document]) -> list[str]:
    cells = [COLUMNS, *(tuple(str(row[column]) for column in COLUMNS) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(COLUMNS))]
    aligned = (
        [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        for row in cells
    )
    return ["  ".join(row) for row in aligned]
