"""The text files of a run folder and of a dossier: of the expected shape, or refused by name.

Whoever may write into the folder can put anything there, also a pipe or a name that leads out of it; nothing is
executed and nothing is taken on trust.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.files import open_regular, read_json, read_text
from edgewise.monitor.alarm import Alarm

LARGEST = 256_000_000  # bytes: a million events
DEEPEST = 100_000  # blocks
SCHEMA = re.compile(r"[0-9a-f]{16}")  # also no way out of the folder
CHECK = re.compile(rb', "check": "([0-9a-f]{8})"}$')  # the end of a line of events
FORMAT = 1  # of a run folder; a later one may mean something else by the same files


def about_run(path: Path) -> dict[str, Any]:
    """What stands in run.json: depth, model and the names of the two schemas are there, and plain."""
    try:
        about = read_json(read_text(path / "run.json", LARGEST), "run.json")
        _require(isinstance(about, dict), "run.json holds no names with values")
        _require_format(path, about.get("format", FORMAT))
        depth, model = about.get("depth"), about.get("model")
        _require(type(depth) is int and 0 <= depth <= DEEPEST, f"its depth is {_shown(depth)}")
        _require(isinstance(model, str), f"its model is {_shown(model)}")
        for name in ("schema", "heads_schema"):
            value = about.get(name)
            _require(isinstance(value, str) and SCHEMA.fullmatch(value), f"its {name} is {_shown(value)}")
    except Newer:
        raise
    except BadInput as error:
        words = str(error).rstrip(".")
        raise BadInput(
            f"{path} is not the folder of a watched run ({words}). Write one with edgewise.watch(model, to=...)."
        ) from error
    return dict(about)


class Newer(BadInput):
    """A folder of a format that this version does not know."""


def _require_format(path: Path, value: Any) -> None:
    _require(type(value) is int and value > 0, f"its format is {_shown(value)}")
    if value != FORMAT:
        raise Newer(
            f"{path} is a run folder of format {_shown(value)}, which a newer edgewise wrote; this one reads format "
            f"{FORMAT}. Update edgewise."
        )


def schema_columns(path: Path) -> list[dict[str, Any]]:
    """One dict per column, each with a name of its own."""
    rows = []
    for number, line in enumerate(read_text(path, LARGEST).split("\n")[:-1], 1):
        row = _object(line)
        if not isinstance(row.get("column"), str):
            raise BadInput(
                f"line {number} of {path} is not a column of a watched run: {_shown(line)}. "
                "Take the line out, or read the run from a copy."
            )
        rows.append(row)
    if len({row["column"] for row in rows}) != len(rows):
        raise BadInput(f"{path} names a column twice, so its rows cannot be told apart. Was it changed?")
    return rows


def event_line(text: str) -> bytes:
    """The line of an event, a JSON object, with a checksum as its last member."""
    body = text.encode()
    return body[:-1] + b', "check": "%08x"}\n' % zlib.crc32(body)


def events_of(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The events of a file, and how many of its lines are damaged and left out.

    A last line without its end is still being written.
    """
    with open_regular(path, LARGEST) as file:
        lines = file.read(LARGEST).removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1]
    checked = any(CHECK.search(line) for line in lines)  # files of earlier versions have no checksums
    events = [event for line in lines if (event := _event(line, checked)) is not None]
    return events, len(lines) - len(events)


def _event(line: bytes, checked: bool) -> dict[str, Any] | None:
    """The event of a line; None where the line is damaged."""
    check = CHECK.search(line)
    whole = not checked if check is None else zlib.crc32(line[: check.start()] + b"}") == int(check[1], 16)
    if not whole:
        return None
    try:
        event = _object(line.decode())
        if event.get("kind") == "alarm":
            Alarm.from_json(event)
    except (UnicodeDecodeError, BadInput):
        return None
    event.pop("check", None)
    sound = isinstance(event.get("kind"), str) and isinstance(event.get("sentence", ""), str)
    return event if sound else None


def _object(line: str) -> dict[str, Any]:
    """The JSON object of a line; empty where it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def about_alarm(path: Path) -> dict[str, Any]:
    """What stands in about.json of a dossier: the alarm with its step and kind."""
    try:
        about = read_json(read_text(path / "about.json", LARGEST), "about.json")
        alarm = about.get("alarm") if isinstance(about, dict) else None
        _require(isinstance(alarm, dict), "about.json names no alarm")
        assert isinstance(alarm, dict)
        _require(type(alarm.get("step")) is int, f"its step is {_shown(alarm.get('step'))}")
        _require(isinstance(alarm.get("kind"), str), f"its kind is {_shown(alarm.get('kind'))}")
    except BadInput as error:
        raise BadInput(
            f"{path} is not a dossier ({str(error).rstrip('.')}). Alarms leave them in RUN/dossiers."
        ) from error
    return dict(about)


def _require(holds: Any, words: str) -> None:
    if not holds:
        raise BadInput(words)


def _shown(value: Any) -> str:
    text = (
        "missing"
        if value is None
        else repr(value)
        if not isinstance(value, int) or abs(value) < 10**20
        else "a number of many digits"
    )
    return text if len(text) <= 60 else f"{text[:57]}..."
