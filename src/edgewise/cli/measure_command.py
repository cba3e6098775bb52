"""`edgewise measure` and `report`: numbers of a real model beside the predicted ones, its audit; one page of it all."""

from __future__ import annotations

import inspect
import json
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgewise.audit.finding import AuditFinding, NotAudited
from edgewise.cli import exit_codes, options
from edgewise.cli.exit_codes import printing, prints_aside
from edgewise.errors import BadInput
from edgewise.files import LARGEST_TEXT, read_text, whole_file
from edgewise.models.source import ACCEPTED
from edgewise.progress import ProgressBar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgewise.models.model_map import ModelMap
    from edgewise.nouns.trace import Trace
    from edgewise.nouns.verdict import Verdict
    from edgewise.present.html_report import ReportSubject
    from edgewise.probe.subjects import Measurable


Audit = tuple[AuditFinding, ...] | NotAudited
NOT_DESCRIBED = "not described: "  # in the source of a trace, before the reason
READOUTS = ("token", "own", "pooled")  # the verdict reads the first, which is the one that theory predicts
SEEDS = 2  # networks, or directions of a readout
EPILOG = (
    f"SOURCE is {ACCEPTED}. Weights are read from safetensors only; no pickle is ever loaded. What has no weights yet "
    "is initialized again for every seed. Exit codes: 0 fine, 1 risky or undecided, 2 will not train, 64 bad input, "
    "70 internal error."
)
HEADER = '''"""Repairs of the initialization, written by edgewise: call repair(model) before training."""

import torch


@torch.no_grad()
def repair(model):
    """Every repair in turn; the model is changed in place."""
'''


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SOURCE", shell_complete=options.complete_source)
@options.batch_option("random tokens or pixels")
@click.option("--text", metavar="F", help="Measure on the beginning of this text instead of random tokens.")
@click.option("--seeds", default=SEEDS, metavar="K", help="Networks or directions to average.")
@click.option("--tokens", type=int, metavar="N", help="Length of the input.  [default: 64]")
@options.stack_option
@click.option("--stream", is_flag=True, help="Hold one block in memory at a time (configs only).")
@options.figure_option("Draw theory as lines, measurement as points")
@click.option(
    "--repair", metavar="F", help="Write what fixes the initialization as a Python file with repair(model)."
)
@options.detail_options
@options.json_option
@options.fail_on_option
def measure(
    source: str,
    batch: str | None,
    text: str | None,
    seeds: int,
    tokens: int | None,
    stack: str | None,
    stream: bool,
    figure: Path | None,
    repair: str | None,
    detail: int,
    as_json: bool,
    fail_on: str,
) -> int:
    """Read the same numbers from a real model, beside the predicted ones."""
    repair_path = options.new_file(repair, ".py")
    if batch is not None and (text is not None or tokens is not None):
        raise BadInput("--batch says what is measured: leave --text and --tokens out, or leave --batch out.")
    began = time.perf_counter()
    with prints_aside(), ProgressBar("importing torch") as bar:
        from edgewise.probe.measure import measure as measure_subject
        from edgewise.probe.subjects import subject

        bar.say(f"measuring {source}")
        target, audit = audited(subject(source), stream)
        batches = options.load_batches(batch)
        inputs = None if batches is None else batches.first()
        if text is not None:
            inputs = text_batch(Path(text), source, target, tokens)
        length = tokens if text is None else None
        whole = as_json or detail > 1  # the screen reads one gradient and no pair of nearby inputs
        trace = measure_subject(
            target,
            inputs,
            seeds=seeds,
            readouts=READOUTS if whole else READOUTS[:1],
            pair=whole,
            stream=stream,
            tokens=length,
            stack=stack,
        )
        bar.say("predicting")
        measurement = beside_theory(target.name, trace, audit())
        if figure is not None:
            measurement.draw(figure)
    with printing():
        measurement.print_json() if as_json else measurement.print_text(time.perf_counter() - began, detail)
    if figure is not None:
        click.echo(f"Wrote {figure}", err=True)
    if repair_path is not None:
        measurement.write_repair(repair_path)
    return exit_codes.of_outcomes([measurement.verdict.outcome], fail_on)


@dataclass(frozen=True)
class Measurement:
    """A trace, its verdict, and the theory from the same start (None if the model is not described)."""

    trace: Trace
    verdict: Verdict
    theory: tuple[Trace, Verdict] | None
    audit: Audit

    def draw(self, path: Path) -> None:
        """Draw theory as lines, measurement as points."""
        from edgewise.present.figures import beside

        beside(self.trace, self.verdict, None if self.theory is None else self.theory[0]).save(path)

    def print_json(self) -> None:
        """Print one JSON document of the published schema."""
        from edgewise import present as view

        audit = None if isinstance(self.audit, NotAudited) else self.audit
        click.echo(
            json.dumps(view.measurement(self.trace, self.verdict, self.theory, audit), allow_nan=False)
        )

    def print_text(self, seconds: float, detail: int) -> None:
        """Print the screen."""
        from edgewise.present.terminal import Detail, show_measurement

        theory = None if self.theory is None else self.theory[0]
        show_measurement(self.trace, self.verdict, theory, self.audit, seconds, Detail(detail))

    def write_repair(self, path: Path) -> None:
        """Write the repairs to a file; raise `BadInput` if the weights were not audited."""
        if isinstance(self.audit, NotAudited):
            raise BadInput(f"no repair can be written: {self.audit.reason}")
        click.echo(f"Wrote {path} ({write_repair(path, self.audit)} repairs)", err=True)


