"""What ends a call early: bad input, a network beyond the theory, a search beyond its budget."""

from __future__ import annotations


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
