"""`edgewise presets`: the networks that are known by name."""

from __future__ import annotations

import json
from typing import Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.output import printing

COLUMNS = ("name", "depth", "width", "heads", "norm", "activation", "tokens")


@click.command(epilog="Any of them is a SOURCE, as in `edgewise predict gpt2`. Exit code 0.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def presets(as_json: bool) -> int:
    """List the networks that are known by name, with their sizes."""
    rows = preset_rows()
    with printing():
        click.echo(json.dumps(rows, allow_nan=False) if as_json else "\n".join(_lines(rows)))
    return exit_codes.FINE


def preset_rows() -> list[dict[str, Any]]:
    """What each preset is described as; tokens are what is predicted unless --tokens says otherwise."""
    from edgewise.models.describe import describe
    from edgewise.models.source import preset_names

    described = {name: describe(name).to_dict() for name in preset_names()}
    return [{"name": name} | {key: knobs[key] for key in COLUMNS[1:]} for name, knobs in described.items()]


def _lines(rows: list[dict[str, Any]]) -> list[str]:
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
