"""`edgewise export RUN --to FILE`: the rows of a watched run as CSV or Parquet."""

from __future__ import annotations

import json

import click

from edgewise.cli import exit_codes
from edgewise.cli.output import printing, visible


@click.command()
@click.argument("run", type=click.Path())
@click.option("--to", "path", required=True, type=click.Path(), help="A name that ends in .csv or .parquet.")
@click.option("--heads", is_flag=True, help="The numbers per head, which are stored on a slower clock.")
@click.option(
    "--rank", type=click.IntRange(0), default=None, help="Of one process only; of all unless given."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def export(run: str, path: str, heads: bool, rank: int | None, as_json: bool) -> int:
    """Write the rows of a watched run to one file."""
    from edgewise.monitor.read_run import export as export_rows

    count = export_rows(run, path, heads=heads, rank=rank)
    with printing():
        if as_json:
            click.echo(json.dumps({"path": path, "rows": count}))
        else:
            click.echo(f"Wrote {count} row{'' if count == 1 else 's'} to {visible(path)}", err=True)
    return exit_codes.FINE
