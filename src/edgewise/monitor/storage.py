"""Files that one process appends to and others read while they grow: fixed-width rows, each with its checksum.

    64 bytes      b"edgewise rows 1\\n", the schema's name, the number of values, zeros
    then rows     step (int64), seconds since 1970 (float64), values (float32 each), crc32 of all before it

A row is acknowledged when `append` returns: it is with the operating system then, and survives the death of the
process. The disk has it after `sync`, which a power cut needs.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import open_regular, read_json, read_text
from edgewise.monitor.alarm import Alarm

MAGIC = b"edgewise rows 1\n"
HEADER = 64
FLIPPED = 8  # bits of a header that may differ from the expected one before it is that of another schema


def row_type(count: int) -> np.dtype[np.void]:
    """The layout of one row of `count` values."""
    return np.dtype([("step", "<i8"), ("time", "<f8"), ("values", "<f4", (count,)), ("check", "<u4")])


class AppendedFile:
    """The one writer of a new file: what is appended is there whole, or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags, 0o644)
        self._size, self._torn = 0, False

    def write(self, data: bytes) -> None:
        """Append all of it; what a full disk leaves of it is taken back, and the error raised."""
        if self._torn:
            self._take_back()
        try:
            written = os.write(self._file, data)
            if written != len(data):
                message = f"only {written} of {len(data)} bytes of {self.path.name} could be written"
                raise OSError(errno.ENOSPC, message)
        except OSError:
            self._torn = True
            self._take_back()
            raise
        self._size += len(data)

    def _take_back(self) -> None:
        os.ftruncate(self._file, self._size)
        self._torn = False

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


class RowsFile(AppendedFile):
    """The one writer of a new file of rows."""

    def __init__(self, path: Path, schema: str, count: int) -> None:
        super().__init__(path)
        self._row = np.zeros(1, row_type(count))
        self.write(_header(schema, count).ljust(HEADER, b"\0"))

    def append(self, step: int, time: float, values: Array) -> None:
        """Append one row."""
        row = self._row
        row["step"], row["time"], row["values"] = step, time, values
        body = row.tobytes()[:-4]
        self.write(body + zlib.crc32(body).to_bytes(4, "little"))


def _header(schema: str, count: int) -> bytes:
    return MAGIC + schema.encode() + count.to_bytes(4, "little")


@dataclass(frozen=True, eq=False)
class RunRows:
    """What a file holds: step (R,), time (R,), values (R, columns), and how many rows were damaged."""

    step: Array
    time: Array
    values: Array
    damaged: int = 0

    def __len__(self) -> int:
        return len(self.step)


def read_rows(path: Path, schema: str, count: int) -> RunRows:
    """All whole rows whose checksum holds; a row that is still being written is not there yet.

    A damaged header counts as one damaged row. Rows of another schema are rejected.
    """
    with open_regular(path, LARGEST_ROWS) as file:
        data = file.read()
    if len(data) < HEADER:  # its writer has just created it
        return _rows(np.zeros(0, row_type(count)), 0)
    kind = row_type(count)
    whole = (len(data) - HEADER) // kind.itemsize
    table = np.frombuffer(data, kind, whole, HEADER)
    sound = np.array([_sound(data, HEADER + i * kind.itemsize, kind.itemsize) for i in range(whole)], bool)
    expected = _header(schema, count)
    header = data.startswith(expected)
    if not header and (_other(data, expected) or not sound.any()):
        raise BadInput(
            f"{path} does not hold rows of the schema {schema} with {count} columns; was it copied here?"
        )
    return _rows(table[sound], whole - int(sound.sum()) + (not header))


def _other(data: bytes, expected: bytes) -> bool:
    """Return whether a header that is not the expected one is that of another schema, and not a damaged one."""
    different = sum((a ^ b).bit_count() for a, b in zip(data, expected, strict=False))
    return data.startswith(MAGIC) and different > FLIPPED


def _sound(data: bytes, start: int, size: int) -> bool:
    body = memoryview(data)[start : start + size - 4]
    return zlib.crc32(body) == int.from_bytes(data[start + size - 4 : start + size], "little")


def _rows(table: np.ndarray, damaged: int) -> RunRows:
    return RunRows(table["step"].copy(), table["time"].copy(), table["values"].copy(), damaged)


LARGEST = 256_000_000  # bytes: a million events
LARGEST_ROWS = 2**31  # bytes: 100,000 rows of 48 layers and 32 heads need 1.5 GB
DEEPEST = 100_000  # blocks
SCHEMA = re.compile(r"[0-9a-f]{16}")  # also no way out of the folder
CHECK = re.compile(rb', "check": "([0-9a-f]{8})"}$')  # the end of a line of events
FORMAT = 1  # of a run folder; a later one may mean something else by the same files


def about_run(path: Path) -> dict[str, Any]:
    """Read run.json: depth, model and the names of the two schemas are there, and plain."""
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
    """The event of a line; None if the line is damaged."""
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
    """The JSON object of a line; empty if it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def about_alarm(path: Path) -> dict[str, Any]:
    """Read about.json of a dossier: the alarm with its step and kind."""
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