def beside_theory(name: str, trace: Trace, audit: Audit) -> Measurement:
    from edgewise import verbs
    from edgewise.judgement.comparison import departure
    from edgewise.nouns.architecture import Architecture

    theory = None
    if isinstance(trace.architecture, Architecture):
        prediction = verbs.predict(trace.architecture, start=trace)
        theory = prediction, verbs.judge(prediction)
        trace = trace.with_provenance(departure=departure(trace, prediction))
    elif trace.architecture is None:
        from edgewise.models.behavior.to_architecture import not_covered

        _, _, reason = trace.source.partition(NOT_DESCRIBED)
        trace = trace.with_provenance(departure=not_covered(reason) if reason else "")
    verdict = judged(trace, audit)
    verdict = verdict if verdict.name else verdict.with_provenance(name=name)
    return Measurement(trace, verdict, theory, audit)


def audited(target: Measurable, stream: bool) -> tuple[Measurable, Callable[[], Audit]]:
    """Return the subject, and its audit once it has been measured: of the first model that its factory builds, so
    that every
    seed is built once; or of given weights, which no published recipe need describe any more."""
    if stream:
        return target, lambda: NotAudited("not possible while streaming.")
    if (module := target.module) is not None:
        return target, lambda: audit_of(module, family_recipe=False)
    audits: list[Audit] = []
    factory = target.factory
    assert factory is not None

    def build() -> nn.Module:
        model = factory()
        if not audits:
            audits.append(audit_of(model, family_recipe=True))
        return model

    return replace(target, factory=build), lambda: audits[0]


def audit_of(model: nn.Module, family_recipe: bool) -> Audit:
    """Return the findings; a model whose parts have no names that the audit knows is measured all the same."""
    from edgewise.audit.inspect import audit_initialization
    from edgewise.models.state import random_streams

    try:
        with random_streams():
            return audit_initialization(model, family_recipe=family_recipe)
    except BadInput as error:
        return NotAudited(f"not possible, {error}")


def verdict_of(
    where: ModelMap, family_recipe: bool, batch: options.Batch = None, **how: Any
) -> Verdict | None:
    """Return what is said of a model's start, errors in the weights included; None if it cannot be measured."""
    from edgewise.probe.measure import measure

    audit = audit_of(where.model, family_recipe)
    try:
        trace = measure(where, batch, pair=False, **how)
    except BadInput:  # no stack, or no default input: totals of a plan, or a rehearsal, stand alone
        return None
    return judged(trace, audit)


def judged(trace: Trace, audit: Audit) -> Verdict:
    """Return the verdict on a trace; every command has the same one, errors in the weights included."""
    from edgewise import verbs

    return verbs.judge(trace, audit=() if isinstance(audit, NotAudited) else audit)


