"""The store: a folder of append-only files, one per writer, so that processes and machines can share it.

One line is one `Record`: what was measured, by which code, with a checksum over all of it. Values are what JSON can
hold, and the three numbers it cannot (NaN and the infinities), by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import secrets
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput

_FLOAT = "__float__"  # {"__float__": "nan"}: strict JSON, readable by every other program
_MARK = b',"check":"'  # always the last field, so that it can cover every byte before it
_CHECK_DIGITS = 16
_equal: dict[str, Any] = {}  # one object for what is equal in a million records


def plain(value: Any, where: str) -> Any:
    """`value` in dicts, lists, strings, numbers, booleans and None; anything else is refused by its place.

    Tuples become lists and numpy scalars become Python's, as after a round trip through the store.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {_key(key, where): plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    if "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].generic):
        return plain(value.item(), where)
    raise BadInput(_refusal(value, where))


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str) or key == _FLOAT:
        raise BadInput(f"{where} has the key {key!r}. Keys must be strings (other than {_FLOAT!r}).")
    return key


def _refusal(value: Any, where: str) -> str:
    kind = f"{type(value).__module__}.{type(value).__name__}"
    advice = "Use float(...), .item() or .tolist()." if hasattr(value, "tolist") else "Turn it into one of these."
    return f"{where} is a {kind}, which JSON cannot hold. Expected numbers, strings, lists, dicts. {advice}"


def dumps(value: Any) -> str:
    """Canonical JSON of a plain value: sorted keys, no spaces, non-finite numbers by name."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:  # some number is not finite
        return json.dumps(_named(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """The value of `dumps`; the hook is called only where a non-finite number may be."""
    marked = _FLOAT in text if isinstance(text, str) else _FLOAT.encode() in text
    return json.loads(text, object_hook=_number if marked else None)


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item) for item in value]
    return {_FLOAT: repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _number(item: dict[str, Any]) -> Any:
    return float(item[_FLOAT]) if item.keys() == {_FLOAT} else item


@dataclass(frozen=True, slots=True)
class Record:
    """A case and its value, or the traceback of its failure; key = hash of case and code."""

    key: str
    case: dict[str, Any]
    code: str
    seconds: float
    value: dict[str, Any] | None = None
    error: str | None = None
    versions: dict[str, str] | None = None

    def line(self) -> bytes:
        """The record as one line of strict JSON that ends with the checksum of what stands before it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        body = dumps({name: value for name, value in values.items() if value is not None}).encode()[:-1]
        return body + _MARK + _check(body).encode() + b'"}\n'


def key_of(case_text: str, code: str) -> str:
    """The name of a case: hash of its canonical JSON and of the code that measures it."""
    return hashlib.sha256(f"{code}\n{case_text}".encode()).hexdigest()[:32]


def read_line(line: bytes) -> Record | None:
    """The record of a line, or None where the line is damaged or of a form that this version does not know."""
    body, mark, tail = line.rstrip(b"\r\n").rpartition(_MARK)
    if not mark or tail != _check(body).encode() + b'"}':
        return None
    try:
        return Record(**_shared(loads((body + b"}").decode())))
    except (TypeError, ValueError):
        return None


def _shared(values: dict[str, Any]) -> dict[str, Any]:
    """The same fields, with one object for code and versions."""
    for name in ("code", "versions"):
        if name in values:
            values[name] = _equal.setdefault(str(values[name]), values[name])
    return values


def _check(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_CHECK_DIGITS // 2).hexdigest()


@cache
def versions() -> dict[str, str]:
    """Of what a number may depend on beside our code."""
    numbers = {"python": platform.python_version()}
    for name in ("edgewise", "torch", "numpy", "scipy"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            numbers[name] = "absent"
    if torch := sys.modules.get("torch"):
        numbers["vectors"] = torch.backends.cpu.get_cpu_capability()  # sums end in other last digits on wider ones
    return numbers


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
            if record.key == key_of(dumps(record.case), record.code):
                contents.add(record)
            else:  # a whole line, but of another case or other code than its key says
                contents.damaged += 1
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
