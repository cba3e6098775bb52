"""Saved traces of anybody: their sizes are looked at before anything is unpacked or allocated.

Here and not in `Trace.load`, which reads files of one's own and belongs to the code behind every record.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from numpy.lib import format as npy

from edgewise.errors import BadInput
from edgewise.regular_file import open_regular
from edgewise.trace import Trace

LARGEST = 2**27  # bytes of all arrays of a file, once unpacked
MOST_ARRAYS = 200
BROKEN = (OSError, ValueError, LookupError, TypeError, RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error)


def load(path: str | Path) -> Trace:
    """The trace, or a refusal: of what is no saved trace, and of what claims more numbers than it holds."""
    try:
        with open_regular(path, LARGEST) as file:
            _refuse_large(file)
    except BROKEN as cause:
        raise BadInput(f"{path} is not a saved trace ({cause}). Write one with Trace.save.") from cause
    try:
        return Trace.load(path)
    except (MemoryError, zlib.error, RuntimeError) as cause:  # a file that changes meanwhile, or is packed wrongly
        raise BadInput(f"{path} is not a saved trace ({cause}). Write one with Trace.save.") from cause


def _refuse_large(file: BinaryIO) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_ARRAYS or sum(entry.file_size for entry in entries) > LARGEST:
            raise ValueError(f"it holds more than {MOST_ARRAYS} arrays, or more than {LARGEST:,} bytes")
        for entry in entries:
            with archive.open(entry) as part:
                first = npy.read_magic(part) == (1, 0)
                shape, _, kind = (npy.read_array_header_1_0 if first else npy.read_array_header_2_0)(part)
            if math.prod(shape) * kind.itemsize > entry.file_size:
                raise ValueError(f"{entry.filename} claims the shape {shape} in {entry.file_size:,} bytes")
