"""Only regular files are opened: reading a pipe may never return, and a device may never end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from edgewise.errors import BadInput


def open_regular(path: str | Path, largest: int | None = None) -> BinaryIO:
    """The file, open for reading; refused where it is a folder, pipe or device, or larger than `largest` bytes.

    Looked at after it was opened, so that nothing can take its place in between.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer opens at once
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}. Check the path.") from error
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


def _problem(status: os.stat_result, largest: int | None) -> str:
    if not stat.S_ISREG(status.st_mode):
        return f"it is {_kind(status.st_mode)}, and a regular file is expected."
    if largest is not None and status.st_size > largest:
        return f"it has {status.st_size:,} bytes, and at most {largest:,} are expected of such a file."
    return ""


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
             stat.S_IFSOCK: "a socket"}  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "no file")
