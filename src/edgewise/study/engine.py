"""Run what is missing: serially, on this machine's cores, or on a cluster; nothing twice, nothing lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from edgewise.errors import BadInput
from edgewise.study.backends import WorkerDied, answers
from edgewise.study.plan import Outcome, Plan, outcome_of
from edgewise.study.worker import Job

Tell = Callable[[int, int], None]  # cases answered, cases to do
PATIENCE = 3  # deaths of workers in a row without a finished case, before the rest is given up


def run(
    plan: Plan, workers: int = 1, scheduler: str | None = None, limit: int | None = None, tell: Tell | None = None
) -> Outcome:
    """Measure the cases that the store lacks (at most `limit`), then read all results from the store."""
    plan.records.mkdir(parents=True, exist_ok=True)
    before = plan.contents()
    missing = plan.missing(before.done)[:limit]
    if not missing:
        return outcome_of(plan, before)
    del before  # a million records need a gigabyte: not while others work
    queue = _Queue(plan, missing, tell)
    queue.measure(workers, scheduler)
    return outcome_of(plan, plan.contents(), len(missing) - len(queue.left), len(queue.left))


@dataclass
class _Queue:
    """The cases still to be measured; shortened whenever a worker's death makes a new start necessary."""

    plan: Plan
    left: list[str]
    tell: Tell | None
    _sent: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)

    def measure(self, workers: int, scheduler: str | None) -> None:
        """Measure all; what is left at the end lost its worker again and again."""
        barren, total = 0, len(self.left)
        while self.left and barren < PATIENCE:
            try:
                self._one_round(workers, scheduler, total)
                self.left = []
            except WorkerDied:
                before = len(self.left)
                self._look_again()
                barren = 0 if len(self.left) < before else barren + 1

    def _one_round(self, workers: int, scheduler: str | None, total: int) -> None:
        self._sent.clear()
        job = Job(str(self.plan.recipe.path), str(self.plan.records), self.plan.code)
        with closing(answers(job, self._sending(), workers, scheduler)) as stream:
            for count, done in enumerate(stream, start=total - len(self.left) + 1):
                if done.refusal:
                    raise BadInput(done.refusal)
                if done.failed:
                    self._failed.add(self.plan.cases[done.key])
                if self.tell is not None:
                    self.tell(count, total)

    def _sending(self) -> Iterator[str]:
        for case in self.left:
            self._sent.add(case)
            yield case

    def _look_again(self) -> None:
        """Ask the store what is left. The cases that were under way go to the end of the queue: one that kills
        its worker each time must not keep the others from being measured."""
        done = self.plan.contents().done
        left = [case for case in self.plan.missing(done) if case in set(self.left) - self._failed]
        self.left = sorted(left, key=lambda case: case in self._sent)
