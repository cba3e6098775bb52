"""Trace to Verdict: its numbers, the limits of its description at infinite depth, findings and remedies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgewise.critical.asymptotics import asymptotics
from edgewise.errors import SearchBudget
from edgewise.files import Document
from edgewise.judgement.findings import (
    CURABLE,
    FindingEvidence,
    beside_the_score,
    by_severity,
    find,
    rule_out,
)
from edgewise.judgement.outcome import expected, outcome_of, risks, score_of, training_probability, why_open
from edgewise.judgement.profile import TraceReading, profile, read
from edgewise.judgement.remedies import RemedySearch
from edgewise.nouns.architecture import Architecture, Perceptron
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import (
    Exponent,
    Finding,
    FixedPoint,
    Kind,
    Outcome,
    Phase,
    Probability,
    Verdict,
    finite,
)
from edgewise.stability.lyapunov import ZERO, Growth, depth_scale, signs
from edgewise.theory.perceptron.maps import PerceptronTheory, summary

if TYPE_CHECKING:
    from edgewise.audit.finding import AuditFinding

NEVER = Probability(0.0, 0.0, 0.0)  # a stream that leaves the range of numbers carries nothing


def judge(trace: Trace, audit: Sequence[AuditFinding] = (), budget: SearchBudget | None = None) -> Verdict:
    """Judge a trace: one score, its probability and expected slowdown, their band as the outcome, what explains it.

    An error in the weights and a first loss far above chance are not part of the score. With one of them the outcome is
    at most risky, and how many of such networks trained is not known.
    """
    reading, limits = read(trace), _limits(trace.architecture, budget)
    score = score_of(reading, budget)
    probability = NEVER if score is None else None  # open once training has begun
    if score is not None and not trace.step:
        probability = training_probability(score, trace)
        probability = replace(probability, why_open=why_open(probability, trace))
    causes = beside_the_score(trace, audit)
    slowdown = None if score is None else expected(score, trace)
    by_risk, outcome = (
        Outcome.UNDECIDED if probability is None else outcome_of(probability, steps)
        for steps in (None, slowdown)
    )
    findings = find(
        FindingEvidence(reading, score, {} if score is None else risks(score, trace), by_risk, slowdown)
    )
    capped = bool(causes) and outcome is not Outcome.FAILS
    return Verdict(
        outcome=Outcome.RISKY if capped and outcome is Outcome.TRAINS else outcome,
        phase=limits.phase or _phase(reading.angle, limits.angle),
        angle=_exponent(reading.angle, limits.angle),
        gradient=_exponent(reading.gradient, limits.gradient) if reading.gradient else None,
        relative_gradient=_exponent(reading.relative, limits.relative_gradient) if reading.relative else None,
        probability=None if capped else probability,
        slowdown=None if any(cause.kind is Kind.INITIALIZATION_ERROR for cause in causes) else slowdown,
        embedding_jump=reading.embedding_jump,
        depth_scale=limits.depth_scale(reading.angle),
        fixed_points=limits.fixed_points,
        power_law=limits.power_law,
        attention=reading.attention,
        perceptron=_facts(limits.theory),
        findings=by_severity((*causes, *_remedied(findings, trace, _search(reading, outcome)))),
        ruled_out=rule_out(reading, findings),
        profile=profile(reading),
        provenance=replace(
            trace.provenance,
            name=getattr(trace.architecture, "name", ""),
            readout=trace.readout or trace.decisive_readout or "",
            notes=getattr(trace.architecture, "assumed", ()) + limits.notes + _notes(trace),
        ),
    )


def _notes(trace: Trace) -> tuple[str, ...]:
    """Return what was left out or assumed of the trace: its readout if neither given nor found in a model."""
    if trace.step:
        return (
            *trace.notes,
            f"after {trace.step} steps the outcome is open: it is calibrated on networks at their start",
        )
    if trace.readout or isinstance(trace.architecture, Perceptron):
        return trace.notes
    return (
        *trace.notes,
        "readout: one label per token; ask for pooled or class where a sequence has one label",
    )


def _phase(angle: Growth, asymptotic: float | None) -> Phase:
    """By the exponent at infinite depth if there is one (critical if it vanishes), else by that of this depth."""
    if asymptotic is None:
        sign = int(signs(angle.rate, angle.error))
        return {-1: Phase.ORDERED, 0: Phase.UNDECIDED, 1: Phase.CHAOTIC}[sign]
    if abs(asymptotic) < ZERO:
        return Phase.CRITICAL
    return Phase.ORDERED if asymptotic < 0 else Phase.CHAOTIC


def _exponent(growth: Growth, asymptotic: float | None) -> Exponent:
    return Exponent(growth.rate, growth.error, asymptotic, growth.change.scalar, growth.change.error)


@dataclass(frozen=True)
class _Limits:
    """What follows from the description alone: exponents at infinite depth, fixed points, a perceptron's maps."""

    angle: float | None = None
    gradient: float | None = None
    relative_gradient: float | None = None
    phase: Phase | None = None  # None: by the angle exponent
    power_law: float | None = None
    fixed_points: tuple[FixedPoint, ...] = ()
    notes: tuple[str, ...] = ()
    theory: PerceptronTheory | None = None

    def depth_scale(self, angle: Growth) -> float | None:
        """Blocks per factor e: of a perceptron's correlations, else by the exponent at infinite or at this depth."""
        if self.theory is not None:
            return self.theory.depth_scale_correlation
        return depth_scale(angle.rate if self.angle is None else self.angle)


