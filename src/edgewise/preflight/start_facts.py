"""Facts that other verbs know: the audit of the initialization, and with theory its exponents."""

from __future__ import annotations

from collections.abc import Iterator

from edgewise.audit.inspect import AuditKind, AuditSeverity, audit_initialization
from edgewise.errors import BadInput
from edgewise.preflight.catalog import CheckFinding, NotAsked, fact, finding, note
from edgewise.preflight.evidence import TrainingEvidence

TOLD = (
    AuditKind.TIED,
    AuditKind.IDENTICAL_LAYERS,
    AuditKind.BIAS_NOT_ZERO,
    AuditKind.NORM_GAIN_NOT_ONE,
)  # by facts of our own, or often meant


@fact("initialization", needs="tensors")
def initialization(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare fresh weights with the published recipe of their family: the errors of
    `edgewise.audit_initialization`.

    Threshold: as the audit's; its warnings and notes are notes here.
    Cannot decide: families that it does not know; trained weights.
    """
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    if evidence.config is None:
        raise NotAsked("no config says which family this is")
    try:
        found = audit_initialization(evidence.model)
    except BadInput as error:
        raise NotAsked(f"the audit does not know this model: {error}") from error
    for item in found:
        if item.kind in TOLD:
            continue
        yield finding(
            "error" if item.severity is AuditSeverity.ERROR else "note",
            list(item.parameters),
            f"The initialization is not as published: {item.kind.value}.",
            f"{item.observation}; expected {item.expected}",
            item.repair,
        )


def measured(evidence: TrainingEvidence) -> list[CheckFinding]:
    """How signal and gradient run through the depth, measured on the model."""
    from edgewise.probe.measure import measure

    try:
        trace = measure(
            evidence.model, evidence.batches[0] if evidence.batches else None, attention=False, pair=False
        )
    except (BadInput, RuntimeError, TypeError) as error:
        return [note("model", "The exponents could not be measured.", str(error)[:200])]
    evidence.facts["trace"] = f"{trace.depth} blocks measured"
    return []
