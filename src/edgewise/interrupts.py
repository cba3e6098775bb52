"""Interrupts that wait for a safe moment, so that whatever is changed for a while is always put back.

A Python signal handler (Ctrl-C, an alarm) may raise between any two instructions: after a mode was entered and before
its `try`, or inside a `finally`. Inside `deferred()` handlers do not run when a signal arrives but at the next
`check()`, where an exception is as orderly as any other.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

PATIENCE = 3.0  # seconds after which a signal that comes again is obeyed at once, check or not

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Interrupts:
    """The signals that arrived since the last check, and the user's own handlers of them."""

    def __init__(self) -> None:
        self.exception: BaseException | None = None  # what a handler has raised
        self._waiting: dict[int, float] = {}  # signal to when it first came; two of a kind are one
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._patient = False

    def install(self) -> None:
        """Stand in for every handler that is written in Python."""
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, signal.Handlers):
                self._handlers[number] = handler
                signal.signal(number, self._hold)

    @property
    def pending(self) -> bool:
        """Tell if `check` has something to deliver or to raise."""
        return bool(self._waiting) or self.exception is not None

    def check(self) -> None:
        """Run the handlers of the signals that arrived, at a safe moment, and raise what one of them raised.

        What was raised once is raised again, because code in between may have swallowed it.
        """
        if self.exception is not None:
            raise self.exception
        while self._waiting:
            number = next(iter(self._waiting))
            del self._waiting[number]
            try:
                self._handlers[number](number, sys._getframe())
            except BaseException as error:
                self.exception = error
                raise

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Nothing is obeyed inside, however long it waits: for putting things back."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    def release(self) -> None:
        """Restore the handlers as they were; then deliver the signals that still wait."""
        self._patient = True
        late: BaseException | None = None
        while True:
            try:  # a handler that is back may raise here; the others are put back all the same
                for number, handler in self._handlers.items():
                    if signal.getsignal(number) == self._hold:
                        signal.signal(number, handler)
                break
            except BaseException as error:  # noqa: BLE001 - raised below
                late = error
        _raise_signals(list(self._waiting))
        if late is not None:
            raise late

    def _hold(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        first = self._waiting.setdefault(number, now)
        if now - first > PATIENCE and not self._patient:
            del self._waiting[number]
            try:
                self._handlers[number](number, frame)
            except BaseException as error:
                self.exception = error
                raise


_active: list[Interrupts] = []  # of the main thread; the outermost one only


@contextmanager
def deferred() -> Iterator[Interrupts]:
    """Signals wait for `check()`, and at the latest for the end; inside another `deferred()`, for its end.

    An interrupt that code inside has swallowed or turned into another exception leaves here as itself. Only the main
    thread runs handlers: in another one nothing is to be done.
    """
    if not _in_main_thread():
        yield Interrupts()
    elif _active:
        yield _active[0]
    else:
        interrupts = Interrupts()
        try:
            interrupts.install()
            _active.append(interrupts)
            yield interrupts
            interrupts.check()
        except BaseException as error:
            if interrupts.exception is not None and interrupts.exception is not error:
                raise interrupts.exception  # noqa: B904 - the error came of it
            raise
        finally:
            _active.clear()
            interrupts.release()


def check() -> None:
    """Deliver interrupts that wait; nothing outside `deferred()`."""
    for interrupts in _active:  # one at most, which may end meanwhile if this is another thread
        if interrupts.pending and _in_main_thread():  # in this order: most calls have nothing to deliver
            interrupts.check()


def deferring(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the function with interrupts deferred while it runs."""

    @wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with deferred():
            return function(*args, **kwargs)

    return run


def _in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _raise_signals(numbers: list[int]) -> None:
    """One after the other, also when the handler of one raises."""
    if numbers:
        try:
            signal.raise_signal(numbers[0])
        finally:
            _raise_signals(numbers[1:])
