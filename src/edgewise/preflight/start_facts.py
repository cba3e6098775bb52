"""Facts that other verbs know: the audit of the initialization, and with theory its exponents."""

from __future__ import annotations

import math
from collections.abc import Iterator

from edgewise.audit.inspect import AuditKind, AuditSeverity, audit_initialization
from edgewise.errors import BadInput
from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence, by_the_library

TOLD = (
    AuditKind.TIED,
    AuditKind.IDENTICAL_LAYERS,
    AuditKind.BIAS_NOT_ZERO,
    AuditKind.NORM_GAIN_NOT_ONE,
)  # by facts of our own, or often meant


@fact("initialization", needs="tensors")
def initialization(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare fresh weights with the published recipe of their family: the errors of `edgewise.audit_initialization`.

    Threshold: as the audit's; its warnings and notes are notes here.
    Cannot decide: families that it does not know; trained weights.
    """
    if not evidence.fresh:
        raise NotAsked("the weights are trained")
    if evidence.config is None:
        raise NotAsked("no config says which family this is")
    try:
        found = audit_initialization(evidence.map or evidence.model)
    except BadInput as error:
        raise NotAsked(f"the audit does not know this model: {error}") from error
    for item in found:
        if item.kind in TOLD:
            continue
        wrong = item.severity is AuditSeverity.ERROR
        meant = wrong and all(by_the_library(evidence, name) for name in item.parameters)
        yield finding(
            "error" if wrong and not meant else "note",
            list(item.parameters),
            f"The initialization is not as published: {item.kind.value}.",
            f"{item.observation}; expected {item.expected}",
            item.repair,
        )


@fact("exponents", needs="theory", cost="seconds")
def exponents(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare tokens and gradients before the first block with those after the last, measured as `measure` does.

    Threshold: the gradient changes more than 1e4 times; fresh tokens become equal (cosine above 0.999).
    Cannot decide: how much is too much for a given length of training: see `edgewise predict`.
    """
    from edgewise.probe.measure import measure

    try:
        batch = evidence.batches[0] if evidence.batches else None
        trace = measure(evidence.map or evidence.model, batch, attention=False, pair=False)
    except (BadInput, RuntimeError, TypeError) as problem:
        raise Undecided(f"it could not be measured: {str(problem)[:200]}") from problem
    overlap = trace.blocks("overlap")
    evidence.facts |= {"blocks": trace.depth, "cosine of tokens": [float(overlap[0]), float(overlap[-1])]}
    if overlap[-1] > 0.999 and overlap[0] < 0.95 and evidence.fresh:
        yield warning(
            "model",
            "All tokens look alike after the last block: rank collapse.",
            f"their mean cosine is {overlap[-1]:.4f}, before the first block {overlap[0]:.2f}",
            "see `edgewise fix`",
        )
    if trace.decisive_readout is None:
        return
    _, change = trace.total_changes(trace.decisive_readout)
    evidence.facts["gradient exponent per block"] = (
        change / 2 / max(1, trace.depth)
    )  # of its size, not its square
    if abs(change) / 2 > math.log(1e4) and evidence.fresh:
        yield warning(
            "model",
            f"The gradient {'explodes' if change > 0 else 'vanishes'} on its way to the first block.",
            f"by {math.exp(min(change / 2, 80)):.2g} over {trace.depth} blocks, relative to the stream",
            "see `edgewise fix`",
        )
