"""Verdicts for a person at a terminal: color only there, the same words everywhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import edgewise.present.text as screen
from edgewise.audit.finding import AuditFinding, NotAudited
from edgewise.judgement.comparison import Comparison
from edgewise.nouns.card import Line
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Verdict, per_cent
from edgewise.present.cards import leading, listing, verdict_card
from edgewise.present.json_documents import Rows, RowsWithErrors, block_numbers, rows_with_errors
from edgewise.present.wording import details, explain

PIPE = 88  # columns of what is not a terminal
STYLES = {
    "trains": "bold green",
    "risky": "bold yellow",
    "undecided": "bold yellow",
    "will not train": "bold red",
    "fails": "red",
    "note": "cyan",
    "bold": "bold",
    "dim": "dim",
}
# for an output that has no such letters
PLAIN = {"·": "-", "±": "+/-", "→": "->", "∞": "inf", "–": "-", "²": "^2"}
FURTHER = ("--explain, --verbose, ", "--verbose, ", "")  # what each detail leaves to be asked for


class Detail(IntEnum):
    """How much is shown."""

    SCREEN = 0
    EXPLAIN = 1
    VERBOSE = 2


def console() -> Console:
    """Return the output, without color if it is not a terminal or NO_COLOR is set."""
    return Console(file=sys.stdout, width=_width(sys.stdout.isatty()), highlight=False, soft_wrap=True)


def _width(terminal: bool) -> int:
    """COLUMNS if it says something, else the terminal's; never so narrow that numbers would be cut."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and len(columns) < 6 else 0
    if not width:
        width = min(shutil.get_terminal_size((PIPE, 24)).columns, 100) if terminal else PIPE
    return max(screen.NARROWEST, width)


def show_prediction(
    trace: Trace, verdict: Verdict, critical: Sequence[str], seconds: float, detail: Detail = Detail.SCREEN
) -> None:
    """Print the screen of the verdict, the critical setting if it was asked for, then the numbers."""
    out = console()
    settings = not detail and any(not remedy.same_architecture for remedy in verdict.remedies)
    more = "" if detail else _more(detail, "predict", settings)
    show(out, screen.lines(verdict_card(verdict, seconds=seconds, more=more), out.width))
    _show_sentences(out, critical)
    _show_detail(out, verdict, detail)
    if detail >= Detail.VERBOSE:
        out.print()
        # One row per block; of many blocks the first, the quarters and the last.
        numbers = block_numbers(trace)
        shown = [name for name in COLUMNS if name in numbers and np.isfinite(numbers[name]).any()]
        table = _table("block", *(COLUMNS[name] for name in shown))
        for block in selected(trace.depth):
            cells = [_number(name, numbers, block) for name in shown]
            table.add_row("input" if block == 0 else str(block), *cells)
        out.print(table, soft_wrap=False)
    _show_end(out, detail, "predict")


def show_measurement(
    trace: Trace,
    verdict: Verdict,
    theory: Trace | None,
    audit: Sequence[AuditFinding] | NotAudited,
    seconds: float,
    detail: Detail = Detail.SCREEN,
) -> None:
    """Print the screen of the verdict, errors in the weights first; the numbers beside theory; the audit."""
    out = console()
    more = "" if detail else _more(detail, "measure")
    card = verdict_card(verdict, seconds=seconds, lead=leading(audit), more=more)
    show(out, screen.lines(card, out.width))
    _show_detail(out, verdict, detail)
    if detail >= Detail.EXPLAIN:
        _show_sentences(out, listing(audit))
    if detail >= Detail.VERBOSE:
        out.print()
        predicted = {} if theory is None else rows_with_errors(theory)
        out.print(measured_table(rows_with_errors(trace), predicted, trace.depth), soft_wrap=False)
    _show_end(out, detail, "measure")


