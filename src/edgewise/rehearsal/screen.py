"""The screen of a rehearsal: the rate to use, what to expect, what every rate did; plain lines of a given width."""

from __future__ import annotations

import math
from collections.abc import Iterator

from edgewise.rehearsal.outlook import Outlook, Prospect
from edgewise.rehearsal.rate import Rate, Rehearsal, cost, edge, in_words
from edgewise.screen import INDENT, NARROWEST, Line, wrapped

STYLES = {Prospect.TRAINS: "trains", Prospect.DEAD: "will not train"}  # all others are undecided


def lines(rate: Rate, outlook: Outlook, width: int) -> Iterator[Line]:
    """Answer, sentences, a table of the rates, and what it cost."""
    width = max(width, NARROWEST)
    yield from _answer(rate, outlook, width)
    yield Line("")
    notes = [f"{note[:1].upper()}{note[1:]}." for note in rate.notes]
    for sentence in (outlook.sentence, *edge(rate), *notes, outlook.cure):
        yield from wrapped(sentence, width, INDENT)
    yield Line("")
    yield from table(rate, width)
    yield Line("")
    yield from (line._replace(style="dim") for line in wrapped(cost(rate), width, ""))


def _answer(rate: Rate, outlook: Outlook, width: int) -> Iterator[Line]:
    warmup = f"with {rate.warmup} steps of warm-up" if rate.warmup else "without warm-up"
    nothing = "NO RATE NAMED" if outlook.prospect is Prospect.UNDECIDED else "NO RATE LEARNS"
    word = nothing if outlook.rate is None else f"USE {in_words(outlook.rate)}"
    span = (
        ""
        if outlook.rate is None or rate.low is None or rate.high is None
        else (f"({in_words(rate.low)} to {in_words(rate.high)})  ")
    )
    broken = list(wrapped(f"{word}  {span}{rate.optimizer}, {warmup}", width, "", INDENT))
    yield broken[0]._replace(style=STYLES.get(outlook.prospect, "undecided"), length=len(word))
    yield from broken[1:]


def table(rate: Rate, width: int) -> Iterator[Line]:
    """A row for every rate: the loss on batches that it did not train on, and why it is too large where it is."""
    rows = [("rate", "loss", "")] + [("start", f"{rate.start.loss:#.3g}", "")]
    rows += [(in_words(r.rate), _loss(r), _fate(r)) for r in rate.rehearsals]
    first, second = (max(len(row[k]) for row in rows) for k in (0, 1))
    for name, loss, fate in rows:
        row = f"{INDENT}{name.ljust(first)}  {loss.rjust(second)}  "
        broken = list(wrapped(fate, width, row, " " * len(row))) if fate else [Line(row.rstrip())]
        yield from broken


def _loss(rehearsal: Rehearsal) -> str:
    return f"{rehearsal.loss:#.3g}" if math.isfinite(rehearsal.loss) else "none"


def _fate(rehearsal: Rehearsal) -> str:
    return "" if rehearsal.reason is None else f"{rehearsal.reason}, by step {rehearsal.left_at}"
