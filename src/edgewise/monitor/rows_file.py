"""Files that one process appends to and anybody reads while they grow: fixed-width rows, each with its checksum.

    64 bytes      b"edgewise rows 1\\n", the schema's name, the number of values, zeros
    then rows     step (int64), seconds since 1970 (float64), values (float32 each), crc32 of all before it

A row is acknowledged when `append` returns: it is with the operating system then, and survives the death of the
process. The disk has it after `sync`, which a power cut needs.
"""

from __future__ import annotations

import errno
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import open_regular

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
class Rows:
    """What a file holds: step (R,), time (R,), values (R, columns), and how many rows were damaged."""

    step: Array
    time: Array
    values: Array
    damaged: int = 0

    def __len__(self) -> int:
        return len(self.step)


def read_rows(path: Path, schema: str, count: int) -> Rows:
    """All whole rows whose checksum holds; a row that is still being written is not there yet.

    A damaged header counts as one damaged row. Rows of another schema are rejected.
    """
    with open_regular(path) as file:
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
    """Whether a header that is not the expected one is that of another schema, and not a damaged one."""
    different = sum((a ^ b).bit_count() for a, b in zip(data, expected, strict=False))
    return data.startswith(MAGIC) and different > FLIPPED


def _sound(data: bytes, start: int, size: int) -> bool:
    body = memoryview(data)[start : start + size - 4]
    return zlib.crc32(body) == int.from_bytes(data[start + size - 4 : start + size], "little")


def _rows(table: np.ndarray, damaged: int) -> Rows:
    return Rows(table["step"].copy(), table["time"].copy(), table["values"].copy(), damaged)
