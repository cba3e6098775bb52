"""`edgewise measure`: the numbers of a real model beside the predicted ones."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.patience import Patience

if TYPE_CHECKING:
    from edgewise.trace import Trace

EPILOG = (
    "SOURCE is a preset name (gpt2, bert-base, ...), a config.json, a folder with a checkpoint (safetensors only; "
    "no pickle is ever loaded), or file.py:function, a function that makes a model. Configs and functions are "
    "initialised anew for every seed. Exit codes: 0 fine, 1 risky or undecided, 2 will not train, 64 bad input, "
    "70 internal error."
)


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SOURCE")
@click.option("--text", metavar="F", help="Measure on the beginning of this text instead of random tokens.")
@click.option("--seeds", type=int, default=2, show_default=True, metavar="K", help="Networks or directions to average.")
@click.option("--tokens", type=int, metavar="N", help="Length of the input; 64 unless given.")
@click.option("--stream", is_flag=True, help="Hold one block in memory at a time (configs only).")
@click.option("--figure", metavar="F", help="Draw theory as lines, measurement as points (.png, .svg, .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--fail-on", type=click.Choice(["risky", "fails"]), default="risky", show_default=True,
              help="From which verdict on the exit code is not 0.")  # fmt: skip
def measure(
    source: str, text: str | None, seeds: int, tokens: int | None, stream: bool, figure: str | None,
    as_json: bool, fail_on: str,
) -> int:  # fmt: skip
    """Read the same numbers from a real model, beside the predicted ones."""
    path = _checked(figure)
    began = time.perf_counter()
    with Patience() as patience:
        patience.say("importing torch")
        from edgewise.cli.measured_answer import compared, draw, print_json, print_text

        patience.say(f"measuring {source}")
        subject, trace = _measured(source, text, seeds, tokens, stream)
        patience.say("predicting")
        found = compared(subject, trace)
        if path is not None:
            draw(found, path)
    print_json(found) if as_json else print_text(found, time.perf_counter() - began)
    if path is not None:
        click.echo(f"Wrote {path}", err=True)
    return exit_codes.of_outcomes([found.verdict.outcome], fail_on)


def _measured(source: str, text: str | None, seeds: int, tokens: int | None, stream: bool) -> tuple[Any, Trace]:
    from edgewise.cli.measured_sources import found, text_batch
    from edgewise.probe.batches import TOKENS
    from edgewise.probe.measure import measure as _measure

    subject = found(source)
    batch = None if text is None else text_batch(Path(text), source, subject, tokens or TOKENS)
    length = tokens if text is None else None
    readouts = ("token", "own", "pooled")  # the verdict reads the first, which is the one that theory predicts
    return subject, _measure(subject, batch, seeds=seeds, readouts=readouts, stream=stream, tokens=length)


def _checked(figure: str | None) -> Path | None:
    """A figure that cannot be written is refused before anything is computed."""
    if figure is None:
        return None
    from edgewise.view.files import check_path

    return check_path(figure)


