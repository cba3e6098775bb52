"""Work stopped by an alarm at a random moment, whose handler raises."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import nn

from tests.support.unchanged import differences, everything

Ring = Callable[[float], None]  # sets the alarm, seconds from now; 0 takes it back


class Alarm(Exception):
    """An ordinary exception, so that whoever catches exceptions broadly is found out."""


@contextmanager
def alarms() -> Iterator[Ring]:
    def ring(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise Alarm

    handler = signal.signal(signal.SIGALRM, ring)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def rings(set_alarm: Ring, seconds: float, work: Callable[[], Any]) -> bool:
    """Whether the alarm rang while this was done."""
    try:
        try:
            set_alarm(max(1e-6, seconds))
            work()
        finally:
            set_alarm(0)
    except Alarm:
        return True
    return False


class Strikes:
    """Alarms at given fractions of some work, and how many `rang` before it was done, on any machine.

    Its duration is the shortest that was seen: a first call fills caches, and others may be held up.
    """

    def __init__(self, work: Callable[[], Any], calls: int = 2) -> None:
        self.work, self.rang = work, 0
        self.duration = min(_seconds(work) for _ in range(calls))

    def strike(self, set_alarm: Ring, fraction: float) -> bool:
        """Whether the alarm rang."""
        begun = time.perf_counter()
        rang = rings(set_alarm, fraction * self.duration, self.work)
        if not rang:
            self.duration = min(self.duration, time.perf_counter() - begun)
        self.rang += rang
        return rang


def interrupted(
    model: nn.Module, work: Callable[[], Any], tries: int, seed: int
) -> tuple[int, list[list[str]]]:
    """(how often the alarm rang before the work was done, what each try left altered), moments drawn by the seed."""
    before, moments = everything(model), random.Random(seed)
    strikes = Strikes(work)
    altered: list[list[str]] = [differences(before, everything(model))]
    with alarms() as set_alarm:
        before = everything(model)
        for _ in range(tries):
            strikes.strike(set_alarm, moments.random() * 1.02)
            altered.append(differences(before, everything(model)))
    return strikes.rang, [names for names in altered if names]


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
