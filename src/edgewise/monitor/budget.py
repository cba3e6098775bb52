"""The price of watching: thread time spent inside the monitor, against the time that training takes.

Both are CPU time of the thread if the model computes on the CPU, so that other programs on the machine count for
neither; if it computes on another device both are wall time. What may be spent by now is the largest of

    the share        of the training time so far
    ahead            the share of the first 200 steps
    the total        half of three seconds and half of the share: three seconds when the two meet

so that short runs of small models have rows too. A step is sampled when all that was spent, and what one more sample
will cost, stay inside three quarters of that in calm times, and inside 0.85 or 0.9 when a detector is close or the loss
has jumped. The first ten steps are all sampled if the total pays for them.

Several processes must agree: they plan the next step to sample when they sample one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

GAPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # steps between two samples, so that most gaps are alike
# of the budget: where a sample costs more than this share of a step, every second one in calm times
EVERY = 0.2
AIM = 0.9  # of the budget is what samples are planned for
# of the budget, in calm times, and when a detector is close; the rest is for jumps of the loss
CALM, NEAR = (0.75, 0.85)
PAID = 200  # steps whose share is spent ahead
TOTAL = 3.0  # seconds that a run may always cost
SPREAD = 1000  # steps over which the total is spread, evenly over the logarithm of the step, as things change
START = 10  # steps that are all sampled
ENDLESS = 50.0  # logarithm of a wait that is longer than any run
MEMORY = 0.3  # weight of the last sample in the expected cost
FULL = 2  # generation of a full garbage collection
FADES = 0.9  # how much of the dearest sample so far counts at the next one
FIRST = 4.0  # how many times as long as the others the first step, and the first sample, may take


class Clock:
    """Seconds spent inside `run`; nested use counts once."""

    def __init__(self, wall: bool = False) -> None:
        self.now: Callable[[], float] = time.perf_counter if wall else time.thread_time
        self.spent = 0.0
        self.beside: Callable[[], float] = lambda: 0.0  # seconds of another thread of ours
        self._running, self._began = False, 0.0
        self._thread, self._paused = 0, 0.0
        self.other = 0.0  # seconds of tests for causes, which are priced apart
        self.aside = False  # whether such a test is going on

    @property
    def total(self) -> float:
        """Seconds spent, also in what is going on."""
        return self.spent + self.beside() + (max(self.now() - self._began, 0.0) if self._running else 0.0)

    def run(
        self, work: Callable[..., object], arguments: tuple[Any, ...], fail: Callable[[Exception], None]
    ) -> None:
        """Work on the clock; an error goes to `fail` and no further. Hooks are cold, so every call less counts."""
        inside = self._running
        if not inside:
            self._running = True
            self._thread = get_ident()
            self._began = self.now()
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  the loop must not notice
            fail(error)
        finally:
            if not inside:
                self._running = False
                self.spent += self.now() - self._began

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Work that has a price of its own: it does not count as spent."""
        began = self.now()
        self.aside = True
        try:
            yield
        finally:
            self.aside = False
            self.other += self.now() - began
            self._began += self.now() - began if self._running else 0.0

    def collection(self, phase: str, info: dict[str, int]) -> None:
        """For gc.callbacks: a full collection walks through all objects of the program, wherever it happens to begin.

        On a large program one takes as long as fifty samples, so it would be the price of chance.
        """
        if info["generation"] < FULL or not self._running or get_ident() != self._thread:
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
        self._lent = TOTAL / 2  # seconds that need not be earned first
        self.steps = self.samples = 0
        self.gap = 1
        self.sample_seconds = 0.0  # of one more sample, as far as is known
        self._began, self._before = clock.now(), clock.total
        self._at_sample = clock.total
        self._dear = 0.0  # cost of the dearest sample of late
        self._dearest = 0.0  # and of all but the first
        self._age = self._since = 0  # steps in all, and since the last sample
        self._first_step = 0.0  # seconds, which are more than those of others
        # steps in all before which a sample cannot be paid: in calm times, and else
        self._not_before = [0, 0]

    @property
    def elapsed(self) -> float:
        """Seconds of training, without what the monitor took."""
        return max(self.clock.now() - self._began - self.spent - self.clock.other, 1e-9)

    @property
    def spent(self) -> float:
        return self.clock.total - self._before

    @property
    def price(self) -> float:
        """Return the time spent, as a share of the training's own time."""
        return self.spent / self.elapsed

    def restart(self) -> None:
        """Count from now on; what was spent ahead is not lent again."""
        self._not_before = [0, 0]
        self._lent = 0.0
        self.steps = self.samples = 0
        self._began, self._before = self.clock.now(), self.clock.total

    def proposal(self) -> int:
        """Propose a number of steps to wait, as seen before the current sample is complete."""
        return 1 if self.share is None else self._next_gap(self.share)

    def sampled(self, gap: int) -> None:
        """A sample is complete; gap: steps to the next one if it is planned, else from the last one."""
        cost = self.clock.total - self._at_sample
        self._at_sample = self.clock.total
        self.samples += 1
        # the first warms caches up and looks for masks, and says little about the others
        if not self.sample_seconds:
            cost /= FIRST
        old = cost if self.samples <= 2 else self.sample_seconds
        self.sample_seconds = (1 - MEMORY) * old + MEMORY * cost
        self._dear = cost if self.samples <= 2 else max(cost, FADES * self._dear)
        self._dearest = cost if self.samples <= 2 else max(cost, self._dearest)
        self.gap, self._since = gap, 0
        self._not_before = [0, 0]

    def stepped(self) -> None:
        """A step is over."""
        self.steps += 1
        self._age += 1
        self._since += 1
        if self._age == 1:
            self._first_step = self.elapsed

    def due(self, near: bool = False, restless: bool = False) -> bool:
        """Return whether the next step is to be sampled, as far as one process can say.

        near: a detector is close to an alarm; restless: the loss has jumped.
        """
        if self.share is None:
            return True
        if self._age < self._not_before[near or restless]:
            return False
        spent = self.spent
        elapsed = max(self.clock.now() - self._began - spent - self.clock.other, 1e-9)
        step = self._step_of(elapsed)
        part = AIM if restless else NEAR if near else CALM
        funds = self._funds(self.share, elapsed, step)
        left = min(part * funds, AIM * funds - self._dearest) - self._dear - spent
        if left < 0:  # steps that cannot pay it, so that it need not be asked at each of them
            self._not_before[near or restless] = self._age - int(0.7 * left / (self.share * AIM * step))
        return left >= 0 and (near or restless or self._since >= self._wait(left, self.share * step))

    def _funds(self, share: float, elapsed: float, step: float) -> float:
        """Return the seconds that may be spent by now."""
        ahead = max(0, PAID - self._age) * step
        return max(share * (elapsed + ahead), self._lent + share * elapsed / 2)

    def _wait(self, left: float, pay: float) -> float:
        """Steps between two samples in calm times; pay: seconds that a step may cost."""
        if self._age < START:
            return 1.0
        least = 2.0 if self.sample_seconds > EVERY * pay and self._age > PAID else 1.0
        if self._age >= SPREAD:
            return least
        rows = left / max(self.sample_seconds, 1e-9)  # until what is lent at the start is spent
        apart = math.log(SPREAD / self._age) / max(rows, 1e-3)  # between two, in the logarithm of the step
        return max(least, self._age * math.expm1(min(apart, ENDLESS)))

    def _step_of(self, elapsed: float) -> float:
        """Seconds of a step of the training."""
        if self._age == self.steps > 1:  # the first is longer than the others, and says little about them
            return (elapsed - self._first_step) / (self.steps - 1)
        return elapsed / (self.steps or 1) / (FIRST if self._age < 2 else 1)

    def _next_gap(self, share: float) -> int:
        step, share = self._step_of(self.elapsed), AIM * share
        funds = max(share * self.elapsed, AIM * self._lent + share * self.elapsed / 2)
        owed = self.spent + self._dear + self._dearest - funds
        gaps = GAPS[1:] if self.sample_seconds > EVERY * share * step else GAPS
        return next((gap for gap in gaps if owed <= share * gap * step), GAPS[-1])

    def sentence(self) -> str:
        """Describe what is sampled and what it costs, for people."""
        gap = 1 if self.share is None else max(self.gap, self._since)  # a sample may be overdue
        often = "every step" if gap == 1 else f"one step in {gap}"
        limit = (
            ""
            if self.share is None
            else f"; allowed are {self.share:.1%} or {TOTAL:.0f} s, whichever is more"
        )
        return (
            f"sampled {self.samples} of {self.steps} steps, now {often}; {1e3 * self.sample_seconds:.1f} ms a sample, "
            f"{self.spent:.2f} s in all, {self.price:.2%} of the training time{limit}"
        )
