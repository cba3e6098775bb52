"""A rehearsal as a picture: fresh loss against rate with advice and edge, and stream and tokens at each rate."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from edgewise.nouns.card import Line
from edgewise.nouns.figure import Curve, Panel, Sheet
from edgewise.present.text import INDENT, NARROWEST, wrapped
from edgewise.rehearsal.prospect import Outlook, Prospect
from edgewise.rehearsal.rate import Rate, Rehearsal, cost, edge, format_rate


def learning_rates(rate: Rate) -> Sheet:
    """Three panels over the rate: loss after a rehearsal, change of the last stream per step, separation of tokens."""
    scale = f"{rate.optimizer}, {len(rate.rehearsals)} rehearsals of {rate.steps} steps on copies, {rate.passes} steps"
    return Sheet(_title(rate), (_loss(rate), _stream(rate), _separation(rate)), scale)


def _title(rate: Rate) -> str:
    if rate.best is None or rate.low is None or rate.high is None:
        return "No rate that was tried learned"
    edge = f", edge {format_rate(rate.edge)}" if rate.edge is not None else ""
    return f"Use {format_rate(rate.best)} ({format_rate(rate.low)} to {format_rate(rate.high)}){edge}"


def _loss(rate: Rate) -> Panel:
    finite = [r for r in rate.rehearsals if math.isfinite(r.loss)]
    top = rate.start.loss + 0.3 * abs(rate.start.loss)
    curves = [_points("learned", [r for r in finite if r.reason is None], "loss", 0, "points", top)]
    curves.append(
        _points("too large", [r for r in rate.rehearsals if r.reason is not None], "loss", 1, "hollow", top)
    )
    beyond = rate.beyond
    note = "no rate was too large" if beyond is None else f"at {format_rate(beyond.rate)}: {beyond.reason}"
    lines = tuple(x for x in (rate.low, rate.best, rate.high, rate.edge) if x is not None)
    note += "\ndotted: range, advice, edge; across: loss at the start"
    shown = tuple(curve for curve in curves if len(curve.x))
    levels = (rate.start.loss,) if rate.guess is None else (rate.start.loss, rate.guess)
    note += "" if rate.guess is None else " and that of guessing"
    return Panel(
        "loss on fresh batches",
        "learning rate",
        "loss after the rehearsal",
        shown,
        note,
        log_x=True,
        levels=levels,
        places=lines,
    )


def _points(label: str, rows: list[Rehearsal], name: str, group: int, role: str, top: float) -> Curve:
    values = [getattr(r, name) for r in rows]
    return Curve(
        label, np.array([r.rate for r in rows]), np.minimum(np.array(values, dtype=float), top), group, role
    )


def _stream(rate: Rate) -> Panel:
    rows = [r for r in rate.rehearsals if r.step_change is not None and r.step_change > 0]
    curve = Curve(
        "stream", np.array([r.rate for r in rows]), np.array([r.step_change for r in rows], dtype=float), 2
    )
    at = rate.at_edge
    note = (
        ""
        if at is None or at.step_change is None
        else f"{at.step_change:.2g} at the largest rate that learned"
    )
    return Panel(
        "last stream, change per step",
        "learning rate",
        "share of its own size",
        (curve,) if rows else (),
        note,
        log_x=True,
        log_y=True,
        legend=False,
    )


def _separation(rate: Rate) -> Panel:
    rows = [r for r in rate.rehearsals if r.separation is not None and r.separation > 0]
    curve = Curve(
        "tokens", np.array([r.rate for r in rows]), np.array([r.separation for r in rows], dtype=float), 3
    )
    before = rate.start.separation
    note = "tokens were not looked at" if before is None or not rows else f"across: {before:.2g} at the start"
    return Panel(
        "separation of tokens",
        "learning rate",
        "mean of 1 − cosine",
        (curve,) if rows else (),
        note,
        log_x=True,
        log_y=True,
        legend=False,
        levels=(before,) if before and rows else (),
    )


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
    word = nothing if outlook.rate is None else f"USE {format_rate(outlook.rate)}"
    span = (
        ""
        if outlook.rate is None or rate.low is None or rate.high is None
        else (f"({format_rate(rate.low)} to {format_rate(rate.high)})  ")
    )
    broken = list(wrapped(f"{word}  {span}{rate.optimizer}, {warmup}", width, "", INDENT))
    yield broken[0]._replace(style=STYLES.get(outlook.prospect, "undecided"), length=len(word))
    yield from broken[1:]


def table(rate: Rate, width: int) -> Iterator[Line]:
    """A row for every rate: the loss on batches that it did not train on, and why it is too large where it is."""
    rows = [("rate", "loss", "")] + [("start", f"{rate.start.loss:#.3g}", "")]
    rows += [(format_rate(r.rate), _fresh_loss(r), _fate(r)) for r in rate.rehearsals]
    first, second = (max(len(row[k]) for row in rows) for k in (0, 1))
    for name, loss, fate in rows:
        row = f"{INDENT}{name.ljust(first)}  {loss.rjust(second)}  "
        broken = list(wrapped(fate, width, row, " " * len(row))) if fate else [Line(row.rstrip())]
        yield from broken


def _fresh_loss(rehearsal: Rehearsal) -> str:
    return f"{rehearsal.loss:#.3g}" if math.isfinite(rehearsal.loss) else "none"


def _fate(rehearsal: Rehearsal) -> str:
    return "" if rehearsal.reason is None else f"{rehearsal.reason}, by step {rehearsal.left_at}"