def text_batch(path: Path, source: str, target: Measurable, tokens: int | None) -> options.Batch:
    """Return the beginning of a text as one sequence: by the checkpoint's tokenizer, else by bytes."""
    import torch

    from edgewise.models.inputs import MEASURED

    try:
        text = read_text(path, LARGEST_TEXT)
    except BadInput as error:
        raise BadInput(f"the text {path} cannot be read ({error})") from error
    if any((Path(source) / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        ids = _tokenized(source, text)
    else:
        ids = list(text.encode())
    if len(ids) < 2:
        raise BadInput(f"the text {path} must have at least 2 tokens, got {len(ids)}.")
    return _as_arguments(torch.tensor(ids[: tokens or MEASURED])[None], _without_memory(target))


def _tokenized(folder: str, text: str) -> list[int]:
    """By the tokenizer of a folder, of a class that transformers has; code in the folder is never run."""
    from edgewise.probe.subjects import on_one_line, transformers

    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers().AutoTokenizer.from_pretrained(folder, **options)
        ids: list[int] = tokenizer(text)["input_ids"]
    except Exception as error:  # a damaged file raises whatever its reader meets
        raise BadInput(
            f"the tokenizer in {folder} cannot be loaded: {on_one_line(error)}. Code that comes with a folder is not "
            "run; leave --text out for random tokens."
        ) from error
    return ids


def _without_memory(target: Measurable) -> nn.Module:
    """Return the model that shows what it accepts, on the meta device if it can be built there."""
    import torch

    from edgewise.models.state import random_streams
    from edgewise.probe.subjects import build

    if target.module is not None:
        return target.module
    if target.config is not None:
        with torch.device("meta"):
            return build(target.config)
    assert target.factory is not None
    with random_streams():
        return target.factory()


def _as_arguments(row: Tensor, model: nn.Module) -> options.Batch:
    """Ids (1, tokens) the way the model takes them; raise if it has no table for them, or too small a one."""
    from torch import nn

    name = type(model).__name__
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if not tables:
        raise BadInput(f"{name} has no embedding table, so it cannot read text. Leave --text out.")
    if int(row.max()) >= max(tables):
        raise BadInput(
            f"the text holds token {int(row.max())}, but the largest table of {name} has {max(tables)} rows. "
            "Without a tokenizer a text is read as bytes, which needs 256."
        )
    accepted = inspect.signature(model.forward).parameters
    if "input_ids" not in accepted:
        return row
    return {"input_ids": row} | ({"labels": row.clone()} if "labels" in accepted else {})


def write_repair(path: Path, audit: Sequence[AuditFinding]) -> int:
    """Write a module with `repair(model)` for errors and warnings; return how many there are."""
    from edgewise.audit.finding import AuditSeverity
    from edgewise.present.wording import group

    repairs = [finding for finding in audit if finding.severity is not AuditSeverity.NOTE and finding.repair]
    body = [
        f"    # {finding.kind.value}: {group(finding.parameters)}\n    {finding.repair}\n"
        for finding in repairs
    ]
    source = HEADER + ("".join(body) or "    # nothing to repair\n") + "    return model\n"
    with whole_file(path) as file:
        file.write(source.encode())
    return len(repairs)


SAVED = ".npz"
REPORT_EPILOG = (
    f"SOURCE is {ACCEPTED}; or a trace that Trace.save wrote ({SAVED}); or the folder of a run that edgewise.watch "
    "wrote: its alarms and curves. The page has no script, loads nothing, follows the system's light or dark setting, "
    "and prints on A4."
)


@click.command(epilog=REPORT_EPILOG)
@click.argument("source", metavar="SOURCE_OR_RUN")
@click.option("-o", "--output", default="report.html", metavar="F", help="The file to write.")
@options.network_options
@click.option(
    "--readout",
    type=click.Choice(["token", "pooled"]),
    default="token",
    help="A loss per token, or of the mean over tokens.",
)
@click.option(
    "--measure",
    "measured",
    is_flag=True,
    help="Build the model and measure it too: theory beside measurement, and the audit of its weights.",
)
@options.batch_option("with --measure: random tokens or pixels")
@click.option("--seeds", default=SEEDS, metavar="K", help="With --measure: networks to average.")
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
    path = options.new_file(output, ".html")
    assert path is not None
    changes = options.parse_settings(settings)
    if batch is not None and not measured:
        raise BadInput("--batch is what a model is measured on: use it with --measure.")
    if os.path.lexists(Path(source) / "run.json"):
        _refuse_changes(source, "a watched run", measured or depth or tokens or changes)
        return _of_run(Path(source), path)
    with prints_aside(), ProgressBar("importing the theory") as bar:
        from edgewise import verbs
        from edgewise.nouns.trace import Trace
        from edgewise.present.html_report import ReportSubject, after_fix, write

        bar.say(f"following {source} through depth")
        if measured and Path(source).suffix.lower() != SAVED:
            if depth is not None or changes:
                raise BadInput(
                    "--measure reads the model as it is: leave --depth and --set out, or leave --measure out."
                )
            subject = _of_measurement(source, batch, tokens, seeds)
        else:
            if Path(source).suffix.lower() == SAVED:
                _refuse_changes(source, "a saved trace", measured or depth or tokens or changes)
                trace = Trace.load(source)
            else:
                network = options.describe_with(source, depth, tokens, changes)
                trace = verbs.predict(network, start_overlap=start_overlap, readout=readout)
            verdict = verbs.judge(trace)
            verdict = verdict if verdict.name else verdict.with_provenance(name=Path(source).stem)
            subject = ReportSubject(verdict, trace, after=after_fix(verdict, trace))
        bar.say("writing")
        write(path, replace(subject, command=_command()))
    click.echo(f"Wrote {path} ({path.stat().st_size / 1000:.0f} kB): {subject.verdict.outcome.value}")
    return exit_codes.FINE


def _command() -> str:
    """Return this very call."""
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


def _refuse_changes(source: str, kind: str, wanted: object) -> None:
    if wanted:
        raise BadInput(
            f"{source} is {kind}, which cannot be changed or measured. Leave the other options out."
        )


def _of_measurement(source: str, batch: str | None, tokens: int | None, seeds: int) -> ReportSubject:
    from edgewise.present.cards import leading, listing
    from edgewise.present.html_report import ReportSubject, after_fix
    from edgewise.probe.measure import measure
    from edgewise.probe.subjects import subject

    target, audit = audited(subject(source), stream=False)
    batches = options.load_batches(batch)
    inputs = None if batches is None else batches.first()
    trace = measure(target, inputs, seeds=seeds, readouts=READOUTS, tokens=tokens)
    found = beside_theory(target.name, trace, audit())
    after, lead, whole = (
        after_fix(found.verdict, found.trace),
        leading(found.audit),
        tuple(listing(found.audit)),
    )
    return ReportSubject(found.verdict, found.trace, found.theory, after, lead, whole)
