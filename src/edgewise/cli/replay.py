"""`edgewise replay DOSSIER file.py:model`: the step of an alarm once more, in other ways."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.output import plain, printing, prints_aside, visible

if TYPE_CHECKING:
    from edgewise.monitor.replay import Replay


@click.command()
@click.argument("dossier", type=click.Path())
@click.argument("source", metavar="FILE.PY:FUNCTION")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def replay(dossier: str, source: str, as_json: bool) -> int:
    """Repeat the step of an alarm as run, in float32, with another attention, and on the batch before.

    The function returns the model, or (model, criterion) where the model does not return its loss.
    """
    from edgewise.errors import BadInput
    from edgewise.models.source import read_source
    from edgewise.monitor.replay import replay as replay_step
    from edgewise.monitor.storage import about_alarm

    about_alarm(Path(dossier))  # what is no dossier is said before anybody's code is run
    with prints_aside():
        factory = read_source(source).factory
        if factory is None:
            raise BadInput(
                f"{source!r} is not file.py:function. Write a function that returns the model of the run."
            )
        made = factory()
        model, criterion = made if isinstance(made, tuple) else (made, None)
        outcome = replay_step(dossier, model, criterion)
    with printing():
        click.echo(json.dumps(_document(outcome)) if as_json else visible(str(outcome), lines=True))
    return exit_codes.FINE


def _document(outcome: Replay) -> Any:
    statements = [
        {"explanation": name, "survives": held, "why": why} for name, held, why in outcome.statements
    ]
    return plain(asdict(outcome) | {"statements": statements})
