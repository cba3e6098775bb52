"""A file of fixed-width rows, each with its checksum: one writer appends, anybody reads while it grows.

    64 bytes      b"edgewise rows 1\\n", the schema's name, the number of values, zeros
    then rows     step (int64), seconds since 1970 (float64), values (float32 each), crc32 of all before it

A row is acknowledged when `append` returns: it is with the operating system then, and survives the death of the
process. The disk has it after `sync`, which a power cut needs.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.regular_file import open_regular

MAGIC = b"edgewise rows 1\n"
HEADER = 64


def row_type(count: int) -> np.dtype[np.void]:
    """The layout of one row of `count` values."""
    return np.dtype([("step", "<i8"), ("time", "<f8"), ("values", "<f4", (count,)), ("check", "<u4")])


class RowsFile:
    """The one writer of a new file."""

    def __init__(self, path: Path, schema: str, count: int) -> None:
        self.path, self.count = path, count
        self._row = np.zeros(1, row_type(count))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._size = 0
        self._write((MAGIC + schema.encode() + count.to_bytes(4, "little")).ljust(HEADER, b"\0"))

    def append(self, step: int, time: float, values: Array) -> None:
        """Write one row whole; what a full disk leaves of it is taken back, and the error raised."""
        row = self._row
        row["step"], row["time"], row["values"] = step, time, values
        body = row.tobytes()[:-4]
        self._write(body + zlib.crc32(body).to_bytes(4, "little"))

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes of {self.path.name} could be written")
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)


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
    """All whole rows whose checksum holds; a row that is still being written is not there yet."""
    with open_regular(path) as file:
        data = file.read()
    expected = MAGIC + schema.encode() + count.to_bytes(4, "little")
    if len(data) < HEADER:  # its writer has just created it
        return _rows(np.zeros(0, row_type(count)), 0)
    if not data.startswith(expected):
        raise BadInput(f"{path} does not hold rows of the schema {schema} with {count} columns; was it copied here?")
    kind = row_type(count)
    whole = (len(data) - HEADER) // kind.itemsize
    table = np.frombuffer(data, kind, whole, HEADER)
    sound = [_sound(data, HEADER + i * kind.itemsize, kind.itemsize) for i in range(whole)]
    return _rows(table[np.array(sound, bool)], whole - sum(sound))


def _sound(data: bytes, start: int, size: int) -> bool:
    body = memoryview(data)[start : start + size - 4]
    return zlib.crc32(body) == int.from_bytes(data[start + size - 4 : start + size], "little")


def _rows(table: np.ndarray, damaged: int) -> Rows:
    return Rows(table["step"].copy(), table["time"].copy(), table["values"].copy(), damaged)
