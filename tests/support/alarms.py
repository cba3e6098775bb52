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


def interrupted(model: nn.Module, work: Callable[[], Any], tries: int, seed: int) -> tuple[int, list[list[str]]]:
    """(how often the alarm rang before the work was done, what each try left altered), moments drawn by the seed.

    The duration is the shortest of two calls: the first one fills caches.
    """
    before, moments, rang = everything(model), random.Random(seed), 0
    duration = min(_seconds(work), _seconds(work))
    altered: list[list[str]] = [differences(before, everything(model))]
    with alarms() as set_alarm:
        before = everything(model)
        for _ in range(tries):
            rang += rings(set_alarm, moments.random() * 1.02 * duration, work)
            altered.append(differences(before, everything(model)))
    return rang, [names for names in altered if names]


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
