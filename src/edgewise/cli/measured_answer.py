"""What `edgewise measure` found, and its two ways out: JSON for machines, text for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table
from rich.text import Text

import edgewise
from edgewise.architecture import Architecture
from edgewise.audit.finding import AuditFinding
from edgewise.audit.inspect import audit
from edgewise.cli.human import COLOURS, SEVERITIES, console, overlap_text, selected
from edgewise.probe.isolation import random_streams
from edgewise.probe.subjects import seeded
from edgewise.probe.subjects import subject as understood
from edgewise.trace import Trace
from edgewise.verdict import Verdict
from edgewise.view.measured import Rows, rows_with_errors


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

