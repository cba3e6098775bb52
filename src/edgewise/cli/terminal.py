"""Verdicts for a person at a terminal: colour only there, the same words everywhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edgewise import view
from edgewise.audit.finding import AuditFinding
from edgewise.judgement.comparison import Comparison
from edgewise.paragraph import lines
from edgewise.trace import Trace
from edgewise.verdict import Verdict
from edgewise.view.measured import Rows, rows_with_errors

PIPE, NARROWEST = 110, 40  # columns
COLOURS = {"trains": "green", "risky": "yellow", "undecided": "yellow", "will not train": "red"}
SEVERITIES = {"fails": "red", "risky": "yellow", "note": "cyan"}
COLUMNS = {
    "norm": "norm q", "overlap": "overlap", "gradient_norm": "gradient", "relative_gradient_norm": "relative",
    "attention_entropy": "entropy",
}  # fmt: skip
MEASURED_COLUMNS = {
    "norm": "norm q", "overlap": "overlap", "relative_gradient_norm": "relative gradient",
    "attention_entropy": "entropy",
}  # fmt: skip


class Output(Console):
    """A console whose broken pipe is the door's to meet; rich would exit with 1, which reads as *risky*."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The output; a pipe has no width of its own and gets a generous one."""
    terminal = sys.stdout.isatty()
    return Output(file=sys.stdout, width=_width(terminal), highlight=False, soft_wrap=not terminal)


