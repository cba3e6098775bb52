"""The card of a learning rate, and its figure: fresh loss, change of the stream and separation at each rate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edgewise.nouns.card import Card, CardTable, Curve, Panel
from edgewise.nouns.verdict import Outcome
from edgewise.present.figures import Sheet
from edgewise.present.wording import whole_sentence
from edgewise.rehearsal.prospect import Outlook, Prospect, outlook
from edgewise.rehearsal.rate import Rate, Rehearsal, cost, edge, format_rate, own


def learning_rates(rate: Rate) -> Sheet:
    """Return three panels over the rate: fresh loss, change of the last stream per step, separation of tokens."""
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
    at = rate.at_edge
    seen = None if at is None else at.step_change
    note = "" if seen is None else f"{seen:.2g} at the largest rate that learned"
    panel = _measured(rate, "step_change", "stream", 2)
    return replace(panel, title="last stream, change per step", y_label="share of its own size", note=note)


def _separation(rate: Rate) -> Panel:
    before, panel = rate.start.separation, _measured(rate, "separation", "tokens", 3)
    seen = before if panel.curves else None
    note = "tokens were not inspected" if seen is None else f"across: {seen:.2g} at the start"
    levels = (seen,) if seen else ()
    title = "separation of tokens"
    return replace(panel, title=title, y_label="mean of 1 − cosine", note=note, levels=levels)


def _measured(rate: Rate, name: str, label: str, group: int) -> Panel:
    """Return a positive number that the rehearsals measured, over the rate."""
    pairs = [(each.rate, value) for each in rate.rehearsals if (value := getattr(each, name) or 0.0) > 0]
    x, y = np.array(pairs, dtype=float).reshape(-1, 2).T
    curves = (Curve(label, x, y, group),) if pairs else ()
    return Panel("", "learning rate", "", curves, log_x=True, log_y=True, legend=False)


OUTCOMES = {Prospect.TRAINS: Outcome.TRAINS, Prospect.DEAD: Outcome.FAILS}  # all others are undecided


def rate_card(rate: Rate, prospect: Outlook | None = None) -> Card:
    """Return the rate to use, what to expect, where the edge is, what every rate did and what it cost.

    prospect  from `edgewise.rehearsal.outlook`; by default that of the rate without a verdict on the start
    """
    forecast = outlook(rate) if prospect is None else prospect
    warmup = f"with {rate.warmup} steps of warm-up" if rate.warmup else "without warm-up"
    nothing = "no rate named" if forecast.prospect is Prospect.UNDECIDED else "no rate learns"
    span = ""
    if forecast.rate is not None and rate.low is not None and rate.high is not None:
        span = f"({format_rate(rate.low)} to {format_rate(rate.high)})  "
    notes = map(whole_sentence, rate.notes)
    rows = [("start", f"{rate.start.loss:#.3g}", "")]
    for each in rate.rehearsals:
        loss = f"{each.loss:#.3g}" if math.isfinite(each.loss) else "none"
        fate = "" if each.reason is None else f"{each.reason}, by step {each.left_at}"
        rows.append((format_rate(each.rate), loss, fate))
    return Card(
        "Learning rate",
        nothing if forecast.rate is None else f"use {format_rate(forecast.rate)}",
        OUTCOMES.get(forecast.prospect, Outcome.UNDECIDED),
        reasons=(f"{span}{rate.optimizer}, {warmup}",),
        sentences=tuple(filter(None, (*own(rate), forecast.sentence, *edge(rate), *notes, forecast.cure))),
        tables=(CardTable(("rate", "loss", ""), tuple(rows), "rates"),),
        figures=learning_rates(rate).panels,
        notes=(cost(rate),),
    )
