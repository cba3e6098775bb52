"""Run what is missing of a recipe: serially, on this machine's cores, or on a cluster; nothing twice, nothing lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from edgewise.errors import BadInput
from edgewise.study import store
from edgewise.study.code_hash import code_hash
from edgewise.study.recipe import Recipe, Result
from edgewise.study.store import dumps, key_of
from edgewise.study.workers import Job, WorkerDied, answers

RECORDS = "records"
PER_CORE = 64  # processes; cases that wait may use more of them than there are cores


def folder_of(name: str, into: str | Path) -> Path:
    """Where the runs of a recipe are written."""
    return Path(into).resolve() / name


def records_of(name: str, into: str | Path) -> Path:
    """Where the records of a recipe are."""
    return folder_of(name, into) / RECORDS


@dataclass(frozen=True)
class Work:
    """What is to be measured: a recipe's cases of one scale, as canonical JSON by key, and where their records are.

    A key stands for the content of a case and the code that measures it.
    """

    recipe: Recipe
    scale: str
    folder: Path
    code: str
    cases: dict[str, str]

    @classmethod
    def of(cls, recipe: Recipe, scale: str = "small", into: str | Path = "runs") -> Work:
        code = code_hash(recipe.path)
        cases = {key_of(text, code): text for text in map(dumps, recipe.cases(scale))}
        return cls(recipe, scale, folder_of(recipe.name, into), code, cases)

    @property
    def records(self) -> Path:
        """The folder of records, shared by both scales: a case in both is measured once."""
        return self.folder / RECORDS

    def contents(self) -> store.Contents:
        """What the store holds of these cases."""
        return store.read(store.files_of(self.records), set(self.cases))

    def missing(self, done: Collection[str]) -> list[str]:
        """The cases that are not done, in order."""
        return [text for key, text in self.cases.items() if key not in done]


@dataclass(frozen=True)
class Results:
    """The measured cases in the recipe's order, what is missing, and what was wrong with the store.

    failures: case to traceback. lost: cases whose worker died each time. damaged: unreadable lines.
    differing: cases that two workers measured with different values, so `measure` is not deterministic.
    """

    cases: list[Result]
    missing: int
    failures: dict[str, str]
    computed: int = 0
    lost: int = 0
    damaged: int = 0
    differing: int = 0


def results_of(work: Work, contents: store.Contents, computed: int = 0, lost: int = 0) -> Results:
    """What a store's contents hold of some work."""
    records = [contents.done[key] for key in work.cases if key in contents.done]
    cases = [Result(record.case, record.value or {}, record.seconds) for record in records]
    failures = {work.cases[key]: record.error or "" for key, record in contents.failed.items()}
    missing = len(work.cases) - len(cases)
    return Results(cases, missing, failures, computed, lost, contents.damaged, contents.differing)


Tell = Callable[[int, int], None]  # cases answered, cases to do
TRIES = 3  # deaths of the worker of one case, alone in flight, before that case is given up


def run(
    work: Work, workers: int = 1, scheduler: str | None = None, limit: int | None = None, tell: Tell | None = None
) -> Results:
    """Measure the cases that the store lacks (at most `limit`), then read all results from the store."""
    work.records.mkdir(parents=True, exist_ok=True)
    before = work.contents()
    missing = work.missing(before.done)[:limit]
    if not missing:
        return results_of(work, before)
    del before  # a million records need a gigabyte: not while others work
    queue = _Queue(work, missing, tell)
    queue.measure(_processes(workers, len(missing)), scheduler)
    return results_of(work, work.contents(), len(missing) - len(queue.lost), len(queue.lost))


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
        job = Job(str(self.work.recipe.path), str(self.work.records), self.work.code)
        with closing(answers(job, _noted(cases, sent), workers, scheduler)) as stream:
            for count, done in enumerate(stream, start=total - len(self.left) + 1):
                if done.refusal:
                    raise BadInput(done.refusal)
                if done.failed:
                    self._failed.add(self.work.cases[done.key])
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
