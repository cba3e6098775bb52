"""Standard output belongs to the answer; whatever else is printed meanwhile goes to standard error."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any


@contextmanager
def prints_aside() -> Iterator[None]:
    """What user code prints, also from a worker or a library in C, goes to standard error."""
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
    """What was read from a file, with its control characters as Python writes them: a terminal would obey them.

    lines: whether the ends of lines are meant.
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else repr(c)[1:-1] for c in text)


def plain(value: Any) -> Any:
    """For strict JSON: what is not a finite number is null."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def printing() -> Iterator[None]:
    """Print inside; a reader that goes away (`| head -1`) has read enough, and the verdict is still the verdict."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        forget_reader()


def forget_reader() -> None:
    """Nobody reads any more: the rest goes nowhere, also while the interpreter shuts down."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
