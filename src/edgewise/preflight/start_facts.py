"""Facts that other verbs know: the audit of the initialization, and with theory its exponents."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch

from edgewise.audit.inspect import AuditKind, AuditSeverity, audit_initialization
from edgewise.errors import BadInput
from edgewise.preflight.catalog import CheckFinding, NotAsked, Undecided, fact, finding, warning
from edgewise.preflight.evidence import TrainingEvidence

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
        found = audit_initialization(evidence.model)
    except BadInput as error:
        raise NotAsked(f"the audit does not know this model: {error}") from error
    evidence.data["as published"] = not any(item.severity is AuditSeverity.ERROR for item in found)
    for item in found:
        if item.kind in TOLD:
            continue
        wrong = item.severity is AuditSeverity.ERROR
        meant = wrong and all(_by_the_library(evidence, name) for name in item.parameters)
        yield finding(
            "error" if wrong and not meant else "note",
            list(item.parameters),
            f"The initialization is not as published: {item.kind.value}.",
            f"{item.observation}; expected {item.expected}",
            item.repair,
        )


@torch.no_grad()
def _by_the_library(evidence: TrainingEvidence, name: str) -> bool:
    """Return whether the model's own `_init_weights` writes these very numbers over others: a constant that it means."""
    rule, values = getattr(evidence.model, "_init_weights", None), evidence.parameters.get(name)
    owner, _, inner = name.rpartition(".")
    while rule is not None and values is not None and owner:
        module = evidence.module(owner)
        if module is None or sum(p.numel() for p in module.parameters()) > 1 << 22:
            return False
        twin = copy.deepcopy(module)
        with torch.random.fork_rng(devices=[]):
            written = twin.get_parameter(inner).normal_()
            rule(twin)
        if torch.equal(written, values):
            return True
        owner, _, last = owner.rpartition(".")
        inner = f"{last}.{inner}"
    return False


@fact("exponents", needs="theory", cost="seconds")
def exponents(evidence: TrainingEvidence) -> Iterator[CheckFinding]:
    """Compare tokens and gradients before the first block with those after the last, measured as `measure` does.

    Threshold: the gradient changes more than 1e4 times; fresh tokens become equal (cosine above 0.999).
    Cannot decide: how much is too much for a given length of training: see `edgewise predict`.
    """
    from edgewise.probe.measure import measure

    try:
        batch = evidence.batches[0] if evidence.batches else None
        trace = measure(evidence.model, batch, attention=False, pair=False)
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
