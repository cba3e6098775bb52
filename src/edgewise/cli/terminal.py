"""Verdicts for a person at a terminal: colour only there, the same words everywhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

from rich.console import Console
from rich.text import Text

from edgewise import screen
from edgewise.audit.finding import AuditFinding
from edgewise.cli.tables import block_table, difference_table, measured_table, verdict_table
from edgewise.cli.weights import leading, listing
from edgewise.explanation import details, explain
from edgewise.judgement.comparison import Comparison
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Verdict
from edgewise.screen import Line
from edgewise.view.measured import rows_with_errors

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
PLAIN = {
    "·": "-",
    "±": "+/-",
    "→": "->",
    "∞": "inf",
    "–": "-",
    "²": "^2",
}  # for an output that has no such letters
FURTHER = ("--explain, --verbose, ", "--verbose, ", "")  # what each detail leaves to be asked for


class Detail(IntEnum):
    """How much is shown."""

    SCREEN = 0
    EXPLAIN = 1
    VERBOSE = 2


def console() -> Console:
    """The output, without colour where it is not a terminal or NO_COLOR is set."""
    return Console(file=sys.stdout, width=_width(sys.stdout.isatty()), highlight=False, soft_wrap=True)


def _width(terminal: bool) -> int:
    """COLUMNS where it says something, else the terminal's; never so narrow that numbers would be cut."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and len(columns) < 6 else 0
    if not width:
        width = min(shutil.get_terminal_size((PIPE, 24)).columns, 100) if terminal else PIPE
    return max(screen.NARROWEST, width)


def show_prediction(
    trace: Trace, verdict: Verdict, critical: Sequence[str], seconds: float, detail: Detail = Detail.SCREEN
) -> None:
    """The screen of the verdict, the critical setting where it was asked for, then the numbers."""
    out = console()
    show(out, screen.lines(verdict, out.width, seconds, more="" if detail else _more(detail, "predict")))
    _show_sentences(out, critical)
    _show_detail(out, verdict, detail)
    if detail >= Detail.VERBOSE:
        out.print()
        out.print(block_table(trace), soft_wrap=False)
    _show_end(out, detail, "predict")


def show_measurement(
    trace: Trace,
    verdict: Verdict,
    theory: Trace | None,
    audit: Sequence[AuditFinding] | str,
    seconds: float,
    detail: Detail = Detail.SCREEN,
) -> None:
    """The screen of the verdict, errors in the weights first; then the numbers beside theory and the whole audit."""
    out = console()
    more = "" if detail else _more(detail, "measure")
    show(out, screen.lines(verdict, out.width, seconds, lead=leading(audit), more=more))
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
    """Both answers in one table, what differs in the descriptions, then the fixes of each."""
    out = console()
    out.print(verdict_table(comparison, detail >= Detail.EXPLAIN), soft_wrap=False)
    out.print()
    out.print(difference_table(comparison), soft_wrap=False)
    for name, verdict, critical in zip(
        comparison.names, comparison.verdicts, criticals or ("", ""), strict=True
    ):
        out.print()
        show(out, [Line(f"{name}: {verdict.outcome.value}", verdict.outcome.value)])
        _show_sentences(out, (verdict.departure, *screen.words.sentences(verdict)))
        show(out, screen.fixes(verdict, out.width))
        _show_sentences(out, [critical])
        _show_detail(out, verdict, detail)
    out.print()
    ending = _wrapped(out, _more(detail, "predict"))
    show(out, [Line(f"theory, {seconds:.1f} s", "dim"), *(Line(line.text, "dim") for line in ending)])


def _more(detail: Detail, page: str) -> str:
    """What the answer is about, and where there is more."""
    return f"About the start of training only. More: {FURTHER[detail]}docs/{page}.md"


def _show_end(out: Console, detail: Detail, page: str) -> None:
    """The last line of a screen with numbers, which then do not follow it."""
    if detail:
        out.print()
        show(out, (Line(line.text, "dim") for line in _wrapped(out, _more(detail, page))))


def _show_detail(out: Console, verdict: Verdict, detail: Detail) -> None:
    """A sentence on each number, then the rest of them."""
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
    """The text in letters that the output has."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        for letter, plain in PLAIN.items():
            text = text.replace(letter, plain)
    return text
