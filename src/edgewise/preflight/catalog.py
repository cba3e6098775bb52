"""The catalog of facts: one function each, and one row of the table in the docs.

A fact is a function of the evidence that yields findings. It raises `Undecided` with the reason if the evidence does
not tell, and `NotAsked` if what it needs was not given; a fact that yields nothing holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

SEVERITIES = ("error", "warning", "note")
NEEDS = ("tensors", "optimizer", "data", "pass", "loss", "steps", "changed", "loop")


class Undecided(Exception):
    """The evidence does not tell whether a fact holds; the message says why."""


class NotAsked(Exception):
    """What a fact is about was not given, or does not occur in this training."""


@dataclass(frozen=True)
class CheckFinding:
    """One fact that does not hold.

    kind      the name of the fact
    severity  error: this cannot be meant; warning: rarely meant; note: good to know, often meant
    places    names of modules or parameters, or `optimizer`, `loss`, `labels`, `data`, `step`, `model`
    sentence  what is wrong, for people
    evidence  what was seen
    numbers   the same for programs
    advice    what to do
    follows   kinds of further findings that this one explains
    """

    kind: str
    severity: str
    places: tuple[str, ...]
    sentence: str
    evidence: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    advice: str = ""
    follows: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        """Return the finding as the schema `check-1` has it."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "places": list(self.places),
            "sentence": self.sentence,
            "evidence": self.evidence,
            "numbers": self.numbers,
            "advice": self.advice,
            "follows": list(self.follows),
        }

    def at_most(self, severity: str) -> CheckFinding:
        """Return the finding with a severity no worse than this one."""
        worse = SEVERITIES.index(self.severity) < SEVERITIES.index(severity)
        return replace(self, severity=severity) if worse else self


Check = Callable[[Any], Iterator[CheckFinding]]  # of a TrainingEvidence, which imports this file


@dataclass(frozen=True)
class Fact:
    """A row of the catalog."""

    name: str
    group: str
    needs: str
    compares: str
    threshold: str
    cost: str
    cannot: str
    check: Check


FACTS: dict[str, Fact] = {}


def fact(
    name: str, *, needs: str, compares: str, threshold: str, cost: str = "0", cannot: str = ""
) -> Callable[[Check], Check]:
    """Register a function as a fact.

    needs      the evidence it needs: one of `NEEDS`
    compares   what is compared with what
    threshold  the limit, and why
    cost       0: tensors only; F: part of the observed pass; S: part of the steps; +1: one more forward pass
    cannot     what it cannot decide
    """

    def register(function: Check) -> Check:
        if name in FACTS or needs not in NEEDS:
            raise ValueError(f"fact {name!r} is registered twice, or needs {needs!r} of {NEEDS}")
        group = function.__module__.rpartition(".")[2].removesuffix("_facts")
        FACTS[name] = Fact(name, group, needs, compares, threshold, cost, cannot, function)
        return function

    return register


def finding(
    kind: str,
    severity: str,
    places: str | list[str] | tuple[str, ...],
    sentence: str,
    evidence: str = "",
    advice: str = "",
    **numbers: Any,
) -> CheckFinding:
    """Return a finding; `places` may be one name."""
    names = (places,) if isinstance(places, str) else tuple(dict.fromkeys(places))
    return CheckFinding(kind, severity, names, sentence, evidence, numbers, advice)


def table() -> str:
    """Return the catalog as a Markdown table for the docs."""
    head = "| fact | compares | threshold, and why | cost | cannot decide |\n|---|---|---|---|---|\n"
    rows = [
        f"| {f.name} | {f.compares} | {f.threshold} | {f.cost} | {f.cannot} |"
        for f in sorted(FACTS.values(), key=lambda f: NEEDS.index(f.needs))
    ]
    return head + "\n".join(rows) + "\n"
