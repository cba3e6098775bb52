"""Files of others read within limits, and files of ours written whole.

Only regular files are opened: reading a pipe may never return, and a device may never end. JSON, YAML and arrays become
plain values: nothing is executed, no pickle is loaded, and a header's claim is compared with what the file holds before
memory is allocated. A YAML alias stands for the values it names, so that ten lines can stand for a billion: none is
accepted.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from edgewise.errors import BadInput, MissingArray

if TYPE_CHECKING:
    from numpy.typing import NDArray

Document = dict[str, Any]  # a JSON object

# The largest file of each kind that is read, in bytes.
LARGEST_TEXT = 64_000_000  # only its beginning is measured
LARGEST_JSON = 16_000_000  # a config, a record of a run
LARGEST_YAML = 500_000  # reading it takes a hundred times longer than JSON
LARGEST_ARRAYS = 2**28  # of all arrays of one file, once unpacked
MOST_ARRAYS = 1000
KINDS = "biufU"  # truth values, numbers, text: never a Python object, which would be a pickle
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # as numpy packs
FILE_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | Path, largest: int | None = None) -> BinaryIO:
    """Open a regular file for reading; raise `BadInput` for a folder, pipe or device, or more than `largest` bytes.

    The kind is checked after opening, so that nothing can take the file's place in between.
    """
    try:  # a pipe without a writer opens at once
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot read {path}: {reason}. Check the path.") from error
    status, problem = os.fstat(handle), ""
    if not stat.S_ISREG(status.st_mode):
        kind = FILE_KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
        problem = f"it is {kind}, and a regular file is expected."
    elif largest is not None and status.st_size > largest:
        problem = f"it has {status.st_size:,} bytes, and at most {largest:,} are expected of such a file."
    if problem:
        os.close(handle)
        raise BadInput(f"cannot read {path}: {problem}")
    return os.fdopen(handle, "rb")


def read_text(path: str | Path, largest: int) -> str:
    """Return the UTF-8 text of a regular file of at most `largest` bytes."""
    with open_regular(path, largest) as file:
        data = file.read(largest + 1)
    if len(data) > largest:  # it has grown since
        raise BadInput(f"cannot read {path}: it has more than {largest:,} bytes.")
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        raise BadInput(f"cannot read {path}: it is not UTF-8 text ({error}).") from error


def read_json(text: str, name: str) -> Any:
    """Return the values of a JSON text; `name` is what errors call it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise _too_deep(name) from error
    except ValueError as error:
        raise BadInput(f"{name} is not valid JSON: {error}.") from error


def read_yaml(text: str, name: str) -> Any:
    """Return the values of a YAML text without aliases; `name` is what errors call it."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except RecursionError as error:
        raise _too_deep(name) from error
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{name} is not valid YAML: {' '.join(str(error).split())}.") from error


@cache
def _loader() -> Any:
    """yaml's safe loader, imported when it is needed, without aliases."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.events.AliasEvent):
                alias = self.peek_event().anchor
                raise yaml.YAMLError(f"the alias *{alias} stands for other values; write them out")
            return super().compose_node(parent, index)

    return PlainLoader


def json_values(value: Any) -> Any:
    """Return dicts, lists and plain values for strict JSON, arrays as lists; a number that is not finite is null."""
    if hasattr(value, "tolist"):  # of numpy or torch
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _too_deep(name: str) -> BadInput:
    return BadInput(f"{name} is nested too deeply. Values are expected by name, or in lists of them.")


def read_arrays(
    file: BinaryIO, names: Sequence[str] | None = None, largest: int | None = None
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an open .npz file by name, all or only `names`; `BadInput` says what is wrong with it.

    Every header is checked before anything is allocated: what it claims must be in the file, and all of it together
    must be at most `largest` bytes, by default `LARGEST_ARRAYS`. No pickle is loaded.
    """
    most = LARGEST_ARRAYS if largest is None else largest
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            missing = [name for name in names or () if name not in entries]
            if missing:
                absent = MissingArray(f"it has no array {missing[0]}")
                absent.array = missing[0]
                raise absent
            if names is not None:
                entries = {name: entries[name] for name in names}
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


def require_unpacked(file: BinaryIO) -> None:
    """Raise `BadZipFile` if an open zip file is smaller than what it claims to hold: `torch.save` does not compress."""
    with zipfile.ZipFile(file) as archive:
        claimed = sum(entry.file_size for entry in archive.infolist())
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if claimed > size:
        raise zipfile.BadZipFile(f"it claims {claimed:,} bytes and has {size:,}")


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


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file whole or not at all: beside its path first, then renamed; a failure leaves nothing behind.

    Two writers never share the unfinished file, and the umask applies as to any new file.
    """
    path = Path(path)
    unfinished = path.parent / f".edgewise-{secrets.token_hex(8)}{path.suffix}"
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


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
        self._torn = True  # until all of it is there
        try:
            written = os.write(self._file, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")
        except OSError:
            self._take_back()
            raise
        self._size, self._torn = self._size + len(data), False

    def _take_back(self) -> None:
        os.ftruncate(self._file, self._size)
        self._torn = False

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)
