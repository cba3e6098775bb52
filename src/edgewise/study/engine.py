"""Run what is missing: serially, on this machine's cores through joblib, or on a Dask cluster; never twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.study import store
from edgewise.study.code_hash import code_hash
from edgewise.study.json_values import dumps
from edgewise.study.recipe import Recipe
from edgewise.study.record import key_of
from edgewise.study.result import Result
from edgewise.study.worker import Done, Job, work

Tell = Callable[[int, int], None]  # cases done, cases to do


@dataclass(frozen=True)
class Plan:
    """The cases of one scale by key, in the recipe's order, and the code that measures them."""

    recipe: Recipe
    scale: str
    folder: Path
    code: str
    cases: dict[str, str]

    @classmethod
    def of(cls, recipe: Recipe, scale: str = "small", into: str | Path = "runs") -> Plan:
        code = code_hash(recipe.path)
        texts = [dumps(case) for case in recipe.cases(scale)]
        cases = {key_of(text, code): text for text in texts}
        return cls(recipe, scale, Path(into).resolve() / recipe.name, code, cases)

    @property
    def records(self) -> Path:
        return self.folder / "records"

    def contents(self) -> store.Contents:
        """What the store holds of these cases."""
        return store.read(store.files_of(self.records), set(self.cases))


@dataclass(frozen=True)
class Outcome:
    """Results in the order of the cases, and what is missing or went wrong."""

    results: list[Result]
    computed: int
    failures: dict[str, str]
    missing: int
    damaged: int
    differing: int


def run(
    plan: Plan, workers: int = 1, scheduler: str | None = None, limit: int | None = None, tell: Tell | None = None
) -> Outcome:
    """Measure the cases that the store lacks (at most `limit`), then read all results from the store."""
    plan.records.mkdir(parents=True, exist_ok=True)
    before = plan.contents()
    missing = [text for key, text in plan.cases.items() if key not in before.done][:limit]
    job = Job(str(plan.recipe.path), str(plan.records), plan.code)
    for count, done in enumerate(_answers(job, missing, workers, scheduler), start=1):
        if done.refusal:
            raise BadInput(done.refusal)
        if tell is not None:
            tell(count, len(missing))
    return outcome(plan, len(missing))


def outcome(plan: Plan, computed: int = 0) -> Outcome:
    """What the store holds now."""
    contents = plan.contents()
    records = [contents.done[key] for key in plan.cases if key in contents.done]
    results = [Result(record.case, record.value or {}, record.seconds) for record in records]
    failures = {plan.cases[key]: record.error or "" for key, record in contents.failed.items()}
    return Outcome(results, computed, failures, len(plan.cases) - len(results), contents.damaged, contents.differing)


def _answers(job: Job, missing: list[str], workers: int, scheduler: str | None) -> Iterator[Done]:
    if workers == 1 and scheduler is None:
        return (work(job, text) for text in missing)
    import joblib

    parallel: Any = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
    answers: Iterator[Done] = parallel(joblib.delayed(work)(job, text) for text in missing)
    return answers
