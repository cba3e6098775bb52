"""The catalog of facts: one function each, and one row of the table in the docs.

A fact is a function of the evidence that yields findings. It raises `Undecided` with the reason if the evidence does
not tell, and `NotAsked` if what it needs was not given; a fact that yields nothing holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
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
    "theory": "seconds",
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
        compares, threshold, cannot = (
            part.removesuffix(".") for part in (compares.removeprefix("Compare "), threshold, cannot)
        )
        FACTS[name] = Fact(name, needs, compares, threshold, cost or NEEDS[needs], cannot, function)
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


def table(*columns: str) -> str:
    """Return these columns of the catalog as a Markdown table for the docs."""
    rows = sorted(FACTS.values(), key=lambda f: [*NEEDS].index(f.needs))
    words = {"name": "fact", "threshold": "threshold, and why", "cannot": "cannot decide"}
    lines = [[words.get(c, c) for c in columns], ["---"] * len(columns)]
    lines += [[str(getattr(f, c)) for c in columns] for f in rows]
    return "\n".join(f"|{'|'.join(f' {cell} ' for cell in line)}|" for line in lines) + "\n"


# --- causes before consequences ---
GROUPS = {
    "BROKEN": "loss not finite, gradient not finite, does not run, loss rises, first loss, empty attention row",
    "MOTION": "nothing moves, rounded away, update ratio, loss rises, eps, uphill",
    "GRADIENTS": "dead, no gradient, past not seen, input unused",
}
# A cause and the kinds that follow from it; earlier causes win.
TABLE = """
no numbers: BROKEN
not finite: BROKEN, GRADIENTS, nothing moves, rounded away, update ratio, eps, uphill, collapse, constant output
same batch: same samples
label of another sample: samples mixed, label offset, labels
masks and lengths: padding is seen, text is masked, padding in the loss, what is scored, empty attention row
input unused: dead, no gradient, batch unused, padding is seen, order not seen
class axis: first loss, leak, samples mixed, label offset, labels, own label seen
objects made in the step: schedule, order of the step, average, gradient at the step, nothing moves, dead, rate zero
weights between steps: update undone, loss rises, nothing moves, update ratio, gradient at the step
contract: labels, dead, no gradient, batch unused, loss without end, first loss, bounded outputs
own backward: gradient through depth, loss rises, uphill
pushed away: loss rises, uphill, loss and cross-entropy
loss without end: loss rises, update ratio, target scale, uphill
own label seen: leak
never written: BROKEN, GRADIENTS, silent norm, norm size, skip, dropout, symmetric, linear pair, positions, rows of
  tables, batch unused, router, constant output, norm eps, collapse, unlike siblings, weight scale, sharp attention,
  update ratio, initialization
norm eps: gradient through depth, update ratio, label offset, past not seen
norm size: norm eps, update ratio, collapse, equal heads, constant output
order of the step: MOTION, does not run, gradient at the step, dead, no gradient, rate zero, constant output, wiped
schedule: rate zero, update ratio, nothing moves, loss rises
update undone: nothing moves, update ratio, moved without gradient, rounded away
weight scale: norm eps, norm size, eps, equal heads, unlike siblings, gradient through depth, first loss, sharp
  attention, update ratio, collapse, initialization, skip, loss rises, constant output
same samples: dead, labels
data: BROKEN, nothing moves, rounded away, update ratio, eps, uphill, target scale, gradient through depth, norm eps,
  labels, padding in the loss, same samples
outliers: unlike siblings, untrained among trained, sharp attention, first loss, collapse, initialization
rows: first loss, loss rises
symmetric: copies, dead, equal heads, collapse, constant output, initialization, past not seen, weight scale, first
  loss, eps, update ratio, linear pair
tie: copies, initialization
shared: copies, initialization, layers not run
recipe: initialization, unlike siblings, first loss
silent norm: GRADIENTS, norm size, rounded away, dropout, gradient through depth, equal heads, router, constant
  output, norm eps, collapse, layers not run, unlike siblings, initialization, skip
