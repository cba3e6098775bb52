"""The class of one attempt: what an input may end in, and what it may not."""

from __future__ import annotations

import ctypes
import gc
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from edgewise.errors import BadInput

ANSWERED, REFUSED = "answered", "refused by name"
WRONG, TRACEBACK, INTERNAL, HANG, MEMORY = "wrong", "traceback", "exit 70", "hang", "memory"
CLASSES = (ANSWERED, REFUSED, WRONG, TRACEBACK, INTERNAL, HANG, MEMORY)
GOOD = (ANSWERED, REFUSED)
SECONDS, BYTES = 20, 4 * 2**30
BLOCKED = 20  # seconds of the clock in which nothing computes: it waits for what never comes, as at a pipe


class WrongAnswer(AssertionError):
    """An answer that breaks an invariant."""


class Internal(AssertionError):
    """The exit code 70."""


class TooLong(BaseException):
    """More than SECONDS; not an Exception, so that nothing on the way takes it for its own."""


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, and its words."""

    kind: str
    words: str = ""

    @property
    def good(self) -> bool:
        return self.kind in GOOD


def attempt(trial: Callable[[], Any]) -> Ending:
    """Run it for at most SECONDS of processor time, and see how it ends and how much memory it took."""
    before = _start_peak()
    stops = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS, 0, _stop)}
    stops[signal.SIGALRM] = signal.ITIMER_REAL, BLOCKED, BLOCKED, _stop_if_idle(computed())
    previous = {number: signal.signal(number, stop) for number, (*_, stop) in stops.items()}
    for timer, seconds, again, _ in stops.values():
        signal.setitimer(timer, seconds, again)
    try:
        ending = _ending(trial)
    finally:
        for number, (timer, *_) in stops.items():
            signal.setitimer(timer, 0)
            signal.signal(number, previous[number])
    peak = _peak() - before
    return Ending(MEMORY, f"{peak / 2**30:.1f} GB; {ending.kind}: {ending.words}") if peak > BYTES else ending


def _ending(trial: Callable[[], Any]) -> Ending:
    try:
        trial()
        return Ending(ANSWERED)
    except TooLong as error:
        return Ending(HANG, "".join(traceback.format_tb(error.__traceback__)[-3:]))
    except BadInput as error:
        return _refusal(str(error))
    except WrongAnswer as error:
        return Ending(WRONG, str(error))
    except Internal as error:
        return Ending(INTERNAL, str(error))
    except Exception:  # noqa: BLE001  whatever else is raised is what is looked for
        return Ending(TRACEBACK, traceback.format_exc(limit=-4))


def _refusal(words: str) -> Ending:
    """A refusal says what was seen, what is expected or what to do: one word does not."""
    says = len(words.split()) >= 5
    return Ending(REFUSED, words) if says else Ending(WRONG, f"a refusal that says nothing: {words!r}")


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise TooLong


def _stop_if_idle(before: float) -> Callable[[int, FrameType | None], None]:
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal before
        before, earlier = computed(), before
        if before - earlier < 0.1:
            raise TooLong

    return stop


def computed() -> float:
    """Seconds of processor time of this process and all that it started and that still run."""
    total, own = 0.0, psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:2])
    return total


def _start_peak() -> int:
    """Forget the largest resident size so far where the kernel can, and return the one that counts from here.

    What earlier attempts left is given back first: given back during this one, it would hide as much of its own.
    """
    gc.collect()
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The largest resident size, bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
