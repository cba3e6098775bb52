"""Store of records: append-only files, one per writer, shared by processes and machines; stamps, checksums.

A line is a `Stamp` (what measured the records after it) or a `Record` (a case and its value), each with a checksum.
Values are what JSON can hold, and the three numbers it cannot (NaN and the infinities), by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from edgewise import __version__
from edgewise.errors import BadInput
from edgewise.files import AppendedFile, Document, open_regular

Plain = Any  # what JSON can hold: dicts, lists, strings, numbers, booleans, None
LARGEST_RECORDS = 2**28  # bytes of one writer
_FLOAT = "__float__"  # {"__float__": "nan"}: strict JSON, readable by every other program
_MARK = b',"check":"'  # always the last field, so that it can cover every byte before it
_CHECK_DIGITS = 16


def plain(value: object, where: str) -> Plain:
    """Return `value` in dicts, lists, strings, numbers, booleans and None; anything else is rejected by its place.

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
    kind = f"{type(value).__module__}.{type(value).__name__}"
    advice = (
        "Use float(...), .item() or .tolist()." if hasattr(value, "tolist") else "Turn it into one of these."
    )
    raise BadInput(
        f"{where} is a {kind}, which JSON cannot hold. Expected numbers, strings, lists, dicts. {advice}"
    )


def _key(key: object, where: str) -> str:
    if not isinstance(key, str) or key == _FLOAT:
        raise BadInput(f"{where} has the key {key!r}. Keys must be strings (other than {_FLOAT!r}).")
    return key


def dumps(value: Plain) -> str:
    """Return canonical JSON of a plain value: sorted keys, no spaces, non-finite numbers by name."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:  # some number is not finite
        return json.dumps(_named(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Plain:
    """Return the value of `dumps`; the hook is called only where a non-finite number may be."""
    marked = _FLOAT in text if isinstance(text, str) else _FLOAT.encode() in text
    return json.loads(text, object_hook=_number if marked else None)


def _named(value: Plain) -> Plain:
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item) for item in value]
    return {_FLOAT: repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _number(item: Document) -> Plain:
    return float(item[_FLOAT]) if item.keys() == {_FLOAT} else item


@dataclass(frozen=True, slots=True)
class Stamp:
    """The program and machine that measured a result; None for what is not known.

    commit: of edgewise's checkout, with a + if files were changed. vectors: the widest that torch computes with, since
    sums end in other last digits on wider ones.
    """

    edgewise: str
    commit: str | None
    date: str
    torch: str | None = None
    numpy: str | None = None
    vectors: str | None = None
    cores: int | None = None

    def line(self) -> bytes:
        """Return the stamp as a line: the records after it were measured by this."""
        return _sealed({"stamp": asdict(self)})

    def __str__(self) -> str:
        commit = f", commit {self.commit}" if self.commit else ""
        return f"edgewise {self.edgewise}{commit}, {self.date}"


def stamp() -> Stamp:
    """Return the stamp of this process; torch's vectors are known once something has imported it."""
    torch = sys.modules.get("torch")
    vectors = torch.backends.cpu.get_cpu_capability() if torch else None
    today = datetime.now(UTC).date().isoformat()
    numbers = {name: _version(name) for name in ("torch", "numpy")}
    return Stamp(__version__, commit(), today, vectors=vectors, cores=os.cpu_count(), **numbers)


