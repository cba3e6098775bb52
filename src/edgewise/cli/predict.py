"""`edgewise predict`: a verdict from a description alone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.patience import Patience
from edgewise.cli.settings import parse_settings
from edgewise.errors import BadInput

EPILOG = (
    "SOURCE is a preset name (gpt2, llama-3-8b, bert-base, vit-large, ...), a config.json or a folder with "
    "one, a .json or .yaml file of knobs, `transformer` (default knobs, to be changed with --set), or a "
    "perceptron such as mlp:tanh (--set weight_variance=1.5 --set bias_variance=0.05). Exit codes: 0 fine, "
    "1 risky or undecided, 2 will not train, 64 bad input, 70 internal error."
)


@click.command(epilog=EPILOG)
@click.argument("sources", metavar="SOURCE [SOURCE2]", nargs=-1, required=True)
@click.option("--depth", type=int, metavar="N", help="Number of blocks instead of the source's.")
@click.option("--tokens", type=int, metavar="N", help="Sequence length instead of the source's.")
@click.option("--set", "settings", multiple=True, metavar="KNOB=VALUE", help="Change a knob; repeatable.")
@click.option("--start-overlap", type=float, default=0.0, metavar="C", show_default=True,
              help="Mean cosine between two input tokens.")
@click.option("--readout", type=click.Choice(["token", "pooled"]), default="token", show_default=True,
              help="A loss per token, or of the mean over tokens.")
@click.option("--critical", is_flag=True, help="Also find the nearest setting at which the exponents vanish.")
@click.option("--figure", metavar="F", help="Draw norm, overlap and gradients per block (.png, .svg, .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--fail-on", type=click.Choice(["risky", "fails"]), default="risky", show_default=True,
              help="From which verdict on the exit code is not 0.")  # fmt: skip
def predict(
    sources: tuple[str, ...], depth: int | None, tokens: int | None, settings: tuple[str, ...],
    start_overlap: float, readout: str, critical: bool, figure: str | None, as_json: bool, fail_on: str,
) -> int:  # fmt: skip
    """Say from a description alone whether a network will train; two sources are compared side by side."""
    if len(sources) > 2:
        raise BadInput(f"{len(sources)} sources were given. Give one, or two to compare.")
    changes, path = parse_settings(settings), _checked(figure)
    how: dict[str, Any] = {"start_overlap": start_overlap, "readout": readout}
    began = time.perf_counter()
    with Patience() as patience:
        patience.say("importing the theory")
        from edgewise.cli.answer import answer, draw, print_json, print_text
        from edgewise.cli.sources import described

        networks = [described(source, depth, tokens, changes) for source in sources]
        patience.say("following " + " and ".join(sources) + " through depth")
        found = answer(networks, how, critical, patience.fill)
        if path is not None:
            patience.say("drawing")
            draw(found, path)
    print_json(found) if as_json else print_text(found, time.perf_counter() - began)
    if path is not None:
        click.echo(f"Wrote {path}", err=True)
    return exit_codes.of_outcomes((verdict.outcome for verdict in found.verdicts), fail_on)


def _checked(figure: str | None) -> Path | None:
    """A figure that cannot be written is refused before anything is computed."""
    if figure is None:
        return None
    import edgewise

    path: Path = edgewise.view.check_path(figure)
    return path
