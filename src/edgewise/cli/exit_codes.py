"""Exit codes of the shell, the sentence that goes with an exception, and standard output for the answer alone.

A verdict never shares a number with a mistake. A mistake in the user's code or input is 64, no matter what it raises;
an interrupt is 130, also in the middle of an import; everything else is an internal error, 70.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO

from edgewise.errors import NO_TORCH, BadInput, lacks_torch, user_line

if TYPE_CHECKING:
    from edgewise.nouns.verdict import Outcome


FINE = 0
RISKY = 1
FAILS = 2
UNSEEN = 3  # of a watched run: no alarm is known, and too little was seen to say that there was none
BAD_INPUT = 64  # sysexits.h: EX_USAGE
INTERNAL_ERROR = 70  # sysexits.h: EX_SOFTWARE
OUTPUT_LOST = 74  # sysexits.h: EX_IOERR, standard output could not be written
INTERRUPTED = 130  # 128 + SIGINT
ALLOCATION = ("can't allocate memory", "not enough memory", "out of memory")  # RuntimeErrors of torch
DEBUG = "EDGEWISE_DEBUG"


def of_outcomes(outcomes: Iterable[Outcome], fail_on: str = "risky") -> int:
    """Return the worst outcome's code; with `fail_on="fails"`, risky and undecided count as fine."""
    worst = max(outcome.exit_code for outcome in outcomes)
    return FINE if fail_on == "fails" and worst == RISKY else worst


def of_claim(held: bool | None, failed: bool) -> int:
    """Return the code of a recipe's run: 2 if cases failed, 0 if its claim held, else 1 (not held, or undecided)."""
    return FAILS if failed else FINE if held else RISKY


def of_alarms(failing: list[bool], unseen: bool = False) -> int:
    """Return the code of a watched run: 2 if an alarm says that training is harmed, 1 for others, 0 without any.

    3 without any where too little was seen to say that there was none.
    """
    return FAILS if any(failing) else RISKY if failing else UNSEEN if unseen else FINE


def ending(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an exception, and its sentence."""
    if any(isinstance(e, KeyboardInterrupt) for e in _chain(error)):
        return INTERRUPTED, "interrupted"
    if isinstance(error, BadInput):
        return BAD_INPUT, str(error)
    if isinstance(error, SystemExit):
        return BAD_INPUT, _ended(error)
    if lacks_torch(error):
        return BAD_INPUT, NO_TORCH
    if place := user_line(error):
        return BAD_INPUT, f"your code raised {_words(error)} ({place}){_hint()}"
    if message := _of_the_system(error):
        return BAD_INPUT, message
    return INTERNAL_ERROR, f"internal error, {_words(error)}{_hint()}"


def _ended(error: SystemExit) -> str:
    code = "" if error.code is None else repr(error.code)
    place = user_line(error)
    return (
        f"your code called sys.exit({code}){f' ({place})' if place else ''}, before an answer. "
        "Let it return, or raise an exception that says what is wrong."
    )


def _of_the_system(error: BaseException) -> str | None:
    """Return what the machine lacks or denies: files, memory, depth of the stack, size of a number."""
    if isinstance(error, OSError):
        file = f" {str(error.filename)!r}" if error.filename is not None else ""
        return (
            f"the system reports{file}: {error.strerror or error}. Name a place that can be read and written."
        )
    if isinstance(error, RecursionError):
        return "the input is nested too deeply, or contains itself. Give plain values."
    if isinstance(error, OverflowError):
        return f"a number of the input is too large to compute with ({error}). Give smaller ones."
    if isinstance(error, MemoryError) or any(words in str(error) for words in ALLOCATION):
        return f"there is not enough memory ({_words(error)}). Use fewer tokens, less depth, or --stream."
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and what it was raised in the course of: libraries wrap what interrupts their import."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def _hint() -> str:
    return "" if os.environ.get(DEBUG) else f" (set {DEBUG}=1 for the traceback)"


@contextmanager
def prints_aside() -> Iterator[None]:
    """Send what user code prints, also from a worker or a library in C, to standard error."""
    sys.stdout.flush()
    with redirect_stdout(sys.stderr):
        try:
            real = os.dup(1)
        except OSError:  # standard output is missing
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


@contextmanager
def printing() -> Iterator[None]:
    """Print inside; what could not be written is noticed at the end, and not while the interpreter shuts down."""
    yield
    sys.stdout.flush()


class OutputLost(Exception):
    """Standard output could not be written: the answer is lost, or part of it."""


class CheckedOutput:
    """A text stream that raises OutputLost if it cannot be written."""

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


class ForgivingErrors(CheckedOutput):
    """A text stream for messages: one that cannot be written is lost, and nothing else."""

    def _checked(self, work: Callable[..., object], *arguments: object) -> object:
        try:
            return super()._checked(work, *arguments)
        except OutputLost:
            forget(self._stream)
            return None


class ClosedOutput(io.StringIO):
    """What stands for a standard output that the shell has closed (`>&-`); holder: the file that keeps its number."""

    def __init__(self, holder: TextIO) -> None:
        super().__init__()
        self.holder = holder

    def write(self, text: str) -> int:  # noqa: ARG002
        raise OSError(errno.EBADF, "it is closed")


def checked_output() -> AbstractContextManager[object]:
    """Raise OutputLost if something printed inside cannot be written."""
    return redirect_stdout(CheckedOutput(sys.stdout))


def forget(stream: TextIO) -> None:
    """Discard the rest of what a stream is given, also while the interpreter shuts down."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it has none, and nothing waits to be written
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
