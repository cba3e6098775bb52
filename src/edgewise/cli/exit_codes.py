"""Exit codes of the shell, and the sentence that goes with an exception.

A verdict never shares a number with a mistake. A mistake in the user's code or input is 64, no matter what it raises;
an interrupt is 130, also in the middle of an import; everything else is an internal error, 70.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.user_code import line_of

if TYPE_CHECKING:
    from edgewise.nouns.verdict import Outcome


FINE = 0
RISKY = 1
FAILS = 2
UNSEEN = 3  # of a watched run: no alarm is known, and too little was seen to say that there was none
BAD_INPUT = 64  # sysexits.h: EX_USAGE
INTERNAL_ERROR = 70  # sysexits.h: EX_SOFTWARE
OUTPUT_LOST = (
    74  # sysexits.h: EX_IOERR, standard output could not be written (full disk, closed, reader gone)
)
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
    if place := line_of(error):
        return BAD_INPUT, f"your code raised {_words(error)} ({place}){_hint()}"
    if refusal := _of_the_system(error):
        return BAD_INPUT, refusal
    return INTERNAL_ERROR, f"internal error, {_words(error)}{_hint()}"


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
