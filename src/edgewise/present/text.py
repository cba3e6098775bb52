"""A card as plain lines of a given width: headline, answer, sentences, tables, notes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from edgewise.nouns.card import Card, CardTable, Line

WIDTH, NARROWEST, NARROW = 88, 40, 60  # columns
SHOWN = 3  # fixes; all of them are in verdict.remedies
INDENT = "  "
THEN = "then, share that trained"  # heads the outcomes of fixes: `trains, 98 %`
GLUE = "\x00"  # stands between a number and its % while lines are broken


def as_text(card: Card, width: int = WIDTH) -> str:
    """Return the card as text, the way `print(verdict)` shows it."""
    return "\n".join(line.text for line in lines(card, width))


def lines(card: Card, width: int = WIDTH) -> Iterator[Line]:
    """Return the whole card line by line; a card without a source has no headline."""
    width = max(width, NARROWEST)
    if card.source:
        yield from headline(card.title, card.source, width)
    yield from _answer(card, width)
    yield Line("")
    yield from paragraphs((*card.warnings, *card.sentences), width)
    if card.advice:
        yield Line("")
        yield from wrapped(f"What to do: {card.advice}", width, INDENT)
    for table in card.tables:
        yield Line("")
        yield from table_lines(table, width)
    if card.notes:
        yield Line("")
    for note in card.notes:
        yield from (line._replace(style="dim") for line in wrapped(note, width, ""))


def headline(title: str, source: str, width: int) -> Iterator[Line]:
    """Yield the title on the left, the source on the right, or below if that is too long."""
    if len(title) + 2 + len(source) <= width:
        yield Line(title + source.rjust(width - len(title)), "bold", len(title))
    else:
        yield from (line._replace(style="bold") for line in wrapped(title, width, "", INDENT))
        yield Line(source)


def _answer(card: Card, width: int) -> Iterator[Line]:
    """Yield the answer in capitals, numbers as they are, with the first reason beside it and the others below."""
    answer = " ".join(
        word if any(map(str.isdigit, word)) else word.upper() for word in card.answer.split(" ")
    )
    first, *others = card.reasons or ("",)
    broken = list(wrapped(f"{answer}  {first}".rstrip(), width, "", INDENT))
    yield Line(broken[0].text, card.outcome.value, len(answer))
    yield from broken[1:]
    for reason in others:
        yield from wrapped(reason, width, "", INDENT)


def paragraphs(sentences: Iterable[str], width: int) -> Iterator[Line]:
    """Yield every sentence on lines of its own, indented."""
    for sentence in sentences:
        yield from wrapped(sentence, width, INDENT)


def table_lines(table: CardTable, width: int) -> Iterator[Line]:
    """Yield a table in the layout of its kind."""
    layouts = {"fixes": fixes, "numbers": _numbers, "rates": _rates, "alarms": _records}
    yield from layouts.get(table.kind, _columns)(table, width)


def fixes(table: CardTable, width: int) -> Iterator[Line]:
    """Yield the first changes, what each leads to and what it means; one below the other if they do not fit."""
    rows = table.rows[:SHOWN]
    label, result = (max(len("Fix"), *(len(row[k]) for row in rows)) for k in (0, 1))
    if 4 + label + 3 + max(result, len(THEN)) > width:
        yield Line(f"{INDENT}Fix", "bold")
        for change, then, _ in rows:
            yield from wrapped(change, width, 2 * INDENT)
            yield from wrapped(f"then: {then}", width, 3 * INDENT)
        return
    yield Line(f"{INDENT}{'Fix'.ljust(label + 2)}   {THEN}", "bold")
    for change, then, note in rows:
        row = f"{2 * INDENT}{change.ljust(label)}   {then.ljust(result)}"
        whole = f"{row}   {note}"
        yield Line((whole if len(whole) <= width else row).rstrip())


def _numbers(table: CardTable, width: int) -> Iterator[Line]:
    """Numbers to the right of their names; on a narrow screen both ends and the middle."""
    rows = [table.header, *table.rows]
    if width < NARROW and len(table.header) == 6:
        rows = [(row[0], *row[1::2]) for row in rows]
    first = max(len(row[0]) for row in rows)
    widths = [max(7, *(len(row[i]) for row in rows)) for i in range(1, len(rows[0]))]
    for name, *cells in rows:
        numbers = "".join(f" {cell.rjust(w)}" for cell, w in zip(cells, widths, strict=True))
        yield Line(INDENT + name.ljust(first) + numbers)


def _rates(table: CardTable, width: int) -> Iterator[Line]:
    """Name, number and a remark that is broken beside them."""
    rows = [table.header, *table.rows]
    first, second = (max(len(row[k]) for row in rows) for k in (0, 1))
    for name, number, remark in rows:
        row = f"{INDENT}{name.ljust(first)}  {number.rjust(second)}  "
        yield from wrapped(remark, width, row, " " * len(row)) if remark else [Line(row.rstrip())]


def _records(table: CardTable, width: int) -> Iterator[Line]:
    """Yield a paragraph for every row: its name, then each cell after its header."""
    for name, *cells in table.rows:
        yield from (line._replace(style="bold") for line in wrapped(name, width, INDENT))
        for header, cell in zip(table.header[1:], cells, strict=True):
            yield from wrapped(f"{header}: {cell}", width, 2 * INDENT)


def _columns(table: CardTable, _: int) -> Iterator[Line]:
    """Columns side by side, the last one as long as it is: for text that is copied or searched."""
    rows = [table.header, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.header) - 1)]
    for *cells, last in rows:
        yield Line(
            "  ".join([*(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)), last]).rstrip()
        )


def columns(depth: int, count: int) -> list[int]:
    """Return evenly spaced blocks from the input to the last.

    >>> columns(48, 5), columns(2, 5)
    ([0, 12, 24, 36, 48], [0, 1, 2])
    """
    return sorted({round(depth * k / (count - 1)) for k in range(count)})


def wrapped(sentence: str, width: int, indent: str, further: str | None = None) -> Iterator[Line]:
    """Break a sentence into lines, never between a number and its per-cent sign."""
    glued = sentence.replace(" %", f"{GLUE}%")
    further = indent + INDENT if further is None else further
    broken = textwrap.wrap(
        glued,
        width,
        initial_indent=indent,
        subsequent_indent=further,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return (Line(line.replace(GLUE, " ")) for line in broken)
