"""`edgewise predict`: a verdict from a description alone.

What `edgewise predict` found, and its two ways out: JSON for machines, text for people.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import edgewise
from edgewise.cli import exit_codes
from edgewise.cli import terminal as human
from edgewise.cli.critical_setting import critical_setting
from edgewise.cli.settings import parse_settings
from edgewise.critical.critical_point import CriticalPoint
from edgewise.errors import BadInput
from edgewise.judgement.comparison import Comparison
from edgewise.progress import ProgressBar
from edgewise.trace import Trace
from edgewise.verdict import Verdict


@dataclass(frozen=True)
class Answer:
    """One entry per source; a comparison when there were two, critical settings when they were asked for."""

    traces: tuple[Trace, ...]
    verdicts: tuple[Verdict, ...]
    compared: Comparison | None = None
    criticals: tuple[CriticalPoint, ...] = ()


def answer(
    networks: Sequence[Any], how: Mapping[str, Any], critical: bool, progress: Callable[[float], None] | None = None
) -> Answer:
    """Predict and judge one network, or compare two."""
    compared = edgewise.compare(*networks, **how, progress=progress) if len(networks) == 2 else None
    traces = (edgewise.predict(networks[0], **how, progress=progress),) if compared is None else compared.traces
    verdicts = (edgewise.judge(traces[0]),) if compared is None else compared.verdicts
    points = [critical_setting(n, v, how) for n, v in zip(networks, verdicts, strict=True) if critical]
    return Answer(traces, verdicts, compared, tuple(points))


def draw(found: Answer, path: Path) -> None:
    edgewise.view.depth_profile(found.traces, found.verdicts).save(path)


def print_json(found: Answer) -> None:
    points = found.criticals or (None,) * len(found.traces)
    rows = zip(found.traces, found.verdicts, points, strict=True)
    documents = [edgewise.view.prediction(trace, verdict, point) for trace, verdict, point in rows]
    document = documents[0] if found.compared is None else edgewise.view.comparison(found.compared, documents)
    click.echo(json.dumps(document, allow_nan=False))


def print_text(found: Answer, seconds: float) -> None:
    lines = [str(point) for point in found.criticals]
    if found.compared is None:
        human.show_prediction(found.traces[0], found.verdicts[0], "".join(lines), seconds)
    else:
        human.show_comparison(found.compared, lines, seconds)


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
    with ProgressBar() as bar:
        bar.say("importing the theory")
        from edgewise.cli.sources import described

        networks = [described(source, depth, tokens, changes) for source in sources]
        bar.say("following " + " and ".join(sources) + " through depth")
        found = answer(networks, how, critical, bar.fill)
        if path is not None:
            bar.say("drawing")
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
