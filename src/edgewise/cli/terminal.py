"""A verdict for a person at a terminal: colour only there, the same words everywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import edgewise
from edgewise.judgement.comparison import Comparison
from edgewise.trace import Trace
from edgewise.verdict import Verdict

COLOURS = {"trains": "green", "risky": "yellow", "undecided": "yellow", "will not train": "red"}
SEVERITIES = {"[fails]": "red", "[risky]": "yellow", "[note]": "cyan"}
COLUMNS = {
    "norm": "norm q", "overlap": "overlap", "gradient_norm": "gradient", "relative_gradient_norm": "relative",
    "attention_entropy": "entropy",
}  # fmt: skip


def console() -> Console:
    """The output; a pipe has no width of its own and gets a generous one."""
    terminal = sys.stdout.isatty()
    width = None if terminal or "COLUMNS" in os.environ else 110
    return Console(file=sys.stdout, width=width, highlight=False, soft_wrap=not terminal)


def show_prediction(trace: Trace, verdict: Verdict, critical: str, seconds: float) -> None:
    """Headline, paragraph, numbers per block, critical setting, assumptions, time."""
    out = console()
    _show_verdict(out, verdict)
    out.print()
    out.print(block_table(trace), soft_wrap=False)
    _show_lines(out, [critical] if critical else [], "")
    _show_lines(out, verdict.notes, "Assumed: ")
    out.print(Text(_closing(seconds), style="dim"))


def show_comparison(compared: Comparison, criticals: Sequence[str], seconds: float) -> None:
    """Both verdicts in one table, what differs in the descriptions, then the findings of each."""
    out = console()
    out.print(verdict_table(compared), soft_wrap=False)
    out.print()
    out.print(difference_table(compared), soft_wrap=False)
    for name, verdict, critical in zip(compared.names, compared.verdicts, criticals or ("", ""), strict=True):
        out.print()
        out.print(Text(f"{name}: {verdict.outcome.value}", style=f"bold {COLOURS[verdict.outcome.value]}"))
        for finding in verdict.findings:
            _show_lines(out, [finding.sentence, f"    What to do: {finding.remedy}"], "")
        _show_lines(out, verdict.extrapolated, "Extrapolated: ")
        _show_lines(out, [critical] if critical else [], "")
        _show_lines(out, verdict.notes, "Assumed: ")
    out.print(Text(_closing(seconds), style="dim"))


def _show_verdict(out: Console, verdict: Verdict) -> None:
    headline, *rest = str(verdict).splitlines()
    out.print(Text(headline, style=f"bold {COLOURS[verdict.outcome.value]}"))
    for line in rest:
        out.print(Text(line, style=SEVERITIES.get(line.split(" ")[0], "")))


def _show_lines(out: Console, lines: Iterable[str], prefix: str) -> None:
    for line in lines:
        out.print(Text(prefix + line))


def _closing(seconds: float) -> str:
    return f"{seconds:.1f} s, theory only. Exit code 0 fine, 1 risky, 2 will not train; --json for machines."


def block_table(trace: Trace) -> Table:
    """Rows at selected depths: the first blocks, the quarters, the last."""
    numbers = edgewise.view.block_numbers(trace)
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
    wanted = {0, 1, 2, depth // 4, depth // 2, 3 * depth // 4, depth}
    return sorted(block for block in wanted if block <= depth)


def _number(name: str, numbers: dict[str, Any], block: int) -> str:
    value = float(numbers[name][block])
    if not np.isfinite(value):
        return "∞" if value == np.inf else ""
    if name == "overlap":
        return overlap_text(value, float(numbers["separation"][block]))
    return f"{value:.2f}" if name == "attention_entropy" else f"{value:.3g}"


def overlap_text(overlap: float, separation: float) -> str:
    """Near one the difference is the news: 0.9871, but 1-3e-07."""
    return f"{overlap:.4f}" if separation >= 1e-3 or separation == 0 else f"1-{separation:.0e}"


def verdict_table(compared: Comparison) -> Table:
    """One column for each network."""
    colours = [COLOURS[verdict.outcome.value] for verdict in compared.verdicts]
    table = _table("", *(Text(name, style=c) for name, c in zip(compared.names, colours, strict=True)))
    columns = [_facts(t, v) for t, v in zip(compared.traces, compared.verdicts, strict=True)]
    for fact in columns[0]:
        table.add_row(fact, *(column[fact] for column in columns))
    return table


def _facts(trace: Trace, verdict: Verdict) -> dict[str, str]:
    numbers = edgewise.view.block_numbers(trace)
    relative = verdict.relative_gradient
    return {
        "outcome": verdict.outcome.value,
        "phase": verdict.phase.value,
        "blocks": str(verdict.depth),
        "angle exponent": _rate(verdict.angle.at_depth, verdict.angle.error),
        "  twice its second half": _signed(verdict.angle.change),
        "relative gradient exponent": "" if relative is None else _rate(relative.at_depth, relative.error),
        "  twice its second half ": "" if relative is None else _signed(relative.change),
        "raw gradient exponent": "" if verdict.gradient is None else _signed(verdict.gradient.at_depth, 4),
        "norm q, in and out": f"{numbers['norm'][0]:.3g} → {numbers['norm'][-1]:.3g}",
        "overlap, in and out": " → ".join(_number("overlap", numbers, i) for i in (0, -1)),
        "condensation ratio": "" if verdict.condensation is None else f"{verdict.condensation:.2f}",
        "found": ", ".join(f.kind.value.replace("_", " ") for f in verdict.findings) or "nothing",
    }


def _rate(value: float, error: float) -> str:
    return _signed(value, 4) + ("" if np.isnan(error) else f" ± {error:.4f}")


def _signed(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:+.{digits}f}"


def difference_table(compared: Comparison) -> Table:
    """The knobs in which the descriptions differ."""
    title = "they differ in" if compared.differences else "the descriptions are the same"
    table = _table(title, *compared.names)
    for knob, first, second in compared.differences:
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
