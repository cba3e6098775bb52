"""`edgewise predict`: a verdict from a description alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgewise.cli import exit_codes
from edgewise.cli.options import (
    complete_knob,
    complete_source,
    describe_with,
    detail_options,
    figure_path,
    parse_settings,
)
from edgewise.cli.output import Document, printing, prints_aside
from edgewise.errors import BadInput
from edgewise.models.source import ACCEPTED
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from edgewise.critical.critical_point import CriticalPoint
    from edgewise.judgement.comparison import Comparison
    from edgewise.models.describe import Description
    from edgewise.models.source import Source
    from edgewise.nouns.trace import Trace
    from edgewise.nouns.verdict import Verdict

EPILOG = (
    f"SOURCE is {ACCEPTED}. Presets are gpt2, llama-3-8b, bert-base, vit-large and others. Knobs of any source can be "
    "changed with --set, as in mlp:tanh --set weight_variance=1.5. Exit codes: 0 fine, 1 risky or undecided, "
    "2 will not train, 64 bad input, 70 internal error."
)


@click.command(epilog=EPILOG)
@click.argument(
    "sources", metavar="SOURCE [SOURCE2]", nargs=-1, required=True, shell_complete=complete_source
)
@click.option("--depth", type=int, metavar="N", help="Number of blocks instead of the source's.")
@click.option("--tokens", type=int, metavar="N", help="Sequence length instead of the source's.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KNOB=VALUE",
    help="Change a knob; repeatable.",
    shell_complete=complete_knob,
)
@click.option(
    "--start-overlap",
    type=float,
    default=0.0,
    metavar="C",
    show_default=True,
    help="Mean cosine between two input tokens.",
)
@click.option(
    "--readout",
    type=click.Choice(["token", "pooled", "class"]),
    help="A loss per token, of the mean over tokens, or of one token.  [default: the model's, else token]",
)
@click.option("--critical", is_flag=True, help="Also find the nearest setting at which the exponents vanish.")
@click.option("--figure", metavar="F", help="Draw norm, overlap and gradients per block (.png, .svg, .pdf).")
@detail_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option(
    "--fail-on",
    type=click.Choice(["risky", "fails"]),
    default="risky",
    show_default=True,
    help="The mildest verdict whose exit code is not 0.",
)
def predict(
    sources: tuple[str, ...],
    depth: int | None,
    tokens: int | None,
    settings: tuple[str, ...],
    start_overlap: float,
    readout: str | None,
    critical: bool,
    figure: str | None,
    detail: int,
    as_json: bool,
    fail_on: str,
) -> int:
    """Say from a description alone whether a network will train; two sources are compared side by side."""
    if len(sources) > 2:
        raise BadInput(f"{len(sources)} sources were given. Give one, or two to compare.")
    changes, path = parse_settings(settings), figure_path(figure)
    began = time.perf_counter()
    with prints_aside(), ProgressBar("importing the theory") as bar:
        networks = [_network(source, depth, tokens, changes) for source in sources]
        bar.say("following " + " and ".join(sources) + " through depth")
        answer = answer_for(networks, start_overlap, readout, critical, bar.fill)
        if path is not None:
            bar.say("drawing")
            answer.draw(path)
    with printing():
        answer.print_json() if as_json else answer.print_text(time.perf_counter() - began, detail)
    if path is not None:
        click.echo(f"Wrote {path}", err=True)
    return exit_codes.of_outcomes((verdict.outcome for verdict in answer.verdicts), fail_on)


def _network(source: str, depth: int | None, tokens: int | None, changes: Document) -> Description | Source:
    """The description, or the model itself if nothing of it is changed: theory is compared with a pass through it."""
    from edgewise.models.source import read_source

    content = read_source(source)
    changed = depth is not None or tokens is not None or bool(changes)
    if not changed and (content.model is not None or content.factory is not None):
        return content
    return describe_with(source, depth, tokens, changes)


@dataclass(frozen=True)
class Answer:
    """One entry per source; a comparison if there were two, critical settings if they were asked for."""

    traces: tuple[Trace, ...]
    verdicts: tuple[Verdict, ...]
    comparison: Comparison | None = None
    criticals: tuple[CriticalPoint, ...] = ()

    def draw(self, path: Path) -> None:
        """Draw the curves of every source in one figure."""
        from edgewise import present as view

        view.depth_profile(self.traces, self.verdicts).save(path)

    def print_json(self) -> None:
        """Print one JSON document of the published schema."""
        from edgewise import present as view

        points = self.criticals or (None,) * len(self.traces)
        rows = zip(self.traces, self.verdicts, points, strict=True)
        documents = [view.prediction(trace, verdict, point) for trace, verdict, point in rows]
        document = documents[0] if self.comparison is None else view.comparison(self.comparison, documents)
        click.echo(json.dumps(document, allow_nan=False))

    def print_text(self, seconds: float, detail: int) -> None:
        """Print the screen."""
        from edgewise.present.terminal import Detail, show_comparison, show_prediction

        criticals = [str(point) for point in self.criticals]
        if self.comparison is None:
            show_prediction(self.traces[0], self.verdicts[0], criticals, seconds, Detail(detail))
        else:
            show_comparison(self.comparison, criticals, seconds, Detail(detail))


def answer_for(
    networks: Sequence[Description | Source],
    start_overlap: float,
    readout: str | None,
    critical: bool,
    tell: Callable[[float], None],
) -> Answer:
    """Predict and judge one network, or compare two."""
    from edgewise import verbs

    if len(networks) == 2:
        comparison = verbs.compare(*networks, start_overlap=start_overlap, readout=readout, progress=tell)
        answer = Answer(comparison.traces, comparison.verdicts, comparison)
    else:
        trace = verbs.predict(networks[0], start_overlap=start_overlap, readout=readout, progress=tell)
        verdict = verbs.judge(trace)
        answer = Answer(
            (trace,), (verdict if verdict.name else verdict.with_provenance(name=networks[0].name),)
        )
    if not critical:
        return answer
    gradient = answer.traces[0].decisive_readout or "token"
    points = (verbs.critical_point(n, start_overlap=start_overlap, readout=gradient) for n in networks)
    return replace(answer, criticals=tuple(points))
