"""The store: a folder of append-only files, one per writer, so that processes and machines can share it."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edgewise.errors import BadInput
from edgewise.study.record import Record, read_line


@dataclass
class Contents:
    """What a store holds: the good records by key, the failures not yet made good, and what was wrong with it."""

    done: dict[str, Record] = field(default_factory=dict)
    failed: dict[str, Record] = field(default_factory=dict)
    damaged: int = 0
    differing: int = 0

    def add(self, record: Record) -> None:
        """The first value of a key stays; a second one is harmless when equal and counted when not."""
        if record.value is None:
            if record.key not in self.done:
                self.failed[record.key] = record
            return
        first = self.done.setdefault(record.key, record)
        self.differing += first is not record and repr(first.value) != repr(record.value)
        self.failed.pop(record.key, None)


def read(files: Iterable[Path], keys: set[str] | None = None) -> Contents:
    """Read files line by line, keeping the wanted keys (all if None); damaged lines are counted and left out."""
    contents = Contents()
    for line in _lines(files):
        record = read_line(line)
        if record is None:
            contents.damaged += 1
        elif keys is None or record.key in keys:
            contents.add(record)
    return contents


def files_of(folder: Path) -> list[Path]:
    """The writers' files, in an order that does not depend on the file system."""
    return sorted(folder.glob("*.jsonl"))


def _lines(files: Iterable[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as file:
            yield from file


class Writer:
    """One process's own file: nobody else appends to it, so a torn line can only be its last."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise BadInput(
                f"{folder} is not visible from {socket.gethostname()}. Workers on other machines need the same "
                "folder under the same path (a shared file system); name one with --into."
            )
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        _sync_folder(folder)

    def append(self, record: Record) -> None:
        """Write one line and have it on the disk before returning."""
        line = record.line()
        with self._lock:
            written = os.write(self._file, line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes of a record could be written: is the disk full?")
            os.fsync(self._file)

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # not if the folder was refused
            os.close(self._file)


def _sync_folder(folder: Path) -> None:
    """The name of a new file is part of the folder: without this a power cut could lose the whole file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
