"""A file is written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Write beside the goal, then rename: a reader never sees half a file, and a failure leaves nothing behind."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".edgewise-", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files that only their owner may read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
