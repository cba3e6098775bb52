"""A limit on what a search may compute, in estimated seconds: it ends at the same step on every machine.

What is dear says what it will cost before it begins; outside a limit nothing is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_left: ContextVar[list[float] | None] = ContextVar("seconds that are left", default=None)


class OutOfEffort(Exception):
    """The next step would cost more than is left."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Let what is inside cost this many estimated seconds, or what is left of an outer limit."""
    outer = _left.get()
    left = [seconds if outer is None else min(seconds, outer[0])]
    begun, token = left[0], _left.set(left)
    try:
        yield
    finally:
        _left.reset(token)
        if outer is not None:
            outer[0] -= begun - left[0]


def spend(seconds: float) -> None:
    """Take this from what is left, before the work begins; OutOfEffort where it does not suffice."""
    left = _left.get()
    if left is None:
        return
    if seconds > left[0]:
        raise OutOfEffort
    left[0] -= seconds
