"""`edgewise predict`, `describe`, `presets`: verdicts from a description, what a model is, networks known by name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes, options
from edgewise.cli.exit_codes import printing, prints_aside
from edgewise.errors import BadInput
from edgewise.files import Document
from edgewise.models.source import ACCEPTED
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from edgewise.critical.critical_point import CriticalPoint
    from edgewise.judgement.comparison import Comparison
    from edgewise.models.behavior.structure import Structure
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
    "sources", metavar="SOURCE [SOURCE2]", nargs=-1, required=True, shell_complete=options.complete_source
)
@options.network_options
@click.option(
    "--readout",
    type=click.Choice(["token", "pooled", "class"]),
    help="A loss per token, of the mean over tokens, or of one token.  [default: the model's, else token]",
)
@click.option("--critical", is_flag=True, help="Also find the nearest setting at which the exponents vanish.")
@options.figure_option("Draw norm, overlap and gradients per block")
@options.detail_options
@options.json_option
@options.fail_on_option
def predict(
    sources: tuple[str, ...],
    depth: int | None,
    tokens: int | None,
    settings: tuple[str, ...],
    start_overlap: float,
    readout: str | None,
    critical: bool,
    figure: Path | None,
    detail: int,
    as_json: bool,
    fail_on: str,
) -> int:
    """Say from a description alone whether a network will train; two sources are compared side by side."""
    if len(sources) > 2:
        raise BadInput(f"{len(sources)} sources were given. Give one, or two to compare.")
    changes = options.parse_settings(settings)
    began = time.perf_counter()
    with prints_aside(), ProgressBar("importing the theory") as bar:
        networks = [_network(source, depth, tokens, changes) for source in sources]
        bar.say("following " + " and ".join(sources) + " through depth")
        answer = answer_for(networks, start_overlap, readout, critical, bar.fill)
        if figure is not None:
            bar.say("drawing")
            answer.draw(figure)
    with printing():
        answer.print_json() if as_json else answer.print_text(time.perf_counter() - began, detail)
    if figure is not None:
        click.echo(f"Wrote {figure}", err=True)
    return exit_codes.of_outcomes((verdict.outcome for verdict in answer.verdicts), fail_on)


def _network(source: str, depth: int | None, tokens: int | None, changes: Document) -> Description | Source:
    """Return the description, or the model itself if nothing of it is changed: theory is compared with its pass."""
    from edgewise.models.source import read_source

    content = read_source(source)
    changed = depth is not None or tokens is not None or bool(changes)
    if not changed and (content.model is not None or content.factory is not None):
        return content
    return options.describe_with(source, depth, tokens, changes)


@dataclass(frozen=True)
class Predictions:
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
) -> Predictions:
    """Predict and judge one network, or compare two."""
    import edgewise.verbs as verbs

    if len(networks) == 2:
        comparison = verbs.compare(*networks, start_overlap=start_overlap, readout=readout, progress=tell)
        answer = Predictions(comparison.traces, comparison.verdicts, comparison)
    else:
        trace = verbs.predict(networks[0], start_overlap=start_overlap, readout=readout, progress=tell)
        verdict = verbs.judge(trace)
        answer = Predictions(
            (trace,), (verdict if verdict.name else verdict.with_provenance(name=networks[0].name),)
        )
    if not critical:
        return answer
    gradient = answer.traces[0].decisive_readout or "token"
    points = (verbs.critical_point(n, start_overlap=start_overlap, readout=gradient) for n in networks)
    return replace(answer, criticals=tuple(points))


DESCRIBE_EPILOG = (
    f"SOURCE is {ACCEPTED}. A model is run on a small input and read by what it does; of a config or knobs, the "
    "description that theory takes is printed. Exit codes: 0 also where theory does not cover the model, 64 bad input, "
    "70 internal error."
)
COVERED = "Theory covers it: edgewise predict says whether it will train."
OUTSIDE = "Theory does not cover it: edgewise measure reads the same numbers from the model itself."
COLUMNS = ("name", "depth", "width", "heads", "norm", "activation", "tokens")


@click.command(epilog=DESCRIBE_EPILOG)
@click.argument("source", metavar="SOURCE", shell_complete=options.complete_source)
@options.batch_option("made from the model's own signature")
@options.stack_option
@options.json_option
def describe(source: str, batch: str | None, stack: str | None, as_json: bool) -> int:
    """Say what a model is, block by block, and whether theory covers it."""
    with prints_aside(), ProgressBar(f"reading {source}"):
        answer = _answer(source, options.load_batches(batch), stack)
    with printing():
        click.echo(json.dumps(_document(answer), allow_nan=False) if as_json else "\n".join(_lines(answer)))
    return exit_codes.FINE


def _answer(source: str, batches: options.Batches | None, stack: str | None) -> Structure | Description:
    from edgewise.models.describe import describe as describe_source
    from edgewise.models.describe import first_model
    from edgewise.models.source import read_source

    content = read_source(source)
    batch = None if batches is None else batches.first()
    if content.factory is None:
        return describe_source(content, batch, stack=stack)
    from edgewise.models.module_description import structure

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
@options.json_option
def presets(as_json: bool) -> int:
    """List the networks that are known by name, with their sizes."""
    # What each preset is described as; tokens are what is predicted unless --tokens says otherwise.
    from edgewise.models.describe import describe
    from edgewise.models.source import preset_names

    described = {name: describe(name).to_dict() for name in preset_names()}
    rows = [{"name": name} | {key: knobs[key] for key in COLUMNS[1:]} for name, knobs in described.items()]
    with printing():
        if as_json:
            click.echo(json.dumps(rows, allow_nan=False))
            return exit_codes.FINE
        cells = [COLUMNS, *(tuple(str(row[column]) for column in COLUMNS) for row in rows)]
        name, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
        for first, *others in cells:
            aligned = (cell.rjust(width) for cell, width in zip(others, widths, strict=True))
            click.echo("  ".join([first.ljust(name), *aligned]))
    return exit_codes.FINE