def show_comparison(
    comparison: Comparison, criticals: Sequence[str], seconds: float, detail: Detail = Detail.SCREEN
) -> None:
    """Print both answers in one table, what differs in the descriptions, then the fixes of each."""
    out = console()
    out.print(verdict_table(comparison, detail >= Detail.EXPLAIN), soft_wrap=False)
    out.print()
    out.print(difference_table(comparison), soft_wrap=False)
    for name, verdict, critical in zip(
        comparison.names, comparison.verdicts, criticals or ("", ""), strict=True
    ):
        out.print()
        show(out, [Line(f"{name}: {verdict.outcome.value}", verdict.outcome.value)])
        card = verdict_card(verdict)
        _show_sentences(out, card.sentences)
        fixes = [table for table in card.tables if table.kind == "fixes"]
        advice = [f"What to do: {card.advice}"] if card.advice else []
        if fixes or advice:
            out.print()
        show(out, (line for table in fixes for line in screen.table_lines(table, out.width)))
        show(out, screen.paragraphs(advice, out.width))
        _show_sentences(out, [critical])
        _show_detail(out, verdict, detail)
    out.print()
    ending = _wrapped(out, f"About the start of training only. {_more(detail, 'predict')}")
    show(out, [Line(f"theory, {seconds:.1f} s", "dim"), *(Line(line.text, "dim") for line in ending)])


def _more(detail: Detail, page: str, settings: bool = False) -> str:
    """Return where there is more; `settings` where some are among the fixes."""
    return f"More: {'--set NAME=VALUE tries a fix, ' * settings}{FURTHER[detail]}docs/{page}.md"


def _show_end(out: Console, detail: Detail, page: str) -> None:
    """Print the last line of a screen with numbers, which then do not follow it."""
    if detail:
        out.print()
        show(out, (Line(line.text, "dim") for line in _wrapped(out, _more(detail, page))))


def _show_detail(out: Console, verdict: Verdict, detail: Detail) -> None:
    """Print a sentence on each number, then the rest of them."""
    for wanted, lines in ((Detail.EXPLAIN, explain), (Detail.VERBOSE, details)):
        if detail >= wanted:
            out.print()
            show(
                out,
                (Line(part.text, line.style) for line in lines(verdict) for part in _wrapped(out, line.text)),
            )


def _show_sentences(out: Console, sentences: Iterable[str]) -> None:
    for sentence in sentences:
        show(out, _wrapped(out, sentence))


def _wrapped(out: Console, sentence: str) -> Iterator[Line]:
    indent = " " * (len(sentence) - len(sentence.lstrip()))
    return screen.wrapped(sentence.lstrip(), out.width, indent)


def show(out: Console, lines: Iterable[Line]) -> None:
    for line in lines:
        text = Text(printable(line.text))
        if style := STYLES.get(line.style):
            text.stylize(style, 0, len(line.text) if line.length is None else line.length)
        out.print(text)


