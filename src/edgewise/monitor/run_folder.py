"""The folder of a watched run: rows, events and what they mean, written by one thread per rank.

    run.json                 model, versions, budget, shape
    schema-<id>.jsonl        one line per column: place, unit, range, formula
    rank0-000.rows           one row per sampled step; a restart begins rank0-001.rows
    heads-rank0-000.rows     numbers per head, on the slow clock
    events-rank0-000.jsonl   alarms, prices, refusals, the end

The training loop never waits for the disk: rows go through a bounded queue, and what does not fit is counted.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.monitor.columns import Column, schema_id, schema_text
from edgewise.monitor.documents import FORMAT
from edgewise.monitor.rows_file import RowsFile
from edgewise.whole_file import whole_file

WAITING = 256  # rows and events that may wait for the disk
SYNC = 30.0  # seconds between two fsync: a power cut loses at most these
FAST, HEADS = "rank", "heads-rank"  # beginnings of file names
ANOTHER = "To go on with it, give first_step=, the step it is taken up at; to keep both, another folder."


class RunFolder:
    """The one writer of a rank in a folder; refused, by name, where another run is writing."""

    def __init__(
        self, path: str | Path, columns: Sequence[Column], head_columns: Sequence[Column] = (), *,
        about: Mapping[str, Any] | None = None, rank: int = 0, complain: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.rank = Path(path), rank
        self.written = self.dropped = 0  # rows with the system, rows and events lost
        self.seconds = 0.0  # thread time of the writer
        self._complain = complain or (lambda sentence: None)
        self._lock = _locked(self.path, rank)
        try:
            self._open(columns, head_columns, dict(about or {}))
        except OSError as error:
            os.close(self._lock)
            raise BadInput(_refusal(self.path, error)) from error
        self._queue: queue.Queue[tuple[Any, ...] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._work, name="edgewise writer", daemon=True)
        self._thread.start()

    def _open(self, columns: Sequence[Column], head_columns: Sequence[Column], about: dict[str, Any]) -> None:
        schemas = {FAST: schema_id(columns), HEADS: schema_id(head_columns)}
        for each in (columns, head_columns):
            _once(self.path / f"schema-{schema_id(each)}.jsonl", schema_text(each).encode())
        number = len(list(self.path.glob(f"events-rank{self.rank}-*.jsonl")))
        name = f"{self.rank}-{number:03d}"
        if number and not about.get("first_step"):
            self._complain(f"{self.path} holds an earlier run, whose rows these replace. {ANOTHER}")
        if self.rank == 0:
            about |= {"format": FORMAT, "schema": schemas[FAST], "heads_schema": schemas[HEADS]}
            with whole_file(self.path / "run.json") as file:
                file.write(_json(about).encode())
        events = self.path / f"events-rank{name}.jsonl"
        self._events = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._files = {FAST: RowsFile(self.path / f"{FAST}{name}.rows", schemas[FAST], len(columns))}
        if head_columns:
            self._files[HEADS] = RowsFile(self.path / f"{HEADS}{name}.rows", schemas[HEADS], len(head_columns))

    def append(self, step: int, values: Array, kind: str = FAST) -> None:
        """Hand one row to the writer; dropped, and counted, where the disk is 256 rows behind."""
        self._put((kind, step, time.time(), values))

    def event(self, kind: str, sentence: str, step: int | None = None, **details: Any) -> None:
        """Hand one event to the writer; its sentence is for people."""
        event = {"time": time.time(), "step": step, "kind": kind, "sentence": sentence, **details}
        self._put((_json(event) + "\n",))

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
            self._queue.put(None)
            self._thread.join(30.0)
        for file in self._files.values():
            file.close()
        os.close(self._events)
        os.close(self._lock)

    def _work(self) -> None:
        synced, failing = time.monotonic(), False
        while (item := self._queue.get()) is not None:
            try:
                self._write(item)
                if time.monotonic() - synced > SYNC:
                    synced = time.monotonic()
                    self._sync()
                failing = failing and len(item) != 4  # a row got through
            except OSError as error:
                self.dropped += 1
                if not failing:
                    self._complain(f"{self.path} cannot be written ({error.strerror or error}); rows are being lost.")
                failing = True
            self.seconds = time.thread_time()
        try:
            self._sync()
        except OSError as error:
            self._complain(f"{self.path} could not be synced to the disk ({error.strerror or error}).")

    def _write(self, item: tuple[Any, ...]) -> None:
        if len(item) == 4:
            kind, step, moment, values = item
            self._files[kind].append(step, moment, values)
            self.written += 1
        elif isinstance(item[0], str):
            os.write(self._events, item[0].encode())
        else:
            item[0].set()

    def _sync(self) -> None:
        for file in self._files.values():
            file.sync()
        os.fsync(self._events)


def _locked(path: Path, rank: int) -> int:
    """A lock that the system gives back when the process ends, however it ends."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / f"rank{rank}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise BadInput(_refusal(path, error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(lock, 200).decode(errors="replace").strip() or "another process"
        os.close(lock)
        mine = owner == _this_process()
        advice = "Close its handle first (handle.close()), or watch" if mine else "Watch"
        owner = "of this process" if mine else owner
        sentence = f"{path} belongs to a run that is still going on ({owner}). {advice} into a folder of its own."
        raise BadInput(sentence) from error
    os.ftruncate(lock, 0)
    os.write(lock, f"{_this_process()}\n".encode())
    return lock


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _refusal(path: Path, error: OSError) -> str:
    return f"{path} cannot be written ({error.strerror or error}). Name a folder that can be, with to=."


def _once(path: Path, data: bytes) -> None:
    if not path.exists():
        with whole_file(path) as file:
            file.write(data)


def _json(value: Any) -> str:
    """Strict JSON: what is not finite is null."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Of what a run was made with, by name."""
    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__,
            "edgewise": version("edgewise")}  # fmt: skip