def _width(terminal: bool) -> int:
    """COLUMNS where it says something, else the terminal's; never so narrow that numbers would be cut."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and len(columns) < 6 else 0
    return max(NARROWEST, width or (shutil.get_terminal_size((PIPE, 24)).columns if terminal else PIPE))


def show_prediction(trace: Trace, verdict: Verdict, critical: Sequence[str], seconds: float) -> None:
    """Headline, paragraph, numbers per block, critical setting, assumptions, time."""
    out = console()
    _show_verdict(out, verdict)
    out.print()
    out.print(block_table(trace), soft_wrap=False)
    _show_lines(out, critical, "")
    _show_lines(out, verdict.notes, "Assumed: ")
    out.print(Text(_closing(seconds, "measured" if trace.departure else "theory only"), style="dim"))


def show_comparison(comparison: Comparison, criticals: Sequence[str], seconds: float) -> None:
    """Both verdicts in one table, what differs in the descriptions, then the findings of each."""
    out = console()
    out.print(verdict_table(comparison), soft_wrap=False)
    out.print()
    out.print(difference_table(comparison), soft_wrap=False)
    for name, verdict, critical in zip(comparison.names, comparison.verdicts, criticals or ("", ""), strict=True):
        out.print()
        out.print(Text(f"{name}: {verdict.outcome.value}", style=f"bold {COLOURS[verdict.outcome.value]}"))
        for finding in verdict.findings:
            out.print(Text(finding.sentence, style=SEVERITIES.get(finding.severity, "")))
            _show_lines(out, [finding.remedy], "    What to do: ")
        _show_lines(out, verdict.extrapolated, "Extrapolated: ")
        _show_lines(out, [critical] if critical else [], "")
        _show_lines(out, verdict.notes, "Assumed: ")
    out.print(Text(_closing(seconds), style="dim"))


def show_measurement(
    trace: Trace, verdict: Verdict, theory: Trace | None, audit: Sequence[AuditFinding] | None, seconds: float
) -> None:
    """Headline, paragraph, measured and predicted numbers per block, the audit of the initialization, time."""
    out = console()
    _show_verdict(out, verdict)
    out.print()
    predicted = {} if theory is None else rows_with_errors(theory)
    out.print(measured_table(rows_with_errors(trace), predicted, trace.depth), soft_wrap=False)
    _show_lines(out, _audit_lines(audit), "")
    closing = f"{seconds:.1f} s, measured; theory starts from the measured input. --json for machines."
    out.print(Text(closing, style="dim"))


def _show_verdict(out: Console, verdict: Verdict) -> None:
    """The paragraph of `print(verdict)`, its headline and findings coloured."""
    headline, *rest = lines(verdict)
    out.print(Text(headline.text, style=f"bold {COLOURS[verdict.outcome.value]}"))
    for line in rest:
        out.print(Text(line.text, style=SEVERITIES.get(line.severity, "")))


def _audit_lines(findings: Sequence[AuditFinding] | None) -> list[str]:
    if findings is None:
        return ["Initialization audit: not possible while streaming."]
    if not findings:
        return ["Initialization audit: nothing to report."]
    return ["Initialization audit:", *(f"  {finding}" for finding in findings)]


def _show_lines(out: Console, lines: Iterable[str], prefix: str) -> None:
    for line in lines:
        out.print(Text(prefix + line))


def _closing(seconds: float, method: str = "theory only") -> str:
    return f"{seconds:.1f} s, {method}. Exit code 0 fine, 1 risky, 2 will not train; --json for machines."


def block_table(trace: Trace) -> Table:
    """Rows at selected depths: the first blocks, the quarters, the last."""
    numbers = view.block_numbers(trace)
    shown = [name for name in COLUMNS if name in numbers and np.isfinite(numbers[name]).any()]
    table = _table("block", *(COLUMNS[name] for name in shown))
    for block in selected(trace.depth):
        cells = [_number(name, numbers, block) for name in shown]
        table.add_row("input" if block == 0 else str(block), *cells)
    return table


def selected(depth: int) -> list[int]:
    """Block counts worth a row: 0, 1, 2, the quarters and the end.

    >>> selected(12)
    [0, 1, 2, 3, 6, 9, 12]
    """
    blocks = {0, 1, 2, depth // 4, depth // 2, 3 * depth // 4, depth}
    return sorted(block for block in blocks if block <= depth)


def _number(name: str, numbers: dict[str, Any], block: int) -> str:
    value = float(numbers[name][block])
    if not np.isfinite(value):
        return "∞" if value == np.inf else ""
    if name == "overlap":
        return overlap_text(value, float(numbers["separation"][block]))
    return f"{value:.2f}" if name == "attention_entropy" else f"{value:.3g}"


def measured_table(measured: Rows, theory: Rows, depth: int) -> Table:
    """Measured with its standard error, and predicted, at selected depths."""
    names = [name for name in MEASURED_COLUMNS if name in measured and np.isfinite(measured[name][0]).any()]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("block", no_wrap=True)
    for name in names:
        table.add_column(MEASURED_COLUMNS[name], justify="right")
        table.add_column("theory", justify="right", style="dim")
    for block in selected(depth):
        cells = [cell for name in names for cell in _cells(name, measured, theory, block)]
        table.add_row("input" if block == 0 else str(block), *cells)
    return table


def _cells(name: str, measured: Rows, theory: Rows, block: int) -> tuple[str, str]:
    value, error = (float(row[block]) for row in measured[name])
    predicted = _with_error(name, float(theory[name][0][block]), 0.0) if name in theory else ""
    return _with_error(name, value, error), predicted


def _with_error(name: str, value: float, error: float) -> str:
    if not np.isfinite(value):
        return "∞" if value == np.inf else ""
    shown = overlap_text(value, 1 - value) if name == "overlap" else f"{value:.3g}"
    return shown + (f" ± {error:.1g}" if np.isfinite(error) and error > 0 else "")


def overlap_text(overlap: float, separation: float) -> str:
    """Near one the difference is the news: 0.9871, but 1-3e-07."""
    return f"{overlap:.4f}" if separation >= 1e-3 or separation == 0 else f"1-{separation:.0e}"


def verdict_table(comparison: Comparison) -> Table:
    """One column for each network."""
    colours = [COLOURS[verdict.outcome.value] for verdict in comparison.verdicts]
    table = _table("", *(Text(name, style=c) for name, c in zip(comparison.names, colours, strict=True)))
    columns = [_facts(t, v) for t, v in zip(comparison.traces, comparison.verdicts, strict=True)]
    for fact in columns[0]:
        table.add_row(fact, *(column[fact] for column in columns))
    return table


def _facts(trace: Trace, verdict: Verdict) -> dict[str, str]:
    numbers = view.block_numbers(trace)
    relative = verdict.relative_gradient
    return {
        "outcome": verdict.outcome.value,
        "phase": verdict.phase.value,
        "blocks": str(verdict.depth),
        "angle exponent": _rate(verdict.angle.at_depth, verdict.angle.error),
        "  change over depth": _signed(verdict.angle.change),
        "relative gradient exponent": "" if relative is None else _rate(relative.at_depth, relative.error),
        "  change over depth ": "" if relative is None else _signed(relative.change),
        "raw gradient exponent": "" if verdict.gradient is None else _signed(verdict.gradient.at_depth, 4),
        "norm q, in and out": f"{numbers['norm'][0]:.3g} → {numbers['norm'][-1]:.3g}",
        "overlap, in and out": " → ".join(_number("overlap", numbers, i) for i in (0, -1)),
        "condensation ratio": _condensation(verdict),
        "findings": ", ".join(f.kind.value.replace("_", " ") for f in verdict.findings) or "none",
    }


def _condensation(verdict: Verdict) -> str:
    ratio = None if verdict.attention is None else verdict.attention.condensation
    return "" if ratio is None else f"{ratio:.2f}"


def _rate(value: float, error: float) -> str:
    return _signed(value, 4) + ("" if np.isnan(error) else f" ± {error:.4f}")


def _signed(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:+.{digits}f}"


def difference_table(comparison: Comparison) -> Table:
    """The knobs in which the descriptions differ."""
    title = "they differ in" if comparison.differences else "the descriptions are the same"
    table = _table(title, *comparison.names)
    for knob, first, second in comparison.differences:
        table.add_row(knob, _value(first), _value(second))
    return table


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} values" if len(value) > 3 else ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def _table(first: str, *others: str | Text) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, justify="left", no_wrap=True)
    for other in others:
        table.add_column(other, justify="right")
    return table
