"""What ends a call early: bad input, a network beyond the theory, a search beyond its budget, mistakes in user code."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

NO_TORCH = "this needs torch, which is not installed: pip install torch. `predict`, `explore` do not."


class BadInput(ValueError):
    """Input that cannot be answered honestly; the message says what was expected, what came instead and what to do.

    >>> import edgewise
    >>> edgewise.predict("gtp2")
    Traceback (most recent call last):
        ...
    edgewise.errors.BadInput: ...
    """


class NotCovered(BadInput):
    """A network or setting that the theory does not cover; measuring it still works."""


class VanishedStream(BadInput):
    """A stream of zeros before a norm, which would divide by its size; nothing passes such a network."""


class MissingArray(BadInput):
    """A file of arrays without one that was expected (`array`): it may be a file of something else."""

    array = ""


class OutOfBudget(Exception):
    """The next step of a search would cost more than is left of its budget."""


class SearchBudget:
    """What a search may compute, in estimated seconds, so that it ends at the same step on every machine.

    Expensive code estimates its cost and takes it from the budget before it begins.
    """

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def spend(self, seconds: float) -> None:
        """Take this from what is left; raise `OutOfBudget` if it does not suffice."""
        if seconds > self.left:
            raise OutOfBudget
        self.left -= seconds


def lacks_torch(error: BaseException) -> bool:
    """Return whether this was raised because torch is not installed."""
    return isinstance(error, ModuleNotFoundError) and error.name == "torch"


_files: set[str] = set()  # of the user, that were run: a mistake in them is told from one of ours


def register_user_code(path: str | Path) -> None:
    """Note a file of the user's that is about to be run, as it was named and as Python names it."""
    _files.update((str(path), os.path.abspath(path)))


def user_line(error: BaseException, package: str | Path = Path(__file__).parent) -> str | None:
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
