"""What is said about a run: its shape, how far it is, and its alarms, in the sentences of the monitor."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from edgewise.monitor.alarm import ADVICE, MEANING, Alarm
from edgewise.monitor.read_run import Run, ended, unseen_of_events
from edgewise.monitor.storage import Rows
from edgewise.nouns.verdict import finite
from edgewise.page.markup import sentence_case

MOST_ALARMS, LONGEST = 50, 2000  # alarms, and letters of one sentence
BLOCK = re.compile(r"\bblock\.(\d{1,4})\b")
SILENT = 60.0  # seconds without a row, after which a run that has not ended is called silent


def note(about: dict[str, Any]) -> str:
    """The network of a run in one line."""
    parts = [str(about.get("model", "a model"))[:80], f"{about['depth']} blocks"]
    if isinstance(about.get("width"), int):
        parts.append(f"width {about['width']}")
    if isinstance(about.get("parameters"), int):
        parts.append(f"{count(about['parameters'])} parameters")
    if isinstance(about.get("processes"), int) and about["processes"] > 1:
        parts.append(f"{about['processes']} processes")
    return " · ".join(parts)


def state(events: Sequence[dict[str, Any]], rows: Rows) -> dict[str, Any]:
    """How far the run is, in words."""
    last = finite(float(rows.time[-1])) if len(rows) else None
    silent = 0.0 if last is None else time.time() - last
    over = ended(events)
    how = "ended" if over else "going on" if silent < SILENT else f"no row for {_duration(silent)}"
    far = f"{count(len(rows))} rows, to step {count(int(rows.step[-1]))}" if len(rows) else "no row yet"
    damaged = f" · {rows.damaged} damaged rows are left out" if rows.damaged else ""
    blind = [_short(event["sentence"]) for event in events if event["kind"] == "blind"][:5]
    return {"state": f"{far} · {how}{damaged}", "live": not over, "blind": blind}


def unseen(run: Run, rank: int, rows: Rows) -> list[str]:
    """What the monitor could not see of a run, to be said before its alarms."""
    return [_short(sentence) for sentence in run.unseen(rank, rows=rows)]


def unseen_at_a_glance(run: Run, events: Sequence[dict[str, Any]]) -> list[str]:
    """The same as far as the events tell, without reading the rows; a run that has ended has written it down."""
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


def alarms(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The alarms of a run, first things first, each as a card."""
    raised = [Alarm.from_json(event) for event in events if event["kind"] == "alarm"]
    return [_card(alarm) for alarm in raised[:MOST_ALARMS]]


def _card(alarm: Alarm) -> dict[str, Any]:
    where = f" in {_place(alarm.place)}" if alarm.place else ""
    where += f", head {alarm.head}" if alarm.head is not None else ""
    title = _short(alarm.kind.value).replace("_", " ").capitalize() + where
    return {
        "step": int(alarm.step),
        "since": int(alarm.since),
        "title": title,
        "failing": alarm.failing,
        "what": _short(alarm.what),
        "first": sentence_case(_short(alarm.cause)),
        "then": [sentence_case(_short(line)) for line in alarm.order[1:4]],
        "means": MEANING[alarm.kind],
        "try": ADVICE[alarm.kind],
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


def _short(text: Any) -> str:
    """A sentence of the run in plain words; blocks are counted from 0, as modules are."""
    return BLOCK.sub(r"block \1", str(text)[:LONGEST])
