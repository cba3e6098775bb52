"""The report of a watched run: its alarms with their paragraphs, its curves, what it was, and the command."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgewise.files import Document
from edgewise.monitor.alarm import MEANING, Alarm, folded
from edgewise.monitor.read_run import Run, ended, unseen_of_events
from edgewise.monitor.run_folder import RunRows
from edgewise.nouns.card import Card, CardTable, Curve, Panel
from edgewise.nouns.verdict import Outcome, finite
from edgewise.present import html, run_files
from edgewise.present.run_files import FIRST, picture

CURVES = (
    "loss",
    "gradient_norm",
    "update_ratio",
    "learning_rate",
    "stream_change_of_edge",
    "separation_of_edge",
)
CAPTION = (
    "Lines: the run; of a number that every block has, the block that is worst at that step. Upright dashes: alarms. "
    "A long run is drawn with fewer points, each the worst of its rows. Blocks are counted from 0."
)


@dataclass(frozen=True)
class RunSubject:
    """Everything that a report says of one process of a run."""

    name: str
    about: Document
    story: Document  # how far the run is
    cards: Sequence[Document]  # alarms, as the explorer shows them
    raised: int  # alarms, also those beyond the shown
    curves: Sequence[Document]  # each with its steps
    rows: int
    unseen: Sequence[str] = ()  # what the monitor could not see
    command: str = ""

    @property
    def headline(self) -> str:
        if not self.raised and self.rows and self.unseen:
            return "Not enough was seen to say no alarm"
        if not self.raised:
            return "No alarm" if self.rows else "No row yet"
        alarms = "1 alarm" if self.raised == 1 else f"{count(self.raised)} alarms"
        return f"{alarms}, {'' if self.raised == 1 else 'the first '}at step {count(self.cards[0]['step'])}"

    @property
    def outcome(self) -> Outcome:
        """Only for the shape and color of the headline: the exit code of `edgewise alarms` draws the same line."""
        if self.raised:
            return Outcome.FAILS if any(card["failing"] for card in self.cards) else Outcome.RISKY
        return Outcome.TRAINS if self.rows and not self.unseen else Outcome.UNDECIDED


def read(folder: Path, command: str = "", rank: int = 0) -> RunSubject:
    """Read a run folder; `BadInput` says what is wrong with it."""
    return subject(run_files.given(folder), str(folder), command, rank)


def subject(run: Run, name: str, command: str = "", rank: int = 0) -> RunSubject:
    """Return what a report says of a run whose files are known to be harmless."""
    with run_files.told(run, name):
        columns, rows, events = run.columns(), run_files.rows(run, rank), run.events(rank)
        cards = alarms(events)
        return RunSubject(
            name,
            run.about,
            state(events, rows),
            cards[:MOST_ALARMS],
            len(cards),
            list(_curves(columns, rows)),
            len(rows),
            unseen(run, rank, rows),
            command,
        )


def _curves(columns: Sequence[str], rows: RunRows) -> Iterator[Document]:
    """Yield the loss first, then the others of the run, then the worst block of the first statistics."""
    whole = picture(columns, rows, None)
    yield from (
        {**whole["curves"][name], "steps": whole["steps"]} for name in CURVES if name in whole["curves"]
    )
    for name in (row["name"] for row in whole["statistics"] if row["name"] in FIRST):
        shown = picture(columns, rows, name)
        yield {**shown["heat"], "values": shown["heat"]["worst"], "steps": shown["steps"]}


def write(path: str | Path, subject: RunSubject) -> Path:
    """Write the report, whole or not at all."""
    return html.save(path, page(subject))


def page(subject: RunSubject) -> str:
    return html.document(f"{subject.name}: {subject.headline} · edgewise report", _sections(subject))


def _sections(subject: RunSubject) -> Iterator[html.Html | None]:
    card = subject_card(subject)
    yield html.header(card.title, card.source)
    yield html.answer(card)
    yield html.sentences(card)
    if subject.cards:
        left = subject.raised - len(subject.cards)
        text = f"and {count(left)} more than the {MOST_ALARMS} shown; edgewise alarms prints them all"
        further = html.element("p", text, class_="meta") if left > 0 else None
        yield html.section("Alarms", *(_alarm(alarm) for alarm in subject.cards), further)
    if (drawn := html.figure(card, CAPTION)) is not None:
        yield html.section("Through the steps", drawn, _numbers(subject.curves))
    yield html.section("The run", html.table(("What", "Value"), _facts(subject), "knobs"))
    if subject.command:
        yield html.section("Repeat it", html.element("pre", subject.command, tabindex="0"))
    yield html.foot(("numpy",))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _alarm(card: Document) -> html.Html:
    """Return the paragraph of an alarm: what was seen, what moved first and then, what it means, what to try."""
    since = "" if card["since"] == card["step"] else f", since step {count(card['since'])}"
    moved = [("First", card["first"]), *(("Then", line) for line in card["then"])] if card["first"] else []
    cause = [("Cause", card["cause"])] if card["cause"] else []
    lines = [*cause, *moved, ("Means", card["means"]), ("Try", card["try"])]
    lines += [("Also", line) for line in card["also"]]
    if card["could_be"]:
        lines.append(("Could be", html.sentence_case("; ".join(card["could_be"]))))
    if card["ruled_out"]:
        lines.append(("Ruled out", html.sentence_case("; ".join(card["ruled_out"]))))
    pairs = (
        html.join(html.element("dt", name), html.element("dd", html.prose(text))) for name, text in lines
    )
    head = html.element(
        "h3",
        html.glyph(Outcome.FAILS if card["failing"] else Outcome.RISKY),
        f"Step {count(card['step'])}: {_lower(card['title'])}{since}",
        class_="fails" if card["failing"] else "risky",
    )
    return html.element(
        "article", head, html.element("p", html.prose(card["what"])), html.element("dl", *pairs)
    )


def run_card(run: Run) -> Card:
    """Return what a watched run says: its alarms, how far it is, and what could not be observed."""
    return subject_card(subject(run, str(run.path)))


def subject_card(subject: RunSubject) -> Card:
    """Return the card of a run that was read with care."""
    marks = tuple(float(card["step"]) for card in subject.cards)  # an upright mark for every alarm
    panels = []
    for curve in subject.curves:  # over the steps; what was not observed is a gap
        x = np.array([last for _, last in curve["steps"]], dtype=float)
        y = np.array([math.nan if value is None else value for value in curve["values"]], dtype=float)
        panels.append(Panel(curve["label"], "step", "", (Curve("", x, y),), legend=False, places=marks))
    rows = tuple(
        (f"Step {count(card['step'])}: {_lower(card['title'])}", card["what"], card["means"], card["try"])
        for card in subject.cards
    )
    parts = []
    harmed = next((card for card in subject.cards if card["failing"]), None)
    if subject.cards:
        parts.append(
            f"{'The first: ' if subject.raised > 1 else 'It is: '}{_lower(subject.cards[0]['title'])}."
        )
    if harmed is not None:
        parts.append(f"Training is harmed since step {count(harmed['step'])}: {_lower(harmed['title'])}.")
    elif subject.cards:
        parts.append("None of the alarms says that training is harmed yet.")
    elif subject.rows and not subject.unseen:
        parts.append("Nothing left its own past in this run.")
    return Card(
        f"{Path(subject.name).name} · {note(subject.about)}",
        subject.headline,
        subject.outcome,
        source="as watched",
        warnings=tuple(subject.unseen),
        sentences=(" ".join([*parts, f"{subject.story['state']}."]), *subject.story["blind"]),
        tables=(CardTable(("Alarm", "What", "Means", "Try"), rows, "alarms"),) if rows else (),
        figures=tuple(panels),
    )


def _numbers(curves: Sequence[Document]) -> html.Html:
    """Every curve in figures, with the range that is usual."""
    rows = []
    for curve in curves:
        values = [value for value in curve["values"] if value is not None and math.isfinite(value)]
        if values:
            ends = (values[0], min(values), max(values), values[-1])
            rows.append((_named(curve), *(f"{value:.4g}" for value in ends), _usual(*curve["healthy"])))
    return html.table(
        ("Curve", "First", "Smallest", "Largest", "Last", "Usual"), rows, "numbers", "Curves in figures"
    )


def _named(curve: Document) -> str:
    """With which block it is of."""
    return curve["label"] + (f", {curve['which']} of the blocks" if "which" in curve else "")


def _usual(low: float | None, high: float | None) -> str:
    """
    >>> _usual(None, 0.03), _usual(1, None), _usual(1e-05, 0.03), _usual(None, None)
    ('up to 0.03', 'from 1', '1e-05 to 0.03', '–')
    """
    if low is None and high is None:
        return "–"
    if low is None or high is None:
        return f"up to {high:g}" if low is None else f"from {low:g}"
    return f"{low:g} to {high:g}"


def _facts(subject: RunSubject) -> Iterator[tuple[str, str]]:
    """Yield what run.json says, as far as it is plain."""
    about = subject.about
    yield "Model", str(about["model"])[:200]
    for name in ("depth", "width", "parameters", "processes"):
        if isinstance(about.get(name), int):
            yield "Blocks" if name == "depth" else name.capitalize(), count(about[name])
    started = about.get("started")
    if isinstance(started, int | float) and 0 <= started < 1e11:
        yield "Started", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))
    yield "State", subject.story["state"]
    versions = about.get("versions")
    if isinstance(versions, dict):
        yield (
            "Versions",
            ", ".join(f"{str(key)[:40]} {str(value)[:40]}" for key, value in list(versions.items())[:12]),
        )


MOST_ALARMS, LONGEST = 50, 2000  # alarms, and letters of one sentence
BLOCK = re.compile(r"\bblock\.(\d{1,4})\b")
SILENT = 60.0  # seconds without a row, after which a run that has not ended is called silent


def note(about: Document) -> str:
    """Return the network of a run in one line."""
    parts = [str(about.get("model", "a model"))[:80], f"{about['depth']} blocks"]
    if isinstance(about.get("width"), int):
        parts.append(f"width {about['width']}")
    if isinstance(about.get("parameters"), int):
        parts.append(f"{count(about['parameters'])} parameters")
    if isinstance(about.get("processes"), int) and about["processes"] > 1:
        parts.append(f"{about['processes']} processes")
    return " · ".join(parts)


def state(events: Sequence[Document], rows: RunRows) -> Document:
    """Return how far the run is, as text."""
    last = finite(float(rows.time[-1])) if len(rows) else None
    silent = 0.0 if last is None else time.time() - last
    over = ended(events)
    how = "ended" if over else "going on" if silent < SILENT else f"no row for {_duration(silent)}"
    far = f"{count(len(rows))} rows, to step {count(int(rows.step[-1]))}" if len(rows) else "no row yet"
    damaged = f" · {rows.damaged} damaged rows are left out" if rows.damaged else ""
    blind = [_short(event["sentence"]) for event in events if event["kind"] == "blind"][:5]
    return {"state": f"{far} · {how}{damaged}", "live": not over, "blind": blind}


def unseen(run: Run, rank: int, rows: RunRows) -> list[str]:
    """Return what the monitor could not see of a run, to be said before its alarms."""
    return [_short(sentence) for sentence in run.unseen(rank, rows=rows)]


def unseen_at_a_glance(run: Run, events: Sequence[Document]) -> list[str]:
    """Return the same as far as the events tell, without reading the rows; a run that has ended has written it down."""
    ends = [event for event in events if event["kind"] == "stop"]
    last = ends[-1].get("unseen") if ends and ended(events) else None
    written = [_short(sentence) for sentence in last] if isinstance(last, list) else []
    return [*map(_short, unseen_of_events(events, run.path)), *written]


def _duration(seconds: float) -> str:
    """
    >>> _duration(75), _duration(7200), _duration(400000)
    ('75 seconds', '2 hours', '5 days')
    """
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size or (unit == "minute" and seconds >= 120):
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} seconds"


def alarms(events: Sequence[Document]) -> list[Document]:
    """Return the alarms of a run, first things first, each as a card."""
    raised = folded([Alarm.from_json(event) for event in events if event["kind"] == "alarm"])
    return [_card(alarm, others) for alarm, others in raised]


def _card(alarm: Alarm, others: Sequence[Alarm]) -> Document:
    where = f" in {_place(alarm.place)}" if alarm.place else ""
    where += f", head {alarm.head}" if alarm.head is not None else ""
    title = _short(alarm.kind.value).replace("_", " ").capitalize() + where
    return {
        "step": int(alarm.step),
        "since": int(alarm.since),
        "title": title,
        "failing": any(each.failing for each in (alarm, *others)),
        "also": [html.sentence_case(_short(each.brief)) for each in others[:MOST_ALARMS]],
        "what": _short(alarm.what),
        "cause": html.sentence_case(_short(alarm.cause)),
        "could_be": [_short(t) for t in alarm.could_be],
        "module": _short(alarm.module),
        "first": html.sentence_case(_short(alarm.first)),
        "then": [html.sentence_case(_short(line)) for line in alarm.order[1:4]],
        "means": MEANING[alarm.kind],
        "try": _short(alarm.try_next),
        "ruled_out": [_short(t) for t in alarm.ruled_out],
    }


def _place(place: str) -> str:
    """
    >>> _place("block.0"), _place("embed")
    ('block 0', 'the embedding')
    """
    return "the embedding" if place == "embed" else _short(place)


def count(value: int) -> str:
    """
    >>> count(1234567)
    '1\u2009234\u2009567'
    """
    return f"{value:,}".replace(",", "\u2009")


def _short(text: object) -> str:
    """Return a sentence of the run in plain words; blocks are counted from 0, as modules are."""
    return BLOCK.sub(r"block \1", str(text)[:LONGEST])
