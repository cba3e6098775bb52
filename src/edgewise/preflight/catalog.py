"""The catalog of facts: one function each, and one row of the table in the docs.

A fact is a function of the evidence that yields findings. It raises `Undecided` with the reason if the evidence does
not tell, and `NotAsked` if what it needs was not given; a fact that yields nothing holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

SEVERITIES = ("error", "warning", "note")
NEEDS = {  # what a fact needs, and what that costs
    "tensors": "0",
    "optimizer": "0",
    "data": "0",
    "pass": "F",
    "loss": "F",
    "steps": "S",
    "changed": "+1",
    "loop": "S",
}


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
        return asdict(self) | {"places": list(self.places), "follows": list(self.follows)}


Check = Callable[[Any], Iterator[CheckFinding]]  # of a TrainingEvidence, which imports this file


@dataclass(frozen=True)
class Fact:
    """A row of the catalog."""

    name: str
    needs: str
    compares: str
    threshold: str
    cost: str
    cannot: str
    check: Check


FACTS: dict[str, Fact] = {}


def fact(name: str, *, needs: str, cost: str = "") -> Callable[[Check], Check]:
    """Register a function as a fact, whose docstring is its row: "Compare", "Threshold:", "Cannot decide:".

    needs  the evidence it needs: one of `NEEDS`
    cost   0: tensors only; F: part of the observed pass; S: part of the steps; +1: one more forward pass
    """

    def register(function: Check) -> Check:
        if name in FACTS or needs not in NEEDS:
            raise ValueError(f"fact {name!r} is registered twice, or needs {needs!r} of {tuple(NEEDS)}")
        text = " ".join((function.__doc__ or "").split())
        rest, _, cannot = text.partition(" Cannot decide: ")
        compares, _, threshold = rest.partition(" Threshold: ")
        row = (compares.removeprefix("Compare "), threshold, cost or NEEDS[needs], cannot)
        FACTS[name] = Fact(name, needs, *(part.removesuffix(".") for part in row), function)
        return function

    return register


def finding(
    severity: str,
    places: str | list[str] | tuple[str, ...],
    sentence: str,
    evidence: str = "",
    advice: str = "",
    **numbers: Any,
) -> CheckFinding:
    """Return a finding of the fact that yields it; `places` may be one name."""
    names = (places,) if isinstance(places, str) else tuple(dict.fromkeys(places))
    return CheckFinding("", severity, names, sentence, evidence, numbers, advice)


error, warning, note = (partial(finding, severity) for severity in SEVERITIES)


def table() -> str:
    """Return the catalog as a Markdown table for the docs."""
    head = "| fact | compares | threshold, and why | cost | cannot decide |\n|---|---|---|---|---|\n"
    rows = [
        f"| {f.name} | {f.compares} | {f.threshold} | {f.cost} | {f.cannot} |"
        for f in sorted(FACTS.values(), key=lambda f: [*NEEDS].index(f.needs))
    ]
    return head + "\n".join(rows) + "\n"
