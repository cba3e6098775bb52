"""Standard output for the answer alone; everything else that is printed goes to standard error."""

from __future__ import annotations

import errno
import io
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

Document = dict[str, Any]  # a JSON object


@contextmanager
def prints_aside() -> Iterator[None]:
    """Send what user code prints, also from a worker or a library in C, to standard error."""
    sys.stdout.flush()
    with redirect_stdout(sys.stderr), _descriptor_aside():
        yield


@contextmanager
def _descriptor_aside() -> Iterator[None]:
    try:
        real = os.dup(1)
    except OSError:  # there is no standard output
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(real, 1)
        os.close(real)


def visible(text: str, *, lines: bool = False) -> str:
    """Return what was read from a file, with its control characters as Python writes them: a terminal would obey them.

    lines: whether the ends of lines are meant.
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else repr(c)[1:-1] for c in text)


def plain(value: Any) -> Any:
    """Return for strict JSON: what is not a finite number is null."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def printing() -> Iterator[None]:
    """Print inside; what could not be written is noticed at the end, and not while the interpreter shuts down."""
    yield
    sys.stdout.flush()


class OutputLost(Exception):
    """Standard output could not be written: the answer is lost, or part of it."""


class CheckedOutput:
    """A text stream that raises OutputLost where it cannot be written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # click would write to it, past the check
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str | bytes) -> int:
        if isinstance(text, bytes):  # click answers a shell's completion in bytes
            text = text.decode(getattr(self._stream, "encoding", None) or "utf-8", "surrogateescape")
        return int(self._checked(self._stream.write, text) or 0)

    def writelines(self, lines: Iterable[str]) -> None:
        self._checked(self._stream.writelines, lines)

    def flush(self) -> None:
        self._checked(self._stream.flush)

    def _checked(self, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        except (OSError, ValueError) as error:
            if isinstance(error, UnicodeError):
                raise
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise OutputLost(reason) from error


class ClosedOutput(io.StringIO):
    """What stands for a standard output that the shell has closed (`>&-`); holder: the file that keeps its number."""

    def __init__(self, holder: TextIO) -> None:
        super().__init__()
        self.holder = holder

    def write(self, text: str) -> int:  # noqa: ARG002
        raise OSError(errno.EBADF, "it is closed")


@contextmanager
def checked_output() -> Iterator[None]:
    """Raise OutputLost if something printed inside cannot be written."""
    before = sys.stdout
    sys.stdout = CheckedOutput(before)
    try:
        yield
    finally:
        sys.stdout = before


def forget_output() -> None:
    """Discard the rest of the output, also while the interpreter shuts down."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # it has none, and nothing waits to be written
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
