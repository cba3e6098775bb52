"""Engine of recipes: measure what is missing, serially, on all cores or on a cluster; resume after a kill."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edgewise.errors import BadInput
from edgewise.study import store
from edgewise.study.recipe import Recipe, Result
from edgewise.study.store import Stamp, dumps
from edgewise.study.workers import RunJob, WorkerDied, answers, source_of

RECORDS = "records"
PER_CORE = 64  # processes; cases that wait may use more of them than there are cores


def folder_of(name: str, into: str | Path) -> Path:
    """Return where the runs of a recipe are written."""
    return Path(into).resolve() / name


def records_of(name: str, into: str | Path) -> Path:
    """Return where the records of a recipe are."""
    return folder_of(name, into) / RECORDS


@dataclass(frozen=True)
class Work:
    """What is to be measured: a recipe's cases of one scale, as canonical JSON, and where their records are."""

    recipe: Recipe
    scale: str
    folder: Path
    cases: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe, scale: str = "small", into: str | Path = "runs") -> Work:
        return cls(recipe, scale, folder_of(recipe.name, into), tuple(map(dumps, recipe.cases(scale))))

    @property
    def records(self) -> Path:
        """The folder of records, shared by both scales: a case in both is measured once."""
        return self.folder / RECORDS

    def contents(self) -> store.Contents:
        """Return what the store holds of these cases."""
        return store.read(store.files_of(self.records), set(self.cases))

    def missing(self, done: Collection[str]) -> list[str]:
        """Return the cases that are not done, in order."""
        return [case for case in self.cases if case not in done]

    def start_fresh(self) -> None:
        """Set earlier records aside, in a folder beside them, so that every case is measured again."""
        if self.records.is_dir():
            self.records.rename(self.records.with_name(f"{RECORDS}-until-{time.strftime('%Y%m%d-%H%M%S')}"))


@dataclass(frozen=True)
class Results:
    """The measured cases in the recipe's order, what is missing, and what was wrong with the store.

    failures: case to traceback. lost: cases whose worker died each time. damaged: unreadable lines.
    differing: cases that two workers measured with different values, so `measure` is not deterministic.
    stamps: what measured them. earlier: what measured those that were there before this run.
    """

    cases: list[Result]
    missing: int
    failures: dict[str, str]
    computed: int = 0
    lost: int = 0
    damaged: int = 0
    differing: int = 0
    stamps: tuple[Stamp, ...] = ()
    earlier: tuple[Stamp, ...] = ()


def results_of(work: Work, contents: store.Contents) -> Results:
    """Return what a store's contents hold of some work."""
    records = [contents.done[case] for case in work.cases if case in contents.done]
    cases = [Result(record.case, record.value or {}, record.seconds) for record in records]
    failures = {case: record.error or "" for case, record in contents.failed.items()}
    missing, stamps = len(work.cases) - len(cases), tuple(contents.stamps())
    return Results(
        cases, missing, failures, damaged=contents.damaged, differing=contents.differing, stamps=stamps
    )


Tell = Callable[[int, int], None]  # cases answered, cases to do
TRIES = 3  # deaths of the worker of one case, alone in flight, before that case is given up


def run(
    work: Work,
    workers: int = 1,
    scheduler: str | None = None,
    limit: int | None = None,
    tell: Tell | None = None,
) -> Results:
    """Measure the cases that the store lacks (at most `limit`), then read all results from the store."""
    work.records.mkdir(parents=True, exist_ok=True)
    before = work.contents()
    missing, earlier = work.missing(before.done)[:limit], tuple(before.stamps())
    if not missing:
        return replace(results_of(work, before), earlier=earlier)
    del before  # a million records need a gigabyte: not while others work
    queue = _Queue(work, missing, tell)
    queue.measure(_processes(workers, len(missing)), scheduler)
    measured, lost = len(missing) - len(queue.lost), len(queue.lost)
    return replace(results_of(work, work.contents()), computed=measured, lost=lost, earlier=earlier)


def _processes(workers: int, cases: int) -> int:
    """No more than there are cases, or than a machine can hold.

    Who asked for processes gets at least two: one that is ended by its case must not end the run.
    """
    return workers if workers < 2 else max(2, min(workers, cases, PER_CORE * (os.cpu_count() or 1)))


@dataclass
class _Queue:
    """The cases still to be measured; shortened whenever a worker's death makes a new start necessary."""

    work: Work
    left: list[str]
    tell: Tell | None
    lost: list[str] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)

    def measure(self, workers: int, scheduler: str | None) -> None:
        """Measure all; what is `lost` at the end lost its worker again and again.

        After a death the cases that were under way go to the end. If not even one case was finished before it,
        they are measured one by one: then it is known which of them kills its worker.
        """
        total = len(self.left)
        one_round = partial(self._one_round, workers=workers, scheduler=scheduler, total=total)
        while self.left:
            before, sent = len(self.left), set[str]()
            try:
                one_round(self.left, sent)
                self.left = []
            except WorkerDied:
                self._look_again(sent)
                if len(self.left) == before:
                    self._one_by_one(one_round, [case for case in self.left if case in sent])

    def _one_by_one(self, one_round: Callable[[list[str], set[str]], None], suspects: list[str]) -> None:
        """Each alone, with three tries; if that loses three in a row, the fault is not the cases', and all stop."""
        in_a_row = 0
        for case in suspects:
            survived = any(_survives(one_round, case) for _ in range(TRIES))
            self.left.remove(case)
            in_a_row = 0 if survived else in_a_row + 1
            self.lost += [] if survived else [case]
            if in_a_row == TRIES:
                self.lost, self.left = self.lost + self.left, []
                return

    def _one_round(
        self, cases: list[str], sent: set[str], workers: int, scheduler: str | None, total: int
    ) -> None:
        path = self.work.recipe.path
        job = RunJob(str(path), str(self.work.records), source_of(path))
        with closing(answers(job, _noted(cases, sent), workers, scheduler)) as stream:
            for count, done in enumerate(stream, start=total - len(self.left) + 1):
                if done.refusal:
                    raise BadInput(done.refusal)
                if done.failed:
                    self._failed.add(done.case)
                if self.tell is not None:
                    self.tell(count, total)

    def _look_again(self, sent: set[str]) -> None:
        """Ask the store what is left; what was sent comes last."""
        open_cases = set(self.left) - self._failed
        left = [case for case in self.work.missing(self.work.contents().done) if case in open_cases]
        self.left = sorted(left, key=lambda case: case in sent)


def _survives(one_round: Callable[[list[str], set[str]], None], case: str) -> bool:
    try:
        one_round([case], set())
    except WorkerDied:
        return False
    return True


def _noted(cases: list[str], sent: set[str]) -> Iterator[str]:
    for case in cases:
        sent.add(case)
        yield case