empty attention row: loss not finite, gradient not finite, attention rows, loss rises, past not seen
half precision: rounded away, nothing moves, loss rises, eps, gradient not finite, update ratio, dead
rate scale: MOTION, groups, decay, constant output, collapse
gradient at the step: MOTION, dead, no gradient, constant output
rate zero: nothing moves, dead, update ratio
not in the optimizer: nothing moves, optimizer elsewhere, dead, groups, update undone
not in the model: not in the optimizer, no gradient
uphill: loss rises, pushed away
loss and cross-entropy: loss rises, update ratio, uphill
decay: loss rises, update ratio, rows decay, uphill
momentum: update ratio, loss rises, eps
groups: update ratio, loss rises
eps: update ratio, nothing moves
update ratio: loss rises, nothing moves, constant output
rounded away: update ratio, nothing moves, eps
positions: order not seen, dead, samples mixed
weak mask: leak, attention rows
softmax axis: leak, attention rows, past not seen, samples mixed, own token not seen
scores of tokens: order not seen, samples mixed, leak, past not seen, own token not seen
attention rows: leak
norm axis: leak, samples mixed, first loss, bounded outputs
state between calls: leak, samples mixed
samples mixed: leak, own token not seen, state between calls
leak: samples mixed, padding is seen, own token not seen, order not seen, tokens see others
label offset: own token not seen, first loss, padding in the loss, leak, loss and cross-entropy
labels: first loss, loss rises, loss and cross-entropy, bounded outputs, padding in the loss, label offset
bounded outputs: loss rises, first loss, gradient through depth, dead, constant output, labels
unlike siblings: norm eps, collapse, initialization, gradient through depth, skip, sharp attention, update ratio,
  first loss, constant output
skip: gradient through depth, collapse, no final norm, norm on the skip, past not seen, constant output
past not seen: order not seen, dead, own token not seen, no gradient
layers not run: no gradient, no final norm, gradient through depth
no gradient: input unused, batch unused, past not seen, dead, order not seen, nothing moves
constant output: input unused, equal heads, rows of tables, batch unused, past not seen, order not seen, dead,
  collapse, no gradient
target scale: first loss, loss rises, update ratio, gradient at the step
copies: initialization
norm on the skip: no final norm, skip
sharp attention: gradient through depth, collapse
mode: dropout
dropout: loss rises, gradient at the step
padding is seen: batch unused, empty attention row
average: update undone
batch unused: nothing moves, labels, eps, update ratio, dead
"""


def _parsed(text: str) -> dict[str, tuple[str, ...]]:
    for name, kinds in GROUPS.items():
        text = text.replace(name, kinds)
    rows = (line.split(": ") for line in text.replace("\n  ", " ").strip().splitlines())
    return {cause: tuple(kinds.split(", ")) for cause, kinds in rows}


FOLLOWS = _parsed(TABLE)


def tidy(findings: Iterable[CheckFinding]) -> list[CheckFinding]:
    """Join findings of one kind and severity, fold consequences, and put the worst first.

    A finding at least as severe as a consequence takes it under `follows`; a note never explains a warning.
    """
    joined: dict[tuple[str, str, str], CheckFinding] = {}
    for item in findings:
        key = (item.kind, item.severity, item.sentence)
        if key in joined:
            places = tuple(dict.fromkeys((*joined[key].places, *item.places)))
            joined[key] = replace(joined[key], places=places)
        else:
            joined[key] = item
    rest = list(joined.values())
    order = list(FOLLOWS)
    rest.sort(key=lambda f: order.index(f.kind) if f.kind in order else len(order))
    kept: list[CheckFinding] = []
    while any(f.severity != "note" for f in rest):
        loud = [f for f in rest if f.severity != "note"]
        causes = [f for f in loud if not any(_explains(g, f) and not _explains(f, g) for g in loud)]
        cause = (causes or loud)[0]  # in a circle the first of the table
        consequences = [f for f in rest if _explains(cause, f)]
        rest = [f for f in rest if f is not cause and not _explains(cause, f)]
        kinds = tuple(dict.fromkeys(f.kind for f in consequences if f.severity != "note"))
        worst = min([cause.severity, *(f.severity for f in consequences)], key=SEVERITIES.index)
        kept.append(replace(cause, follows=kinds, severity=worst))
    return sorted([*kept, *rest], key=lambda f: SEVERITIES.index(f.severity))


def _explains(cause: CheckFinding, other: CheckFinding) -> bool:
    return other.kind != cause.kind and other.kind in FOLLOWS.get(cause.kind, ())
