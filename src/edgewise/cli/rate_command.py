"""`edgewise rate`: the learning rate by short trainings on copies of a model."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.exit_codes import printing, prints_aside
from edgewise.cli.options import (
    Batch,
    Command,
    batch_option,
    figure_option,
    json_option,
    load_batches,
    load_function,
)
from edgewise.errors import BadInput
from edgewise.files import Document, json_values
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from torch import nn

    from edgewise.rehearsal import Outlook, Rate

NAMED = ("adamw", "sgd", "muon")
EPILOG = (
    "SOURCE is file.py:function, a function that returns a model, or any other source of `edgewise measure` that has a "
    "loss of its own. --batch names a list, a loader, or a function of nothing or of a seed; --loss a function of "
    "(model, batch); --optimizer may name a function of the model. Exit codes: 0 a rate was found, 1 these steps do "
    "not decide (no rate is named if none leaves the loss of guessing), 2 no rate learns, 64 bad input, 130 "
    "interrupted."
)


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SOURCE")
@batch_option("synthetic ones")
@click.option(
    "--loss", metavar="FILE:FN", help="A function of (model, batch).  [default: the model's own loss]"
)
@click.option(
    "--optimizer",
    metavar="NAME",
    default="adamw",
    help="adamw, sgd (momentum 0.9), muon (AdamW for the rest), or FILE:FN, a function of the model.",
)
@click.option("--warmup", default=0, metavar="K", help="Steps of linear warm-up.")
@click.option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine"]),
    help="What the rate does after the warm-up.  [default: not decided]",
)
@click.option("--clip", type=float, metavar="NORM", help="The largest norm of a gradient, as in training.")
@click.option("--accumulate", default=1, metavar="K", help="Batches that make one step.")
@click.option("--own", type=float, metavar="RATE", help="Your own rate: it is rehearsed first.")
@click.option("--steps", default=10, metavar="N", help="Steps of one rehearsal.")
@click.option("--rates", default=6, metavar="N", help="Rehearsals at most.")
@click.option("--resume", metavar="FILE", help="Keep finished rehearsals in FILE and use those in it.")
@click.option("--seed", default=0, metavar="K", help="Of weights and dropout.")
@figure_option("Draw loss, stream and tokens against the rate")
@json_option
def rate(
    source: str,
    batch: str | None,
    loss: str | None,
    optimizer: str,
    figure: Path | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Rehearse learning rates on copies of a model and name one to train with."""
    with prints_aside():
        with ProgressBar("importing torch") as bar:
            bar.say(f"building {source}")
            model = _model(source, options["seed"])
            batches, notes = _batches(model, batch, options)
            choice = _optimizer(optimizer)
            function = None if loss is None else load_function("loss", loss, "a function of (model, batch)")
        answer, prospect = _rehearse(model, batches, function, choice, notes, options)
        if figure is not None:
            from edgewise import present as view

            view.learning_rates(answer).save(figure)
    with printing():
        if as_json:
            click.echo(_document(answer, prospect))
        else:
            from edgewise.present.rate_card import rate_card
            from edgewise.present.terminal import console, show
            from edgewise.present.text import lines

            out = console()
            show(out, lines(rate_card(answer, prospect), out.width))
    if figure is not None:
        click.echo(f"Wrote {figure}", err=True)
    return exit_codes.INTERRUPTED if answer.interrupted else _code(prospect)


def _rehearse(
    model: nn.Module,
    batches: Batch,
    loss: Command | None,
    optimizer: Command | None,
    notes: tuple[str, ...],
    options: Document,
) -> tuple[Rate, Outlook]:
    from edgewise.cli.measure_command import verdict_of
    from edgewise.models.model_map import ModelMap
    from edgewise.rehearsal import learning_rate, outlook
    from edgewise.rehearsal.ladder import describe_cost

    click.echo(f"{describe_cost(options['steps'], options['rates'])}, on copies", err=True)
    where = ModelMap(model)
    answer = learning_rate(where, batches, loss, optimizer=optimizer, **options)
    answer = replace(answer, notes=(*answer.notes, *notes))
    return answer, outlook(answer, verdict_of(where, False, attention=False))


def _model(source: str, seed: int) -> nn.Module:
    from edgewise.probe.subjects import seeded, subject

    target = subject(source)
    if target.module is not None:
        return target.module
    assert target.factory is not None
    return seeded(target.factory, seed)


def _batches(model: nn.Module, text: str | None, options: Document) -> tuple[Batch, tuple[str, ...]]:
    """Return the batches of `--batch`, else synthetic ones."""
    batches = load_batches(text)
    if batches is not None:
        return batches.several(options["seed"]), ()
    from edgewise.rehearsal.short_training import FRESH, NOTE, synthetic_batches

    return synthetic_batches(model, options["steps"] * options["accumulate"] * 4 + FRESH), (NOTE,)


def _optimizer(name: str) -> Command | None:
    import torch

    if name == "adamw":
        return None
    if name == "sgd":
        return functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9)
    if name == "muon":
        from edgewise.rehearsal import muon_and_adamw

        return muon_and_adamw
    if ".py:" in name:
        return load_function("optimizer", name, "a function of the model that returns an optimizer")
    raise BadInput(f"--optimizer must be one of {', '.join(NAMED)}, or file.py:function, got {name!r}.")


def _document(answer: Rate, prospect: Outlook) -> str:

    words = {
        "prospect": prospect.prospect.value,
        "sentence": prospect.sentence,
        "cure": prospect.cure,
        "steps_to_half": json_values([prospect.steps, prospect.steps_low, prospect.steps_high]),
        "probability": None if prospect.probability is None else prospect.probability.json(),
    }
    return json.dumps(json.loads(answer.to_json()) | {"outlook": words}, allow_nan=False)


def _code(prospect: Outlook) -> int:
    from edgewise.rehearsal import Prospect

    return {Prospect.DEAD: exit_codes.FAILS, Prospect.UNDECIDED: exit_codes.RISKY}.get(
        prospect.prospect, exit_codes.FINE
    )
