"""The folder of a watched run: rows, events and what they mean, written by one thread per rank.

    run.json                 model, versions, budget, shape
    schema-<id>.jsonl        one line per column: place, unit, range, formula
    rank0-000.rows           one row per sampled step; a restart begins rank0-001.rows
    heads-rank0-000.rows     numbers per head, on the slow clock
    events-rank0-000.jsonl   alarms, prices, what was not seen, the end; each line with its checksum
    rank0.lock, rank0.owner  held while a process writes, and which one it is

The training loop never waits for the disk: rows go through a bounded queue, and what does not fit is counted.
A file of rows, each of one width and with its checksum:

    64 bytes      b"edgewise rows 1\\n", the schema's name, the number of values, zeros
    then rows     step (int64), seconds since 1970 (float64), values (float32 each), crc32 of all before it

A row is acknowledged when `append` returns: it is with the operating system then, and survives the death of the
process. The disk has it after `sync`, which a power cut needs."""

from __future__ import annotations

import errno
import json
import os
import platform
import queue
import re
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from edgewise import __version__
from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import AppendedFile, json_values, open_regular, read_json, read_text, whole_file
from edgewise.monitor.alarm import Alarm
from edgewise.monitor.columns import Column, schema_id, schema_text

MAGIC = b"edgewise rows 1\n"
HEADER = 64
FLIPPED = 8  # bits of a header that may differ from the expected one before it is that of another schema


def row_type(count: int) -> np.dtype[np.void]:
    """The layout of one row of `count` values."""
    return np.dtype([("step", "<i8"), ("time", "<f8"), ("values", "<f4", (count,)), ("check", "<u4")])


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


WAITING = 256  # rows and events that may wait for the disk
SYNC = 30.0  # seconds between two fsync: a power cut loses at most these
FAST, HEADS = "rank", "heads-rank"  # beginnings of file names
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of file systems without locks
ANOTHER = "To continue with it, give first_step=, the step it is taken up at; to keep both, another folder."


