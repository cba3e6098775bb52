"""The price of watching: thread time spent inside the monitor, against the time that training takes.

Both are CPU time of the thread where the model computes on the CPU, so that other programs on the machine count for
neither; where it computes on another device both are wall time. The next step to sample is the first at which all
that was spent, and what one more sample will cost, stay inside the budget. That is planned after a sample, and looked
at again when the step has come: the first steps are slower than the others, and say little about them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

GAPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # steps between two samples, so that most gaps are alike
EVERY = 0.2  # of the budget: where a sample costs more than this share of a step, not every step is sampled
AIM = 0.9  # of the budget is what samples are planned for
MEMORY = 0.3  # weight of the last sample in the expected cost
FULL = 2  # generation of a full garbage collection
FADES = 0.9  # how much of the dearest sample so far counts at the next one
FIRST = 4.0  # how many times as long as the others the first step may take, where its plan cannot be changed


class Clock:
    """Seconds spent inside `run`; nested use counts once."""

    def __init__(self, wall: bool = False) -> None:
        self.now: Callable[[], float] = time.perf_counter if wall else time.thread_time
        self.spent = 0.0
        self.beside: Callable[[], float] = lambda: 0.0  # seconds of another thread of ours
        self._depth, self._began = 0, 0.0
        self._thread, self._paused = 0, 0.0

    @property
    def total(self) -> float:
        """Seconds spent, also in what is going on."""
        return self.spent + self.beside() + (max(self.now() - self._began, 0.0) if self._depth else 0.0)

    def run(self, work: Callable[..., object], arguments: tuple[Any, ...], fail: Callable[[Exception], None]) -> None:
        """Work on the clock; an error goes to `fail` and no further. Hooks are cold, so every call less counts."""
        outside = self._depth == 0
        if outside:
            self._thread, self._began = get_ident(), self.now()
        self._depth += 1
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  the loop must not notice
            fail(error)
        finally:
            self._depth -= 1
            if outside:
                self.spent += max(self.now() - self._began, 0.0)

    def collection(self, phase: str, info: dict[str, int]) -> None:
        """For gc.callbacks: a full collection walks through all objects of the program, wherever it happens to begin.

        On a large program one takes as long as fifty samples, so it would be the price of chance.
        """
        if info["generation"] < FULL or not self._depth or get_ident() != self._thread:
            return
        if phase == "start":
            self._paused = self.now()
        else:
            self._began += self.now() - self._paused


class Budget:
    """When to sample next. `share`: what may be spent, as a share of the training's own time; None: every step.

    together: several processes sample the same steps, so that none can wait longer than was planned.
    """

    def __init__(self, share: float | None, clock: Clock, together: bool = False) -> None:
        self.share, self.clock, self.together = share, clock, together
        self.steps = self.samples = 0
        self.gap = 1
        self.sample_seconds = 0.0  # of one more sample, as far as is known
        self._began, self._before = clock.now(), clock.total
        self._at_sample = clock.total
        self._dear = 0.0  # cost of the dearest sample of late
        self._dearest = 0.0  # and of all

    @property
    def elapsed(self) -> float:
        """Seconds of training, without what the monitor took."""
        return max(self.clock.now() - self._began - self.spent, 1e-9)

    @property
    def spent(self) -> float:
        return self.clock.total - self._before

    @property
    def price(self) -> float:
        """What was spent, as a share of the training's own time."""
        return self.spent / self.elapsed

    def restart(self) -> None:
        """Count from now on, as if the monitor had just been attached."""
        self.steps = self.samples = 0
        self._began, self._before = self.clock.now(), self.clock.total

    def proposal(self) -> int:
        """How many steps to wait, as seen before the sample at hand is complete."""
        return 1 if self.share is None else self._next_gap(self.share)

    def sampled(self, gap: int) -> None:
        """A sample is complete, and the next one comes after `gap` steps."""
        cost = self.clock.total - self._at_sample
        self._at_sample = self.clock.total
        self.samples += 1
        # The first sample is dearer than the others: it warms caches up.
        old = cost if self.samples <= 2 else self.sample_seconds
        self.sample_seconds = (1 - MEMORY) * old + MEMORY * cost
        self._dear = cost if self.samples <= 2 else max(cost, FADES * self._dear)
        self._dearest = max(cost, self._dearest)
        self.gap = gap

    def postponed(self) -> int:
        """How many steps to wait on, at a step that was planned to be sampled; 0: it can be paid."""
        if self.share is None or self.together:
            return 0
        share = AIM * self.share
        return max(0, math.ceil(self._owed(share) / (share * self._step)))

    @property
    def _step(self) -> float:
        """Seconds of a step of the training."""
        return self.elapsed / (self.steps or (FIRST if self.together else 1))

    def _owed(self, share: float) -> float:
        """Seconds that are missing for one more sample, and a reserve of one as dear as the dearest so far."""
        return self.spent + self._dear + self._dearest - share * self.elapsed

    def _next_gap(self, share: float) -> int:
        step, share = self._step, AIM * share
        owed = self._owed(share)
        gaps = GAPS[1:] if self.sample_seconds > EVERY * share * step else GAPS
        return next((gap for gap in gaps if owed <= share * gap * step), GAPS[-1])

    def sentence(self) -> str:
        """What is sampled and what it costs, for people."""
        often = "every step" if self.gap == 1 else f"one step in {self.gap}"
        limit = "" if self.share is None else f" of {self.share:.1%} allowed"
        return (
            f"sampled {self.samples} of {self.steps} steps, now {often}; "
            f"{1e3 * self.sample_seconds:.1f} ms a sample, {self.price:.2%} of the training time{limit}"
        )
