"""`edgewise replay DOSSIER file.py:model`: the step of an alarm once more, in other ways."""

from __future__ import annotations

import click

from edgewise.cli import exit_codes
from edgewise.cli.output import printing, prints_aside, visible


@click.command()
@click.argument("dossier", type=click.Path())
@click.argument("source", metavar="FILE.PY:FUNCTION")
def replay(dossier: str, source: str) -> int:
    """Repeat the step of an alarm as run, in float32, with another attention, and on the batch before.

    The function returns the model, or (model, criterion) where the model does not return its loss.
    """
    from edgewise.adapters.source import read_source
    from edgewise.errors import BadInput
    from edgewise.monitor.replay import replay as replay_step

    with prints_aside():
        factory = read_source(source).factory
        if factory is None:
            raise BadInput(f"{source!r} is not file.py:function. Write a function that returns the model of the run.")
        made = factory()
        model, criterion = made if isinstance(made, tuple) else (made, None)
        outcome = replay_step(dossier, model, criterion)
    with printing():
        click.echo(visible(str(outcome), lines=True))
    return exit_codes.FINE