class RunFolder:
    """The one writer of a rank in a folder; a folder in which another run writes is rejected by name.

    complain: where notices go; fail: where lost data is said, which is not to be silenced.
    """

    def __init__(
        self,
        path: str | Path,
        columns: Sequence[Column],
        head_columns: Sequence[Column] = (),
        *,
        about: Mapping[str, Any] | None = None,
        rank: int = 0,
        complain: Callable[[str], None] | None = None,
        fail: Callable[[str], None] | None = None,
    ) -> None:
        self.path, self.rank = Path(path), rank
        self.written = self.dropped = 0  # rows with the system, rows and events lost
        self.seconds = 0.0  # thread time of the writer
        self._complain = complain or (lambda sentence: None)
        self._fail = fail or self._complain
        self._lock = self._locked()
        self._owner, self._mine = self.path / f"rank{rank}.owner", False
        self._files: dict[str, RowsFile] = {}
        self._events: AppendedFile | None = None
        self._unwritten: deque[bytes] = deque()  # lines of events that the disk did not take yet
        try:
            self._open(columns, head_columns, dict(about or {}))
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise BadInput(_refusal(self.path, error)) from error
            raise
        self._queue: queue.Queue[tuple[Any, ...] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="edgewise writer", daemon=True)
        self._thread.start()

    def _open(self, columns: Sequence[Column], head_columns: Sequence[Column], about: dict[str, Any]) -> None:
        schemas = {FAST: schema_id(columns), HEADS: schema_id(head_columns)}
        _check_shape(self.path, schemas, about)
        self._owner.write_text(f"{_this_process()}\n", encoding="utf-8")
        self._mine = True
        for each in (columns, head_columns):
            _once(self.path / f"schema-{schema_id(each)}.jsonl", schema_text(each).encode())
        taken = [path.stem.rpartition("-")[2] for path in self.path.glob(f"events-rank{self.rank}-*.jsonl")]
        number = 1 + max((int(each) for each in taken if each.isdecimal()), default=-1)
        name = f"{self.rank}-{number:03d}"
        if number and not about.get("first_step"):
            self._complain(f"{self.path} holds an earlier run, whose rows these replace. {ANOTHER}")
        if self.rank == 0:
            about |= {"format": FORMAT, "schema": schemas[FAST], "heads_schema": schemas[HEADS]}
            with whole_file(self.path / "run.json") as file:
                file.write(_json(about).encode())
        self._events = AppendedFile(self.path / f"events-rank{name}.jsonl")
        self._files[FAST] = RowsFile(self.path / f"{FAST}{name}.rows", schemas[FAST], len(columns))
        if head_columns:
            self._files[HEADS] = RowsFile(
                self.path / f"{HEADS}{name}.rows", schemas[HEADS], len(head_columns)
            )

    def append(self, step: int, values: Array, kind: str = FAST) -> None:
        """Hand one row to the writer; dropped, and counted, if the disk is 256 rows behind."""
        self._put((kind, step, time.time(), values))

    def event(self, kind: str, sentence: str, step: int | None = None, **details: Any) -> None:
        """Hand one event to the writer; its sentence is for people."""
        event = {"time": time.time(), "step": step, "kind": kind, "sentence": sentence, **details}
        self._put((event_line(_json(event)),))

    def _put(self, item: tuple[Any, ...]) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def flush(self, seconds: float = 10.0) -> None:
        """Wait until everything handed over is with the system, `seconds` at most."""
        reached = threading.Event()
        self._queue.put((reached,), timeout=seconds)
        reached.wait(seconds)

    def close(self) -> None:
        """Write what waits, and end."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=30.0)
                self._thread.join(30.0)
            except queue.Full:
                self._fail(f"{self.path} cannot be written: the disk does not answer, and rows are lost.")
        self._let_go()

    def _let_go(self) -> None:
        """Close the files and give the lock back, also where processes that were forked meanwhile have it open."""
        for file in [*self._files.values(), *([] if self._events is None else [self._events])]:
            try:
                file.close()
            except OSError as error:
                self._fail(f"{file.path.name} could not be closed ({_reason(error)}).")
        try:
            if self._mine:
                self._owner.unlink(missing_ok=True)
            if self._lock is not None:
                self._lock.release(force=True)
        except OSError as error:
            self._fail(f"the lock of {self.path} could not be given back ({_reason(error)}).")
        self._files, self._events, self._lock = {}, None, None

    def _work(self) -> None:
        synced, failing = time.monotonic(), False
        while (item := self._queue.get()) is not None:
            try:
                self._write(item)
                if time.monotonic() - synced > SYNC:
                    synced = time.monotonic()
                    self._sync()
                failing = failing and len(item) != 4  # a row got through
            except Exception as error:  # noqa: BLE001  the writer continues, and what was lost is counted and said
                self.dropped += len(item) == 4
                if not failing:
                    self._fail(f"{self.path} cannot be written ({_reason(error)}); rows are being lost.")
                failing = True
            self.seconds = time.thread_time()
        self._end()

    def _write(self, item: tuple[Any, ...]) -> None:
        if len(item) == 4:
            kind, step, moment, values = item
            self._files[kind].append(step, moment, values)
            self.written += 1
        elif isinstance(item[0], bytes):
            self._write_events(item[0])
        else:
            item[0].set()

    def _write_events(self, *lines: bytes) -> None:
        """Append lines after those that a full disk did not take before."""
        assert self._events is not None
        self._unwritten.extend(lines)
        while len(self._unwritten) > WAITING:
            self._unwritten.popleft()
            self.dropped += 1
        while self._unwritten:
            self._events.write(self._unwritten[0])
            self._unwritten.popleft()

    def _end(self) -> None:
        """The last attempt to write what waits; what was lost is written down if the disk takes that."""
        try:
            self._write_events()
            if self.dropped:
                lost = f"{self.dropped} rows or events could not be written and are lost."
                event = {
                    "time": time.time(),
                    "step": None,
                    "kind": "lost",
                    "sentence": lost,
                    "count": self.dropped,
                }
                self._write_events(event_line(_json(event)))
            self._sync()
        except OSError as error:
            self.dropped += len(self._unwritten)
            self._fail(f"{self.path} could not be written to the end ({_reason(error)}).")

    def _sync(self) -> None:
        for file in [*self._files.values(), *([] if self._events is None else [self._events])]:
            file.sync()

    def _locked(self) -> filelock.BaseFileLock | None:
        """A lock that the system gives back when the process ends, however it ends; None without such locks."""
        lock = filelock.FileLock(self.path / f"rank{self.rank}.lock", timeout=0, thread_local=False)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except filelock.Timeout as error:
            if not isinstance(lock, filelock.SoftFileLock) or owner_lives(self.path, self.rank):
                raise BadInput(_occupied(self.path, self.rank)) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise BadInput(_refusal(self.path, error)) from error
            self._complain(_unlocked(self.path, _reason(error)))
            return None
        # a mere file, which would stay behind a process that is killed
        if isinstance(lock, filelock.SoftFileLock):
            lock.release(force=True)
            self._complain(_unlocked(self.path, "only files that stand for locks"))
            return None
        return lock


def _check_shape(path: Path, schemas: Mapping[str, str], about: Mapping[str, Any]) -> None:
    """Reject a folder whose rows have other columns: both could not be read from one folder."""
    if not (path / "run.json").exists():
        return
    try:
        earlier = about_run(path)
    except Newer:
        raise
    except BadInput as error:
        raise BadInput(
            f"{path} holds a run whose run.json cannot be read, so nothing was written into it. Watch into another "
            f"folder with to=, or move this one away. ({error})"
        ) from error
    if (earlier["schema"], earlier["heads_schema"]) == (schemas[FAST], schemas[HEADS]):
        return
    old, new = earlier["depth"], about.get("depth")
    others = f"{old} blocks, and this model has {new}"
    if old == new:
        others = f"{old} blocks too, but with other columns (other heads, or another version of edgewise)"
    raise BadInput(
        f"{path} holds a run of {earlier['model']} with {others}. One folder holds runs of one shape; nothing in it "
        "was changed. Watch into another folder with to=, or move the earlier run away."
    )


def owner_lives(path: Path, rank: int) -> bool | None:
    """Return whether the process that writes into a folder is alive; None if that cannot be told from here."""
    words = _owner(path, rank).split()
    if os.name != "posix" or len(words) != 4 or words[3] != socket.gethostname() or not words[1].isdecimal():
        return None
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError) as error:
        return True if isinstance(error, PermissionError) else None
    return True


def _owner(path: Path, rank: int) -> str:
    """Return what the process that writes has left about itself; empty if there is none."""
    try:
        return read_text(path / f"rank{rank}.owner", 1000).strip()
    except BadInput:
        return ""


def _occupied(path: Path, rank: int) -> str:
    owner = _owner(path, rank)
    mine = owner == _this_process()
    advice = "Close its handle first (handle.close()), or watch" if mine else "Watch"
    owner = "of this process" if mine else owner or "another process"
    return f"{path} belongs to a run that is still going on ({owner}). {advice} into a folder of its own."


def _unlocked(path: Path, reason: str) -> str:
    return (
        f"the file system of {path} has no locks ({reason}), so nothing keeps a second run from writing there. "
        "Give every run a folder of its own."
    )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refusal(path: Path, error: OSError) -> str:
    return f"{path} cannot be written ({_reason(error)}). Name a folder that can be, with to=."


def _once(path: Path, data: bytes) -> None:
    if not path.exists():
        with whole_file(path) as file:
            file.write(data)


def _json(value: Any) -> str:
    """Strict JSON: what is not finite is null."""
    return json.dumps(json_values(value), allow_nan=False)


def versions() -> dict[str, str]:
    """Of what a run was made with, by name."""
    import torch  # reading a run does not need it

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "edgewise": __version__,
    }