@cache
def commit() -> str | None:
    """Return the commit of the checkout that this code is in, with a + if its code was changed; None outside of one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    code = ("src", "papers", "experiments", ":!*/recorded/*")  # results change while recipes are measured
    try:
        head = _git(root, "rev-parse", "--short=7", "HEAD")
        changed = _git(root, "--no-optional-locks", "status", "--porcelain", "-uno", "--", *code)
    # git is not installed, or the repository is not readable to us
    except (OSError, subprocess.SubprocessError):
        return None
    return head + "+" * bool(changed)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, encoding="utf-8", check=True, timeout=20
    )
    return done.stdout.strip()


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def span(stamps: Iterable[Stamp]) -> str:
    """Return version and date of some results, in a few words: "edgewise 0.1.0, 2026-11-14 to 2026-11-17"."""
    stamps = list(stamps)
    if len(stamps) < 2:
        return "".join(map(str, stamps)) or "an unknown version"
    dates = sorted({each.date for each in stamps})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"edgewise {', '.join(sorted({each.edgewise for each in stamps}))}, {days}"


@dataclass(frozen=True, slots=True)
class Record:
    """A case and its value, or the traceback of its failure; the stamp stands in a line of its own before it."""

    case: Document
    seconds: float
    value: Document | None = None
    error: str | None = None
    stamp: Stamp | None = None

    def line(self) -> bytes:
        """Return the record as one line of strict JSON that ends with the checksum of what stands before it."""
        values = {name: getattr(self, name) for name in ("case", "seconds", "value", "error")}
        return _sealed({name: value for name, value in values.items() if value is not None})


def _sealed(values: Document) -> bytes:
    body = dumps(values).encode()[:-1]
    return body + _MARK + _check(body).encode() + b'"}\n'


def read_line(line: bytes, measured_by: Stamp | None = None) -> Record | Stamp | None:
    """Return what a line holds, or None if it is damaged or of a form that this version does not know."""
    body, mark, tail = line.rstrip(b"\r\n").rpartition(_MARK)
    if not mark or tail != _check(body).encode() + b'"}':
        return None
    try:
        values = loads((body + b"}").decode())
        return Stamp(**values["stamp"]) if "stamp" in values else Record(**values, stamp=measured_by)
    except (TypeError, ValueError):
        return None


def _check(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_CHECK_DIGITS // 2).hexdigest()


@dataclass
class Contents:
    """What a store holds: good records and failures by the canonical JSON of their case, and what was wrong with it."""

    done: dict[str, Record] = field(default_factory=dict)
    failed: dict[str, Record] = field(default_factory=dict)
    damaged: int = 0
    differing: int = 0

    def add(self, case: str, record: Record) -> None:
        """Add a record; the first value of a case stays, and a second one that differs is counted."""
        if record.value is None:
            if case not in self.done:
                self.failed[case] = record
            return
        first = self.done.setdefault(case, record)
        self.differing += first is not record and repr(first.value) != repr(record.value)
        self.failed.pop(case, None)

    def stamps(self) -> list[Stamp]:
        """Return everything that measured these records, each once."""
        return list(dict.fromkeys(record.stamp for record in self.done.values() if record.stamp is not None))


def read(files: Iterable[Path], cases: Collection[str] | None = None) -> Contents:
    """Read files line by line, keeping the wanted cases (all if None); damaged lines are counted and left out.

    A file that is not a regular one, or too large for one of records, is rejected by name.
    """
    contents = Contents()
    for path in files:
        measured_by: Stamp | None = None
        with open_regular(path, LARGEST_RECORDS) as file:
            for line in file:
                entry = read_line(line, measured_by)
                if isinstance(entry, Stamp):
                    measured_by = entry
                elif entry is None:
                    contents.damaged += 1
                elif (case := dumps(entry.case)) and (cases is None or case in cases):
                    contents.add(case, entry)
    return contents


def files_of(folder: Path) -> list[Path]:
    """Return the writers' files, in an order that does not depend on the file system."""
    return sorted(folder.glob("*.jsonl"))


def lines_of(records: Sequence[Record]) -> bytes:
    """Return a result file: a stamp, then its records. If several versions measured them, one group after the other.

    Records that one version measured on several days have the last date.
    """
    stamps = {record.stamp for record in records if record.stamp is not None}
    last = max((each.date for each in stamps), default="")
    same = len({replace(each, date=last) for each in stamps}) == 1
    groups: dict[Stamp | None, list[bytes]] = {}
    for record in records:
        measured_by = replace(record.stamp, date=last) if same and record.stamp else record.stamp
        groups.setdefault(measured_by, []).append(record.line())
    lines = groups.pop(None, [])  # first, since the stamps of other groups would hold for them
    for measured_by, own in groups.items():
        lines += [measured_by.line() if measured_by else b"", *own]
    return b"".join(lines)


class Writer:
    """One process's own file: nobody else appends to it, so a torn line can only be its last, after a kill."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise BadInput(
                f"{folder} is not visible from {socket.gethostname()}. Workers on other machines need the same "
                "folder under the same path (a shared file system); name one with --into."
            )
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        self._file = AppendedFile(folder / name)
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        if os.name != "nt":  # the file's name is part of the folder: a power cut could lose it with the file
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def append(self, record: Record) -> None:
        """Write one line, after a stamp that holds for it, and have it on the disk before returning."""
        with self._lock:
            line = record.line()
            if record.stamp is not None and record.stamp != self._stamp:
                line = record.stamp.line() + line
            self._file.write(line)
            self._file.sync()
            self._stamp = record.stamp

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # not if the folder was rejected
            self._file.close()
