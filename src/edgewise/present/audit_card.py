"""The card of an audit of the weights: errors first, by group of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edgewise.audit.finding import AuditFinding, Severity
from edgewise.nouns.card import Card
from edgewise.nouns.verdict import Outcome
from edgewise.repair.plan import counting_word

LISTED = 4  # numbers of blocks that are not a run


def leading(audit: Sequence[AuditFinding] | str) -> list[str]:
    """Errors and warnings, which come before everything else on the screen."""
    if isinstance(audit, str):
        return []
    return [
        f"{capitalised(finding.kind.value)}: {_place(finding)}. {capitalised(finding.observation)}. "
        "--repair FILE writes the code that fixes it."
        for finding in audit
        if finding.severity is not Severity.NOTE
    ]


def listing(audit: Sequence[AuditFinding] | str) -> Iterator[str]:
    """The whole audit; where there is none, why."""
    if isinstance(audit, str):
        yield f"Initialization audit: {audit}"
        return
    if not audit:
        yield "Initialization audit: nothing to report."
        return
    yield "Initialization audit:"
    yield from (f"  {_sentence(finding)}" for finding in audit)


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def group(names: Sequence[str]) -> str:
    """Many parameters as the part of the model they share: `layers.1-23`; one as itself.

    >>> group(["layers.1.attn.q", "layers.2.attn.q", "layers.2.mlp.w", "layers.1.mlp.w"])
    'layers.1-2'
    >>> group(["layers.1.attn.w", "layers.2.mlp.w"])
    'layers.1-2.*.w'
    >>> group(["layers.0.mlp.b", "layers.1.mlp.b"])
    'layers.0-1.mlp.b'
    >>> group(["1.layers.0.mlp.b", "1.layers.1.mlp.b"])
    '1.layers.0-1.mlp.b'
    """
    place = counting_word(names)
    parts = [name.split(".") for name in names]
    stacks = {tuple(words[:place]) for words in parts}
    if len(names) == 1 or place is None or len(stacks) > 1:
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    inside = {".".join(words[place + 1 :]) for words in parts}
    ends = {rest.rpartition(".")[2] for rest in inside}
    tail = [inside.pop()] if len(inside) == 1 else ["*", ends.pop()] if len(ends) == 1 else []
    return ".".join([*stacks.pop(), span(sorted({int(words[place]) for words in parts})), *tail])


def span(numbers: Sequence[int]) -> str:
    """`1-23` for a run, `0,2,4` for a few others, `0..38` for many."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers)) if len(numbers) <= LISTED else f"{numbers[0]}..{numbers[-1]}"


def _place(finding: AuditFinding) -> str:
    """Return the parameters of a finding in few words; one about all of them names none."""
    return group(finding.parameters) if finding.parameters else "the model"


def _sentence(finding: AuditFinding) -> str:
    return (
        f"{finding.severity.value}: {finding.kind.value}: {_place(finding)}. Observed: "
        f"{finding.observation}. Expected: {finding.expected}."
    )


def audit_card(audit: Sequence[AuditFinding]) -> Card:
    """Return what is wrong with the weights of a model, a sentence for every finding."""
    counts = {each: sum(finding.severity is each for finding in audit) for each in Severity}
    answer = ", ".join(f"{n} {each.value}{'' if n == 1 else 's'}" for each, n in counts.items() if n)
    serious = any(finding.severity is not Severity.NOTE for finding in audit)
    return Card(
        "Initialization audit",
        answer or "nothing to report",
        Outcome.FAILS if serious else Outcome.TRAINS,
        source="weights",
        sentences=tuple(map(_sentence, audit)),
    )
