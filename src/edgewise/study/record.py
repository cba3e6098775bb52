"""One line of the store: what was measured, by which code, with a checksum over all of it."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from edgewise.study.json_values import dumps, loads

_MARK = b',"check":"'  # always the last field, so that it can cover every byte before it
_CHECK_DIGITS = 16


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
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        body = dumps({name: value for name, value in known.items() if value is not None}).encode()[:-1]
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


def _shared(known: dict[str, Any]) -> dict[str, Any]:
    """The same fields, with one object for what is equal in a million records: code and versions."""
    for name in ("code", "versions"):
        if name in known:
            value = known[name]
            known[name] = _equal.setdefault(str(value), value)
    return known


_equal: dict[str, Any] = {}


def _check(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=_CHECK_DIGITS // 2).hexdigest()


@cache
def versions() -> dict[str, str]:
    """Of what a number may depend on beside our code."""
    found = {"python": platform.python_version()}
    for name in ("edgewise", "torch", "numpy", "scipy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found
