"""Which files were run for the user, so that a mistake in them is told from one of ours."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

_files: set[str] = set()


def register(path: str | Path) -> None:
    """Note a file of the user's that is about to be run, as it was named and as Python names it."""
    _files.update((str(path), os.path.abspath(path)))


def line_of(error: BaseException, package: str | Path = Path(__file__).parent) -> str | None:
    """ "file.py, line 3" where the user's own code raised this, itself or in a library; None where ours did."""
    if isinstance(error, SyntaxError) and error.filename in _files:
        return _place(error.filename, error.lineno or 1)
    place, frame = None, error.__traceback__
    while frame is not None:
        place = _after(frame, place, str(package))
        frame = frame.tb_next
    return place


def _after(frame: TracebackType, place: str | None, package: str) -> str | None:
    """Return the place so far: the user's last line, forgotten when our own code is called back from it."""
    file = frame.tb_frame.f_code.co_filename
    if file in _files:
        return _place(file, frame.tb_lineno)
    return None if file.startswith(package) else place


def _place(file: str, line: int) -> str:
    return f"{Path(file).name}, line {line}"
