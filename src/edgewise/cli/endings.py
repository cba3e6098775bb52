"""What an exception means to the shell: its exit code, and one sentence that says what to do.

A mistake in the user's code or input is 64, whatever it raises; an interrupt is 130, also in the middle of an import;
what is left is ours, and 70.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from edgewise.cli import exit_codes
from edgewise.errors import BadInput
from edgewise.user_code import line_of

ALLOCATION = ("can't allocate memory", "not enough memory", "out of memory")  # RuntimeErrors of torch
DEBUG = "EDGEWISE_DEBUG"


def ending(error: BaseException) -> tuple[int, str]:
    """The exit code of an exception, and its sentence."""
    if any(isinstance(e, KeyboardInterrupt) for e in _chain(error)):
        return exit_codes.INTERRUPTED, "interrupted"
    if isinstance(error, BadInput):
        return exit_codes.BAD_INPUT, str(error)
    if isinstance(error, SystemExit):
        return exit_codes.BAD_INPUT, _ended(error)
    if place := line_of(error):
        return exit_codes.BAD_INPUT, f"your code raised {_words(error)} ({place}){_hint()}"
    if refusal := _of_the_system(error):
        return exit_codes.BAD_INPUT, refusal
    return exit_codes.INTERNAL_ERROR, f"internal error, {_words(error)}{_hint()}"


def _ended(error: SystemExit) -> str:
    code = "" if error.code is None else repr(error.code)
    place = line_of(error)
    return (
        f"your code called sys.exit({code}){f' ({place})' if place else ''}, so there is no answer. "
        "Let it return, or raise an exception that says what is wrong."
    )


def _of_the_system(error: BaseException) -> str | None:
    """What the machine refuses: files, memory, depth of the stack, size of a number."""
    if isinstance(error, OSError):
        file = f" {str(error.filename)!r}" if error.filename is not None else ""
        return (
            f"the system refused{file}: {error.strerror or error}. Name a place that can be read and written."
        )
    if isinstance(error, RecursionError):
        return "the input is nested too deeply, or contains itself. Give plain values."
    if isinstance(error, OverflowError):
        return f"a number of the input is too large to compute with ({error}). Give smaller ones."
    if isinstance(error, MemoryError) or any(words in str(error) for words in ALLOCATION):
        return f"there is not enough memory ({_words(error)}). Use fewer tokens, less depth, or --stream."
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised in the course of: libraries wrap what interrupts their import."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def _hint() -> str:
    return "" if os.environ.get(DEBUG) else f" (set {DEBUG}=1 for the traceback)"
