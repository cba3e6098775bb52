"""Only regular files are opened: reading a pipe may never return, and a device may never end.

Arrays are read within one limit: a header's claim is compared with what the file holds before memory is allocated.
"""

from __future__ import annotations

import math
import os
import stat
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from edgewise.errors import BadInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST_ARRAYS = 2**28  # bytes of all arrays of one file, once unpacked
MOST_ARRAYS = 1000
KINDS = "biufU"  # truth values, numbers, text: never a Python object, which would be a pickle
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy packs


def open_regular(path: str | Path, largest: int | None = None) -> BinaryIO:
    """The file, open for reading; refused where it is a folder, pipe or device, or larger than `largest` bytes.

    Looked at after it was opened, so that nothing can take its place in between.
    """
    try:
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
        )  # a pipe without a writer opens at once
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}. Check the path."
        ) from error
    status = os.fstat(handle)
    problem = _problem(status, largest)
    if problem:
        os.close(handle)
        raise BadInput(f"cannot read {path}: {problem}")
    return os.fdopen(handle, "rb")


def read_text(path: str | Path, largest: int) -> str:
    """The UTF-8 text of a regular file of at most `largest` bytes."""
    with open_regular(path, largest) as file:
        data = file.read(largest + 1)
    if len(data) > largest:  # it has grown since
        raise BadInput(f"cannot read {path}: it has more than {largest:,} bytes.")
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise BadInput(f"cannot read {path}: it is not UTF-8 text ({error}).") from error


def read_arrays(
    file: BinaryIO, names: Sequence[str] | None = None, largest: int | None = None
) -> dict[str, NDArray[Any]]:
    """The arrays of an open .npz file by name, all or only `names`; `BadInput` says what is wrong with it.

    Every header is looked at before anything is allocated: what it claims must be in the file, and all of it together
    must be at most `largest` bytes, by default `LARGEST_ARRAYS`. No pickle is loaded.
    """
    most = LARGEST_ARRAYS if largest is None else largest
    try:
        with zipfile.ZipFile(file) as archive:
            entries = _entries(archive, names)
            size = sum(entry.file_size for entry in entries.values())
            if len(entries) > MOST_ARRAYS or size > most:
                raise BadInput(
                    f"it holds {len(entries):,} arrays of {size:,} bytes in all; expected at most {MOST_ARRAYS:,} of "
                    f"{most:,}"
                )
            return {name: _array(archive, entry) for name, entry in entries.items()}
    except BadInput:
        raise
    except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds on a damaged file
        raise BadInput(f"{type(error).__name__}: {error}") from error


def _entries(archive: zipfile.ZipFile, names: Sequence[str] | None) -> dict[str, zipfile.ZipInfo]:
    listed = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    if names is None:
        return listed
    missing = [name for name in names if name not in listed]
    if missing:
        raise BadInput(f"it has no array {missing[0]}")
    return {name: listed[name] for name in names}


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """One array; its header is read first, and then the entry again from its beginning."""
    from numpy.lib import format as npy

    if entry.compress_type not in PACKED:
        raise BadInput(f"{entry.filename} is packed in a way that numpy does not use")
    with archive.open(entry) as part:
        first = npy.read_magic(part) == (1, 0)
        shape, _, kind = (npy.read_array_header_1_0 if first else npy.read_array_header_2_0)(part)
    if kind.kind not in KINDS:
        raise BadInput(f"{entry.filename} is of the type {kind}; expected numbers or text")
    if min(shape, default=0) < 0 or math.prod(shape) * max(kind.itemsize, 1) > entry.file_size:
        raise BadInput(f"{entry.filename} claims the shape {shape} in {entry.file_size:,} bytes")
    with archive.open(entry) as part:
        return npy.read_array(part, allow_pickle=False)


def _problem(status: os.stat_result, largest: int | None) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"it is {_kind(status.st_mode)}, and a regular file is expected."
    if largest is not None and status.st_size > largest:
        return f"it has {status.st_size:,} bytes, and at most {largest:,} are expected of such a file."
    return ""


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "no file")
