"""What is to be measured: a recipe's cases of one scale, each under the key of its content and its code."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from edgewise.study import store
from edgewise.study.code_hash import code_hash
from edgewise.study.json_values import dumps
from edgewise.study.recipe import Recipe
from edgewise.study.record import key_of
from edgewise.study.result import Result


@dataclass(frozen=True)
class Plan:
    """The cases by key, in the recipe's order, as canonical JSON; and where their records are."""

    recipe: Recipe
    scale: str
    folder: Path
    code: str
    cases: dict[str, str]

    @classmethod
    def of(cls, recipe: Recipe, scale: str = "small", into: str | Path = "runs") -> Plan:
        code = code_hash(recipe.path)
        cases = {key_of(text, code): text for text in map(dumps, recipe.cases(scale))}
        return cls(recipe, scale, Path(into).resolve() / recipe.name, code, cases)

    @property
    def records(self) -> Path:
        """The folder of records, shared by both scales: a case in both is measured once."""
        return self.folder / "records"

    def contents(self) -> store.Contents:
        """What the store holds of these cases."""
        return store.read(store.files_of(self.records), set(self.cases))

    def missing(self, done: Collection[str]) -> list[str]:
        """The cases that are not done, in order."""
        return [text for key, text in self.cases.items() if key not in done]


@dataclass(frozen=True)
class Outcome:
    """Results in the order of the cases, what is missing, and what was wrong with the store.

    failures: case to traceback. lost: cases whose worker died each time. damaged: unreadable lines.
    differing: cases that two workers measured with different values, so `measure` is not deterministic.
    """

    results: list[Result]
    missing: int
    failures: dict[str, str]
    computed: int = 0
    lost: int = 0
    damaged: int = 0
    differing: int = 0


def outcome_of(plan: Plan, contents: store.Contents, computed: int = 0, lost: int = 0) -> Outcome:
    """The results that a store's contents hold of a plan."""
    records = [contents.done[key] for key in plan.cases if key in contents.done]
    results = [Result(record.case, record.value or {}, record.seconds) for record in records]
    failures = {plan.cases[key]: record.error or "" for key, record in contents.failed.items()}
    missing = len(plan.cases) - len(results)
    return Outcome(results, missing, failures, computed, lost, contents.damaged, contents.differing)
