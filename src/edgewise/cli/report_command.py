"""`edgewise report`: everything that is known about one network or one watched run, as one HTML file."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.cli import exit_codes
from edgewise.cli.options import batch_option, describe_with, load_batches, new_file, parse_settings
from edgewise.cli.output import Document, prints_aside
from edgewise.errors import BadInput
from edgewise.models.source import ACCEPTED
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from edgewise.present.html_report import ReportSubject

SAVED = ".npz"
EPILOG = (
    f"SOURCE is {ACCEPTED}; or a trace that Trace.save wrote ({SAVED}); or the folder of a run that edgewise.watch "
    "wrote: its alarms and curves. The page has no script, loads nothing, follows the system's light or dark setting, "
    "and prints on A4."
)


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SOURCE_OR_RUN")
@click.option(
    "-o", "--output", default="report.html", show_default=True, metavar="F", help="The file to write."
)
@click.option("--depth", type=int, metavar="N", help="Number of blocks instead of the source's.")
@click.option("--tokens", type=int, metavar="N", help="Sequence length instead of the source's.")
@click.option("--set", "settings", multiple=True, metavar="KNOB=VALUE", help="Change a knob; repeatable.")
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
    type=click.Choice(["token", "pooled"]),
    default="token",
    show_default=True,
    help="A loss per token, or of the mean over tokens.",
)
@click.option(
    "--measure",
    "measured",
    is_flag=True,
    help="Build the model and measure it too: theory beside measurement, and the audit of its weights.",
)
@batch_option("with --measure: random tokens or pixels")
@click.option(
    "--seeds",
    type=int,
    default=2,
    show_default=True,
    metavar="K",
    help="With --measure: networks to average.",
)
def report(
    source: str,
    output: str,
    depth: int | None,
    tokens: int | None,
    settings: tuple[str, ...],
    start_overlap: float,
    readout: str,
    measured: bool,
    batch: str | None,
    seeds: int,
) -> int:
    """Write a page that needs nothing else: answer, fixes or alarms, curves, and the command that repeats it."""
    path = new_file(output, ".html")
    assert path is not None
    changes = parse_settings(settings)
    if batch is not None and not measured:
        raise BadInput("--batch is what a model is measured on: use it with --measure.")
    if os.path.lexists(Path(source) / "run.json"):
        _refuse_changes(source, "a watched run", measured or depth or tokens or changes)
        return _of_run(Path(source), path)
    with prints_aside(), ProgressBar("importing the theory") as bar:
        from edgewise.present.html_report import write

        bar.say(f"following {source} through depth")
        if Path(source).suffix.lower() == SAVED:
            _refuse_changes(source, "a saved trace", measured or depth or tokens or changes)
            subject = _of_trace(Path(source))
        elif measured:
            _refuse_with_measure(depth, changes)
            subject = _of_measurement(source, batch, tokens, seeds)
        else:
            subject = _of_description(source, depth, tokens, changes, start_overlap, readout)
        bar.say("writing")
        write(path, replace(subject, command=_command()))
    click.echo(f"Wrote {path} ({path.stat().st_size / 1000:.0f} kB): {subject.verdict.outcome.value}")
    return exit_codes.FINE


def _command() -> str:
    """This very call."""
    context = click.get_current_context()
    words = [context.params["source"]]
    for parameter in context.command.params:
        value = context.params[parameter.name or ""]
        if isinstance(parameter, click.Option) and value not in (parameter.get_default(context), None, ()):
            for each in value if isinstance(value, tuple) else (value,):
                words += [parameter.opts[-1]] if value is True else [parameter.opts[-1], str(each)]
    return f"edgewise report {shlex.join(words)}"


def _of_run(folder: Path, path: Path) -> int:
    with prints_aside(), ProgressBar(f"reading {folder}"):
        from edgewise.monitor.read_run import Run
        from edgewise.present.run_report import read, write

        subject = read(folder, _command())
        write(path, subject)
    click.echo(
        f"Wrote {path} ({path.stat().st_size / 1000:.0f} kB): {subject.headline.replace(chr(0x2009), '')}"
    )
    run = Run(folder)
    known = any(event["kind"] == "alarm" for event in run.events())
    return exit_codes.UNSEEN if not known and run.unseen() else exit_codes.FINE


def _refuse_changes(source: str, kind: str, wanted: Any) -> None:
    if wanted:
        raise BadInput(
            f"{source} is {kind}, which cannot be changed or measured. Leave the other options out."
        )


def _refuse_with_measure(depth: int | None, changes: Document) -> None:
    if depth is not None or changes:
        raise BadInput(
            "--measure reads the model as it is: leave --depth and --set out, or leave --measure out."
        )


def _of_description(
    source: str,
    depth: int | None,
    tokens: int | None,
    changes: Document,
    start_overlap: float,
    readout: str,
) -> ReportSubject:
    from edgewise import verbs
    from edgewise.present.html_report import ReportSubject, after_fix

    network = describe_with(source, depth, tokens, changes)
    trace = verbs.predict(network, start_overlap=start_overlap, readout=readout)
    verdict = verbs.judge(trace)
    return ReportSubject(verdict, trace, after=after_fix(verdict, trace))


def _of_trace(path: Path) -> ReportSubject:
    from edgewise import verbs
    from edgewise.nouns.trace import Trace
    from edgewise.present.html_report import ReportSubject, after_fix

    trace = Trace.load(path)
    verdict = verbs.judge(trace)
    verdict = verdict if verdict.name else verdict.with_provenance(name=path.stem)
    return ReportSubject(verdict, trace, after=after_fix(verdict, trace))


def _of_measurement(source: str, batch: str | None, tokens: int | None, seeds: int) -> ReportSubject:
    from edgewise.cli.measure_command import READOUTS, audited, beside_theory
    from edgewise.present.cards import leading, listing
    from edgewise.present.html_report import ReportSubject, after_fix
    from edgewise.probe.measure import measure
    from edgewise.probe.subjects import subject

    target, audit = audited(subject(source), stream=False)
    batches = load_batches(batch)
    inputs = None if batches is None else batches.first()
    trace = measure(target, inputs, seeds=seeds, readouts=READOUTS, tokens=tokens)
    measurement = beside_theory(target.name, trace, audit())
    verdict, trace = measurement.verdict, measurement.trace
    return ReportSubject(
        verdict,
        trace,
        theory=measurement.theory,
        after=after_fix(verdict, trace),
        lead=leading(measurement.audit),
        audit=tuple(listing(measurement.audit)),
    )
