"""The folder of a watched run: rows, events and what they mean, written by one thread per rank.

    run.json                 model, versions, budget, shape
    schema-<id>.jsonl        one line per column: place, unit, range, formula
    rank0-000.rows           one row per sampled step; a restart begins rank0-001.rows
    heads-rank0-000.rows     numbers per head, on the slow clock
    events-rank0-000.jsonl   alarms, prices, what was not seen, the end; each line with its checksum
    rank0.lock, rank0.owner  held while a process writes, and which one it is

The training loop never waits for the disk: rows go through a bounded queue, and what does not fit is counted.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from edgewise import __version__
from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import json_values, read_text, whole_file
from edgewise.monitor.columns import Column, schema_id, schema_text
from edgewise.monitor.storage import FORMAT, AppendedFile, Newer, RowsFile, about_run, event_line

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
