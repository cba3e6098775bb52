"""A file is written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write beside the goal, then rename: a reader never sees half a file, and a failure leaves nothing behind.

    Two writers never share the unfinished file, and the system applies the umask as to any new file.
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
