"""The verdict over one model, from everything that was seen of it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

from . import said, said_structure
from .checker import Facts
from .compare import differences, owned
from .handwritten import Label
from .truth import from_checker, from_label

OUTCOMES = (
    "right",
    "silently wrong",
    "wrong with a note",
    "described but not measured",
    "refused rightly",
    "refused for a wrong reason",
    "refused wrongly",
    "raw traceback",
    "too slow",
    "not judged",
    "not built",
)
PARTED = (
    0.2  # log of predicted over measured; at width 256 and one seed right descriptions stay below half of it
)
FEW = 3  # calls of softmax in a pass: fewer need no stack of attention
REASONS = (
    "no attention",
    "no softmax",
    "state space",
    "convolution",
    "several streams",
    "more than one stream",
    "hyper-connection",
    "stages",
    "width changes",
    "pads",
    "padding",
    "not a transformer",
)


@dataclass
class Evidence:
    """What edgewise said, and what labels and the checker know."""

    described: said.Answer
    measured: said.Answer
    stacks: dict[
        str, Any
    ]  # that edgewise sees, the described one first: their records by name, where it gives any
    labels: list[Label]
    facts: list[Facts]
    trouble: str  # why the checker has no facts
    altered: list[str]  # what reading left otherwise than it was
    gap: float | None  # between prediction and measurement
    softmax_calls: int = 0  # in one pass, seen by the checker
    others: dict[str, said.Answer] = field(default_factory=dict)  # descriptions of the other stacks by name
    departure: str = ""  # what `predict` says where theory and measurement part
    wrong: list[str] = field(default_factory=list)
    structures: dict[str, said.Answer] = field(default_factory=dict)  # of the stacks by name

    @property
    def name(self) -> str:
        """Of the described stack."""
        return next(iter(self.stacks), "")

    def claims(self, name: str, network: Any) -> dict[str, Any]:
        """What edgewise says of a stack: its record, or the description where there is none."""
        record = self.stacks.get(name)
        return said.claims(network) if record is None else said.read_claims(record)

    def truth(self) -> dict[str, Any] | None:
        """Of the described stack; where its name is nowhere else, of the first stack that is known."""
        return self.truth_of(self.name) or _joined(self.labels[:1], self.facts[:1])

    def truth_of(self, name: str) -> dict[str, Any] | None:
        """Of one stack: its label, the rest from the checker; None where neither knows it."""
        labels = [label for label in self.labels if label.get("name", name) == name]
        return _joined(labels, [f for f in self.facts if f.name == name])

    def softmax(self) -> bool | None:
        """Whether attention by softmax is what the model does; None where nobody knows."""
        kinds = [k for label in self.labels for k in (from_label(label)["attention"] or ())]
        if kinds:
            return all("softmax" in kind for kind in kinds)  # a hybrid is measured, and rightly not described
        return None if self.trouble else self.softmax_calls >= FEW


def _joined(labels: list[Label], facts: list[Facts]) -> dict[str, Any] | None:
    seen = from_checker(facts[0]) if facts else {}
    if not labels:
        return seen or None
    known = from_label(labels[0])
    return {**seen, **{fact: value for fact, value in known.items() if fact in labels[0]}, "labelled": True}


def decide(evidence: Evidence) -> dict[str, Any]:
    """The record: outcome, why, what was wrong, and the numbers behind it."""
    outcome, why = _decide(evidence)
    record: dict[str, Any] = {"outcome": outcome, "why": why[:400], "wrong": evidence.wrong}
    record |= {"structure": seen} if (seen := _structure(evidence)) else {}
    record["measured"] = evidence.measured.value is not None
    record["softmax"] = evidence.softmax()
    record["stacks"] = len(evidence.stacks)
    if evidence.labels and evidence.facts:
        record["checker"] = _checked(evidence)
    for name in ("altered", "gap", "trouble"):
        if getattr(evidence, name):
            record[name] = getattr(evidence, name)
    if evidence.measured.refusal and evidence.measured.refusal != evidence.described.refusal:
        record["not measured"] = evidence.measured.refusal[:160]
    return record


def _decide(evidence: Evidence) -> tuple[str, str]:
    described, measured = evidence.described, evidence.measured
    answers = (described, measured, *evidence.others.values(), *evidence.structures.values())
    crashes = [answer.crash for answer in answers if answer.crash]
    if crashes:
        return "raw traceback", crashes[0]
    if described.refusal:
        return _refused(evidence)
    truth = evidence.truth()
    if truth is None:
        return "not judged", evidence.trouble or "no label, and the checker sees no stack"
    notes = said.notes(described.value, measured.value, evidence.departure)
    found = list(differences(evidence.claims(evidence.name, described.value), truth, described.value.tokens))
    found += _geometry(evidence) + _parted(evidence)
    found = [(fact, words) for fact, words in found if fact != "copies" or not owned(fact, notes)]
    silent = [fact for fact, _ in found if not owned(fact, notes)]
    for name, answer in evidence.others.items():
        other, about = _about(evidence, name, answer)
        other = [(fact, words) for fact, words in other if fact != "copies" or not owned(fact, about)]
        found += [(fact, f"{name} {words}") for fact, words in other]
        silent += [fact for fact, _ in other if not owned(fact, about)]
    evidence.wrong = [f"{fact}: {words}" for fact, words in found]
    if silent:
        return "silently wrong", ", ".join(silent)
    if found:
        return "wrong with a note", ", ".join(fact for fact, _ in found)
    if measured.value is None:
        return "described but not measured", measured.refusal
    return "right", "by label and checker" if truth.get("labelled") else "by checker"


def _about(evidence: Evidence, name: str, answer: said.Answer) -> tuple[list[tuple[str, str]], str]:
    """What is wrong in the description of another stack, and its notes."""
    truth = evidence.truth_of(name)
    if answer.value is None or truth is None:
        return [], ""
    wrong = differences(evidence.claims(name, answer.value), truth, answer.value.tokens)
    return list(wrong), said.notes(answer.value, None)


def _refused(evidence: Evidence) -> tuple[str, str]:
    message = said.reason(evidence.described.refusal)
    allowed = [label["may_refuse"] for label in evidence.labels if "may_refuse" in label]
    softmax = evidence.softmax()
    if softmax is None and not allowed:
        return "not judged", f"refused: {message}"
    if softmax and not allowed:
        return "refused wrongly", message
    true = any(reason in message.lower() for reason in REASONS) and "rename" not in message
    return ("refused rightly" if true else "refused for a wrong reason"), message


def _structure(evidence: Evidence) -> dict[str, Any] | None:
    """How the structure of the described stack fares: what it has wrong of any stack, which facts that matter are open,
    whether label or checker know the stack, and how it prints."""
    answer = evidence.structures.get(evidence.name)
    if answer is None or answer.value is None:
        return None
    single = (
        len(evidence.structures) == 1 and len(evidence.facts) < 2
    )  # then a name may be another word for it
    truth = evidence.truth() if single else evidence.truth_of(evidence.name)
    wrong: list[str] = []
    for name, other in evidence.structures.items():
        known = truth if name == evidence.name else evidence.truth_of(name)
        if other.value is not None and known is not None:
            stated = said_structure.claims(other.value)
            tokens = (
                max(other.value.tokens or 0, other.value.horizon) or sys.maxsize
            )  # a mask that was seen whole
            found = differences(stated, said_structure.masked(stated, known), tokens)
            wrong += [
                f"{fact}: {words}" for fact, words in found if fact != "copies" and words != "is not read"
            ]
    left = said_structure.open_facts(answer.value, evidence.softmax() is not False)
    return {"wrong": wrong, "open": left, "judged": truth is not None, "prints": str(answer.value)[:700]}


def _parted(evidence: Evidence) -> list[tuple[str, str]]:
    """Prediction and measurement that differ, where the description says nothing of parts outside the theory."""
    network = evidence.described.value
    if evidence.gap is None or evidence.gap < PARTED or network.unmodelled:
        return []
    return [("prediction", f"parts from the measurement by a factor {math.exp(evidence.gap):.2f}")]


def _geometry(evidence: Evidence) -> list[tuple[str, str]]:
    """The measured stream against the checker's own, at the ends of blocks."""
    trace = evidence.measured.value
    facts = [f for f in evidence.facts if f.name == evidence.name]
    if trace is None or not facts or trace.depth != facts[0].depth:
        return []
    wrong = []
    for name, ours, theirs in (
        ("size", facts[0].sizes, trace.blocks("norm")),
        ("overlap", facts[0].overlaps, trace.blocks("overlap")),
    ):
        far = [
            (o, float(t)) for o, t in zip(ours, theirs, strict=True) if abs(o - t) > 0.02 * max(abs(o), 0.05)
        ]
        if far and not math.isnan(far[0][0]):
            wrong.append(("measured", f"{name} says {far[0][1]:.4g}, is {far[0][0]:.4g}"))
    return wrong


def _checked(evidence: Evidence) -> str:
    """Whether the checker agrees with the labels of the stacks that both know."""
    for label in evidence.labels:
        facts = next((f for f in evidence.facts if f.name == label.get("name", f.name)), None)
        if facts is not None and (wrong := disagreements(facts, label)):
            return "; ".join(wrong)[:160]
    return "agrees"


def disagreements(facts: Facts, label: Label) -> list[str]:
    """Facts on which checker and label differ; what either leaves open does not count."""
    seen, known = from_checker(facts), from_label(label)
    wrong = []
    for fact in ("causal", "window", "norm", "qk_norm", "skip"):
        pairs = zip(seen[fact] or (), known[fact] or (), strict=False)
        if any(a is not None and b is not None and not _equal(a, b) for a, b in pairs):
            wrong.append(f"{fact}: checker {seen[fact]}, label {known[fact]}")
    if facts.parallel is not None and known["parallel"] is not None and facts.parallel != known["parallel"]:
        wrong.append(f"parallel: checker {facts.parallel}, label {known['parallel']}")
    return wrong


def _equal(a: Any, b: Any) -> bool:
    numbers = isinstance(a, float) and isinstance(b, float)
    return math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-4) if numbers else bool(a == b)
