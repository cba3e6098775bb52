"""What the shell is told; a verdict never shares a number with a mistake."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

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


def of_outcomes(outcomes: Iterable[Outcome], fail_on: str = "risky") -> int:
    """The worst outcome's code; with `fail_on="fails"`, risky and undecided count as fine."""
    worst = max(outcome.exit_code for outcome in outcomes)
    return FINE if fail_on == "fails" and worst == RISKY else worst


def of_claim(held: bool | None, failed: bool) -> int:
    """Of a recipe's run: 2 if cases failed, else 0 if its claim held, else 1 (not held, or not decided)."""
    return FAILS if failed else FINE if held else RISKY


def of_alarms(failing: list[bool], unseen: bool = False) -> int:
    """Of a watched run: 2 where an alarm says that training is harmed already, 1 for others, 0 without any.

    3 without any where too little was seen to say that there was none.
    """
    return FAILS if any(failing) else RISKY if failing else UNSEEN if unseen else FINE
