"""Tables of the shell: numbers per block, measured beside predicted, two networks side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from edgewise import view, words
from edgewise.judgement.comparison import Comparison
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Verdict
from edgewise.view.measured import Rows

COLOURS = {"trains": "green", "risky": "yellow", "undecided": "yellow", "will not train": "red"}
COLUMNS = {
    "norm": "norm q",
    "overlap": "overlap",
    "gradient_norm": "gradient",
    "relative_gradient_norm": "relative",
    "attention_entropy": "entropy",
}
MEASURED_COLUMNS = {
    "norm": "norm q",
    "overlap": "overlap",
    "relative_gradient_norm": "relative gradient",
    "attention_entropy": "entropy",
}
ALL = 24  # blocks of which each has a row


def block_table(trace: Trace) -> Table:
    """One row per block; of many blocks the first, the quarters and the last."""
    numbers = view.block_numbers(trace)
    shown = [name for name in COLUMNS if name in numbers and np.isfinite(numbers[name]).any()]
    table = _table("block", *(COLUMNS[name] for name in shown))
    for block in selected(trace.depth):
        cells = [_number(name, numbers, block) for name in shown]
        table.add_row("input" if block == 0 else str(block), *cells)
    return table


def selected(depth: int) -> list[int]:
    """Block counts worth a row: all of a few, else 0, 1, 2, the quarters and the end.

    >>> selected(3), selected(48)
    ([0, 1, 2, 3], [0, 1, 2, 12, 24, 36, 48])
    """
    if depth <= ALL:
        return list(range(depth + 1))
    return sorted({0, 1, 2, depth // 4, depth // 2, 3 * depth // 4, depth})


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


def verdict_table(comparison: Comparison, exponents: bool = False) -> Table:
    """One column for each network; `exponents` adds the rates behind the answer."""
    colours = [COLOURS[verdict.outcome.value] for verdict in comparison.verdicts]
    table = _table("", *(Text(name, style=c) for name, c in zip(comparison.names, colours, strict=True)))
    columns = [
        _facts(trace, verdict) | (_exponents(verdict) if exponents else {})
        for trace, verdict in zip(comparison.traces, comparison.verdicts, strict=True)
    ]
    for fact in dict.fromkeys(fact for column in columns for fact in column):
        table.add_row(fact, *(column.get(fact, "") for column in columns))
    return table


def _facts(trace: Trace, verdict: Verdict) -> dict[str, str]:
    """What anyone can compare."""
    numbers, profile = view.block_numbers(trace), verdict.profile
    chance = "" if verdict.probability is None else words.per_cent(verdict.probability.value)
    return {
        "outcome": verdict.outcome.value,
        "such networks that trained": chance,
        "depth": str(verdict.depth),
        "overlap, in and out": " → ".join(_number("overlap", numbers, i) for i in (0, -1)),
        "gradient, first of last": f"{profile.gradient[0]:.3g}" if profile.gradient else "",
        "tokens attention looks at": "" if profile.keys is None else f"{profile.keys:.0f}",
    }


def _exponents(verdict: Verdict) -> dict[str, str]:
    relative = verdict.relative_gradient
    return {
        "phase": verdict.phase.value,
        "angle exponent": _rate(verdict.angle.at_depth, verdict.angle.error),
        "  change over depth": _signed(verdict.angle.change),
        "relative gradient exponent": "" if relative is None else _rate(relative.at_depth, relative.error),
        "  change over depth ": "" if relative is None else _signed(relative.change),
        "raw gradient exponent": "" if verdict.gradient is None else _signed(verdict.gradient.at_depth, 4),
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
