"""`edgewise measure`: the numbers of a real model beside the predicted ones.

What `edgewise measure` found, and its two ways out: JSON for machines, text for people.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

import edgewise
from edgewise.architecture import Architecture
from edgewise.audit.finding import AuditFinding
from edgewise.audit.inspect import audit
from edgewise.cli import exit_codes
from edgewise.cli.terminal import COLOURS, SEVERITIES, console, overlap_text, selected
from edgewise.probe.isolation import random_streams
from edgewise.probe.subjects import seeded
from edgewise.probe.subjects import subject as understood
from edgewise.progress import ProgressBar
from edgewise.trace import Trace
from edgewise.verdict import Verdict
from edgewise.view.measured import Rows, rows_with_errors

if TYPE_CHECKING:
    from edgewise.trace import Trace

@dataclass(frozen=True)
class Measured:
    """The measurement, its verdict, and the theory that starts where it starts (None where it is not described)."""

    trace: Trace
    verdict: Verdict
    theory: Trace | None
    theory_verdict: Verdict | None
    audit: tuple[AuditFinding, ...] | None  # None: there are no weights to look at


def compared(subject: Any, trace: Trace) -> Measured:
    theory = edgewise.predict(trace.architecture, start=trace) if isinstance(trace.architecture, Architecture) else None
    verdict = None if theory is None else edgewise.judge(theory)
    return Measured(trace, edgewise.judge(trace), theory, verdict, audited(subject, trace))


def audited(subject: Any, trace: Trace) -> tuple[AuditFinding, ...] | None:
    """The initialization audit, of one new initialization, or of given weights (which no recipe describes any more)."""
    if "streamed" in trace.source:
        return None
    module, factory, _ = understood(subject)
    if module is not None:
        return audit(module, family_recipe=False)
    assert factory is not None
    with random_streams():
        return audit(seeded(factory, 0))


def draw(found: Measured, path: Path) -> None:
    edgewise.view.beside(found.trace, found.verdict, found.theory).save(path)


def print_json(found: Measured) -> None:
    predicted = None if found.theory is None or found.theory_verdict is None else (found.theory, found.theory_verdict)
    document = edgewise.view.measurement(found.trace, found.verdict, predicted, found.audit)
    click.echo(json.dumps(document, allow_nan=False))


def print_text(found: Measured, seconds: float) -> None:
    out = console()
    headline, *rest = str(found.verdict).splitlines()
    out.print(Text(headline, style=f"bold {COLOURS[found.verdict.outcome.value]}"))
    for line in rest:
        out.print(Text(line, style=SEVERITIES.get(line.split(" ")[0], "")))
    out.print()
    theory = None if found.theory is None else rows_with_errors(found.theory)
    out.print(table(rows_with_errors(found.trace), theory, found.trace.depth), soft_wrap=False)
    for line in audit_lines(found.audit):
        out.print(Text(line))
    closing = f"{seconds:.1f} s, measured; theory starts from the measured input. --json for machines."
    out.print(Text(closing, style="dim"))


def audit_lines(findings: Sequence[AuditFinding] | None) -> list[str]:
    if findings is None:
        return ["Initialization audit: not made while streaming."]
    if not findings:
        return ["Initialization audit: nothing found."]
    return ["Initialization audit:", *(f"  {finding}" for finding in findings)]


COLUMNS = {"norm": "norm q", "overlap": "overlap", "relative_gradient_norm": "relative gradient",
           "attention_entropy": "entropy"}  # fmt: skip


def table(measured: Rows, theory: Rows | None, depth: int) -> Table:
    """Measured with its standard error, and predicted, at selected depths."""
    shown = [name for name in COLUMNS if name in measured and np.isfinite(measured[name][0]).any()]
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("block", no_wrap=True)
    for name in shown:
        grid.add_column(COLUMNS[name], justify="right")
        grid.add_column("theory", justify="right", style="dim")
    for block in selected(depth):
        cells = []
        for name in shown:
            value, error = (float(row[block]) for row in measured[name])
            cells.append(_cell(name, value, error))
            known = theory is not None and name in theory
            cells.append(_cell(name, float(theory[name][0][block]), 0.0) if known and theory is not None else "")
        grid.add_row("input" if block == 0 else str(block), *cells)
    return grid


def _cell(name: str, value: float, error: float) -> str:
    if not np.isfinite(value):
        return "∞" if value == np.inf else ""
    shown = overlap_text(value, 1 - value) if name == "overlap" else f"{value:.3g}"
    return shown + (f" ± {error:.1g}" if np.isfinite(error) and error > 0 else "")


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
    with ProgressBar() as bar:
        bar.say("importing torch")

        bar.say(f"measuring {source}")
        subject, trace = _measured(source, text, seeds, tokens, stream)
        bar.say("predicting")
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