def _limits(network: Architecture | Perceptron | None, budget: SearchBudget | None) -> _Limits:
    if network is None:
        return _Limits()
    if isinstance(network, Perceptron):  # of the length and correlation maps [Poole 2016, Schoenholz 2017]
        theory = summary(network)
        angle, relative = theory.angle_exponent, theory.relative_gradient_exponent
        return _Limits(angle, angle, relative, phase=Phase(theory.phase), theory=theory)
    far = asymptotics(network, budget)
    return _Limits(
        far.angle,
        far.gradient,
        far.gradient,
        power_law=far.power_law,
        fixed_points=far.fixed_points,
        notes=far.notes,
    )


def _facts(theory: PerceptronTheory | None) -> Document | None:
    if theory is None:
        return None
    return {
        name: finite(value) if isinstance(value, float) else value for name, value in asdict(theory).items()
    }


def _search(reading: TraceReading, outcome: Outcome) -> RemedySearch | None:
    """Return how remedies are looked for, if there is a description to try them on and something to cure."""
    trace = reading.trace
    if trace.architecture is None or trace.departure or outcome in (Outcome.TRAINS, Outcome.UNDECIDED):
        return None
    network = trace.architecture
    condensation = (reading.attention.condensation if reading.attention else None) or 0.0
    if not condensation and isinstance(network, Architecture) and not np.isfinite(trace.norm).all():
        bare = network.heads and network.norm == "none" and not network.qk_norm
        condensation = (
            math.inf if bare else 0.0
        )  # scores are products of a stream that left the range of numbers
    return RemedySearch(trace, outcome, condensation, judge)


def _remedied(
    findings: tuple[Finding, ...], trace: Trace, search: RemedySearch | None
) -> tuple[Finding, ...]:
    """Return the findings, the first that can be cured with the search for its cure, which runs when it is read."""
    if trace.departure:
        return tuple(replace(finding, advice=_by_measurement(finding, trace)) for finding in findings)
    slow = bool(findings) and findings[0].kind in (Kind.QUIET_START, Kind.SLOW_START)
    first = next((f for f in findings if f.kind in CURABLE and not slow), next(iter(findings), None))
    return tuple(replace(f, search=search) if f is first else f for f in findings)


def _by_measurement(finding: Finding, trace: Trace) -> str:
    """Advice that does not rest on a theory which has just failed."""
    if "trained" in trace.departure:
        return "The weights are trained, so no initialization is advised; watch the loss instead."
    if finding.kind in CURABLE:
        return (
            "edgewise.initialize_(model) sets the gains by measuring this very model, and redraws layers that are "
            "copies; measure again after it."
        )
    return finding.advice