def printable(text: str) -> str:
    """Return the text in letters that the output has."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        for letter, plain in PLAIN.items():
            text = text.replace(letter, plain)
    return text


COLORS = {"trains": "green", "risky": "yellow", "undecided": "yellow", "will not train": "red"}
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


def selected(depth: int) -> list[int]:
    """Block counts worth a row: all of a few, else 0, 1, 2, the quarters and the end.

    >>> selected(3), selected(48)
    ([0, 1, 2, 3], [0, 1, 2, 12, 24, 36, 48])
    """
    if depth <= ALL:
        return list(range(depth + 1))
    return sorted({0, 1, 2, depth // 4, depth // 2, 3 * depth // 4, depth})


def _number(name: str, numbers: Rows, block: int) -> str:
    value = float(numbers[name][block])
    if not np.isfinite(value):
        return "∞" if value == np.inf else ""
    if name == "overlap":
        return overlap_text(value, float(numbers["separation"][block]))
    return f"{value:.2f}" if name == "attention_entropy" else f"{value:.3g}"


def measured_table(measured: RowsWithErrors, theory: RowsWithErrors, depth: int) -> Table:
    """Measured with its standard error, and predicted, at selected depths."""
    names = [name for name in MEASURED_COLUMNS if name in measured and np.isfinite(measured[name][0]).any()]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("block", no_wrap=True)
    for name in names:
        table.add_column(MEASURED_COLUMNS[name], justify="right")
        table.add_column("theory", justify="right", style="dim")
    for block in selected(depth):
        cells = []
        for name in names:
            value, error = (float(row[block]) for row in measured[name])
            predicted = _with_error(name, float(theory[name][0][block]), 0.0) if name in theory else ""
            cells += [_with_error(name, value, error), predicted]
        table.add_row("input" if block == 0 else str(block), *cells)
    return table


def _with_error(name: str, value: float, error: float) -> str:
    if not np.isfinite(value):
        return "∞" if value == np.inf else ""
    shown = overlap_text(value, 1 - value) if name == "overlap" else f"{value:.3g}"
    return shown + (f" ± {error:.1g}" if np.isfinite(error) and error > 0 else "")


def overlap_text(overlap: float, separation: float) -> str:
    """Near one the difference is the news: 0.9871, but 1-3e-07."""
    return f"{overlap:.4f}" if separation >= 1e-3 or separation == 0 else f"1-{separation:.0e}"


def verdict_table(comparison: Comparison, exponents: bool = False) -> Table:
    """Return one column for each network; `exponents` adds the rates behind the answer."""
    colors = [COLORS[verdict.outcome.value] for verdict in comparison.verdicts]
    table = _table("", *(Text(name, style=c) for name, c in zip(comparison.names, colors, strict=True)))
    columns = [
        _facts(trace, verdict) | (_exponents(verdict) if exponents else {})
        for trace, verdict in zip(comparison.traces, comparison.verdicts, strict=True)
    ]
    for fact in dict.fromkeys(fact for column in columns for fact in column):
        table.add_row(fact, *(column.get(fact, "") for column in columns))
    return table


def _facts(trace: Trace, verdict: Verdict) -> dict[str, str]:
    """Return what anyone can compare."""
    numbers, profile = block_numbers(trace), verdict.profile
    chance = "" if verdict.probability is None else per_cent(verdict.probability.value)
    return {
        "outcome": verdict.outcome.value,
        "such networks that trained": chance,
        "depth": str(verdict.depth),
        "overlap, in and out": " → ".join(_number("overlap", numbers, i) for i in (0, -1)),
        "gradient, first of last": f"{profile.gradient[0]:.3g}" if profile.gradient else "",
        "tokens attended to": "" if profile.keys is None else f"{profile.keys:.0f}",
    }


def _exponents(verdict: Verdict) -> dict[str, str]:
    relative = verdict.relative_gradient
    ratio = None if verdict.attention is None else verdict.attention.condensation
    return {
        "phase": verdict.phase.value,
        "angle exponent": _rate(verdict.angle.at_depth, verdict.angle.error),
        "  change over depth": _signed(verdict.angle.change),
        "relative gradient exponent": "" if relative is None else _rate(relative.at_depth, relative.error),
        "  change over depth ": "" if relative is None else _signed(relative.change),
        "raw gradient exponent": "" if verdict.gradient is None else _signed(verdict.gradient.at_depth, 4),
        "condensation ratio": "" if ratio is None else f"{ratio:.2f}",
        "findings": ", ".join(f.kind.value.replace("_", " ") for f in verdict.findings) or "none",
    }


def _rate(value: float, error: float) -> str:
    return _signed(value, 4) + ("" if np.isnan(error) else f" ± {error:.4f}")


def _signed(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:+.{digits}f}"


def difference_table(comparison: Comparison) -> Table:
    """Return the knobs in which the descriptions differ."""
    title = "they differ in" if comparison.differences else "the descriptions are the same"
    table = _table(title, *comparison.names)
    for knob, first, second in comparison.differences:
        table.add_row(knob, _value(first), _value(second))
    return table


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"{len(value)} values" if len(value) > 3 else ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def _table(first: str, *others: str | Text) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, justify="left", no_wrap=True)
    for other in others:
        table.add_column(other, justify="right")
    return table
