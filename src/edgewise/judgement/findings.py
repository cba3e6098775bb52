"""Findings: what the numbers of a trace show, what they rule out, in sentences; none is worse than the outcome.

The outcome comes from the score. A part of the score that carries a third of the risk, or more, is why the outcome is
what it is, and has its severity; everything else is a note.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from edgewise.judgement.outcome import SLOW, RiskScore, written_by_attention
from edgewise.judgement.profile import TraceReading
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import Finding, FindingSeverity, Kind, Outcome, Slowdown
from edgewise.stability.lyapunov import SEVERITY_LIMITS

if TYPE_CHECKING:
    from edgewise.audit.finding import AuditFinding

CURABLE = {
    Kind.RANK_COLLAPSE,
    Kind.FULL_COLLAPSE,
    Kind.VANISHING_GRADIENT,
    Kind.EXPLODING_GRADIENT,
    Kind.TOKENS_SEPARATE,
    Kind.FORGETS_INPUT,
}
FAILS, RISKY, NOTE = FindingSeverity
LEVELS = {Outcome.TRAINS: NOTE, Outcome.RISKY: RISKY, Outcome.UNDECIDED: RISKY, Outcome.FAILS: FAILS}
QUIET = 0.1  # log-share of the stream that is the blocks' own, below which they are named quiet
SHARE = 1 / 3  # of the risk
FORGETS = 10.0  # late change of F from which it is mentioned: e^-10 of the stream is still the input
STARVED = math.log(1e-4)  # squared query/key gradient against its value at the first block
JUMP = 4.0  # log-change of the relative gradient across the first block
# log-share written by attention; times the steps of a usual start (research/forecast.md)
SMALL, SLOWER = 0.3, 4.0
# Times ln V: Gaussian logits with a first loss of 2 ln V have a variance of 2 ln V, from which on a softmax over V
# classes rests on a few of them, as attention does from a condensation of 1 on. Training must first unlearn that.
FIRST_LOSS = 2.0
ORDER = {FAILS: 0, RISKY: 1, NOTE: 2}
SHRINK = "Shrink the branches against the skip (attention_branch, mlp_branch), or use pre-norm."


@dataclass(frozen=True)
class FindingEvidence:
    """What findings are written from: the numbers, the parts of the risk, and the outcome that these led to."""

    reading: TraceReading
    score: RiskScore | None
    risks: Mapping[str, float]
    outcome: Outcome
    slowdown: Slowdown | None = None

    @property
    def slow(self) -> bool:
        """True if the steps alone make it risky: then no part of the risk is why."""
        return self.outcome is Outcome.TRAINS and self.slowdown is not None and self.slowdown.value >= SLOW

    def level(self, part: str, size: float, limit: float = SEVERITY_LIMITS.risky) -> FindingSeverity | None:
        """Return the severity of a part of the score: the outcome's if it is a cause, a note if it is large."""
        worst = LEVELS[self.outcome]
        total = sum(self.risks.values())
        cause = self.risks.get(part, 0.0) >= SHARE * total > 0 if self.risks else size > limit
        if worst is not NOTE and cause:
            return worst
        return NOTE if size > limit else None


def find(evidence: FindingEvidence) -> tuple[Finding, ...]:
    """Every defect the numbers show, the worst first; what carries most of the risk leads among equals."""
    checks = (_range, _angle, _gradient, _forgets, _slow, _steps, _entropy, _starved, _jump)
    findings = [finding for check in checks if (finding := check(evidence)) is not None]
    worst = RISKY if evidence.slow else LEVELS[evidence.outcome]
    mild = [f if ORDER[f.severity] >= ORDER[worst] else replace(f, severity=worst) for f in findings]

    def risk(kind: Kind) -> float:
        return math.inf if kind is Kind.STREAM_OUT_OF_RANGE else evidence.risks.get(_PARTS.get(kind, ""), 0.0)

    return tuple(sorted(mild, key=lambda finding: (ORDER[finding.severity], -risk(finding.kind))))


def by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the worst first; among equals in the order given."""
    return tuple(sorted(findings, key=lambda finding: ORDER[finding.severity]))


def beside_the_score(trace: Trace, audit: Sequence[AuditFinding]) -> tuple[Finding, ...]:
    """Errors that an audit of the weights found, then a first loss far above chance; none once training has begun."""
    if trace.step:
        return ()
    errors = tuple(_error(finding) for finding in audit if finding.severity.value == "error")
    loss = trace.first_loss
    if loss is None or "trained" in trace.departure or not loss.value > FIRST_LOSS * loss.chance:
        return errors
    deviation = loss.value / math.sqrt(2 * loss.chance)  # of condensed Gaussian logits
    large = Finding(
        Kind.LARGE_FIRST_LOSS,
        f"The first loss is {loss.value:.3g}, {loss.value / loss.chance:.1f} times chance ({loss.chance:.3g}): the "
        "logits start so large that a few classes have all the probability.",
        f"Draw the readout, or the embedding that it shares, about {max(deviation, 2):.0f} times smaller.",
        RISKY,
    )
    return (*errors, large)


def _error(finding: AuditFinding) -> Finding:
    name, more = finding.kind.value, len(finding.parameters) - 1
    return Finding(
        Kind.INITIALIZATION_ERROR,
        f"{name[:1].upper()}{name[1:]}: {finding.parameter}{f' and {more} more' if more else ''}. "
        f"{finding.observation[:1].upper()}{finding.observation[1:]}.",
        f"Expected: {finding.expected}. audit_initialization(model) has the line that repairs it, and "
        "`edgewise measure --repair FILE` writes it.",
        RISKY,
    )


_PARTS = {
    Kind.RANK_COLLAPSE: "angle",
    Kind.FULL_COLLAPSE: "angle",
    Kind.TOKENS_SEPARATE: "angle",
    Kind.VANISHING_GRADIENT: "gradient",
    Kind.EXPLODING_GRADIENT: "gradient",
    Kind.FORGETS_INPUT: "forgetting",
}


def _range(evidence: FindingEvidence) -> Finding | None:
    reading = evidence.reading
    if not reading.out_of_range.any():
        return None
    trace = reading.trace
    what = "explodes" if np.isinf(trace.norm).any() else "vanishes"
    return Finding(
        Kind.STREAM_OUT_OF_RANGE,
        f"The stream {what}: at {trace.sites[int(reading.out_of_range.argmax())]} its mean square leaves the range of "
        "numbers, so gradients were not followed.",
        "Add a norm, or bring the gains towards 1: without a norm each block multiplies the stream.",
        FAILS,
    )


def _angle(evidence: FindingEvidence) -> Finding | None:
    reading = evidence.reading
    trace, change = reading.trace, reading.angle.change.scalar
    if change == -math.inf:
        site = trace.sites[int(np.argmax((trace.separation == 0).any(axis=0)))]
        return Finding(
            Kind.FULL_COLLAPSE,
            f"All tokens are identical from {site} on: the overlap reached 1 exactly, the exponent is infinite.",
            "Add a skip connection (attention_skip, mlp_skip above 0): without it averaging leaves one token.",
            FAILS,
        )
    level = evidence.level("angle", abs(change))
    if reading.collapsed is not None and not reading.out_of_range.any():
        return Finding(
            Kind.RANK_COLLAPSE,
            f"Tokens merge: from block {reading.collapsed} of {trace.depth} on they are more than 99.9 % alike, so "
            f"that no label of a single token can be read; the overlap ends at {_near_one(trace)}.",
            SHRINK,
            LEVELS[evidence.outcome],
        )
    if level is None or reading.out_of_range.any():
        return None
    if change < 0:
        return Finding(
            Kind.RANK_COLLAPSE,
            f"Tokens merge: 1 - overlap changes by a factor e^{change:.1f} over the depth at the rate of its "
            f"second half; the overlap ends at {_near_one(trace)}.",
            SHRINK,
            level,
        )
    return Finding(
        Kind.TOKENS_SEPARATE,
        f"Near tokens separate: 1 - overlap grows by a factor e^{change:.1f} over the depth at the rate of its "
        "second half.",
        "Shrink the MLP branch: small differences of the input are blown up to noise.",
        level,
    )


def _near_one(trace: Trace) -> str:
    overlap = float(trace.overlap[:, -1].mean())
    return f"{overlap:.3f}" if overlap < 0.999 else f"1 - {float(trace.separation[:, -1].mean()):.1e}"


def _gradient(evidence: FindingEvidence) -> Finding | None:
    reading = evidence.reading
    decisive = reading.decisive_gradient
    change = 0.0 if decisive is None else decisive.change.scalar
    level = evidence.level("gradient", abs(change))
    if decisive is None or level is None or reading.out_of_range.any():
        return None
    quantity = "|g|^2" if decisive is reading.gradient else "relative to the stream, |g|^2 q"
    return Finding(
        Kind.EXPLODING_GRADIENT if change > 0 else Kind.VANISHING_GRADIENT,
        f"The gradient {'grows' if change > 0 else 'dies'} towards the input: {quantity} changes by a factor "
        f"e^{change:.1f} over the depth at the rate of its second half.",
        "Shrink the branches against the skip"
        + ("; lower score_gain where attention is sharp." if change > 0 else "."),
        level,
    )


def _forgets(evidence: FindingEvidence) -> Finding | None:
    lost = None if evidence.score is None else evidence.score.forgetting
    level = None if lost is None else evidence.level("forgetting", lost, FORGETS)
    if lost is None or level is None:
        return None
    blocks = evidence.reading.trace.depth * math.log(2) / lost
    pace = (
        "every block replaces nearly all" if blocks < 0.25 else f"half is replaced every {blocks:.1f} blocks"
    )
    return Finding(
        Kind.FORGETS_INPUT,
        f"Blocks overwrite what the stream carries: {pace}, so that little of the input reaches the output.",
        "Shrink the branches against the skip (attention_branch, mlp_branch).",
        level,
    )


def _slow(evidence: FindingEvidence) -> Finding | None:
    """Find a class token into which attention, its only way to the others, writes little: training begins late."""
    trace = evidence.reading.trace
    network = trace.architecture
    if trace.readout != "class" or not isinstance(network, Architecture) or evidence.score is None:
        return None
    if network.depth != trace.depth:
        return None
    written = written_by_attention(
        network, trace.blocks("norm").tolist(), trace.blocks("separation").tolist()
    )
    if not written < SMALL:
        return None
    return Finding(
        Kind.SLOW_START,
        f"The start is small: at the output {1 - math.exp(-written):.1%} of the class token comes from other tokens, "
        f"and attention has to grow first. Expect about {SLOWER:g} times the usual steps.",
        "Draw the weights of values and attention outputs larger, or read the mean over tokens.",
        NOTE,
    )


def _steps(evidence: FindingEvidence) -> Finding | None:
    """Find what makes a start slow; blocks that add next to nothing to their stream are named in any case."""
    slowdown = evidence.slowdown
    if slowdown is None:
        return None
    if slowdown.added < QUIET:
        share = -math.expm1(-slowdown.added)
        return Finding(
            Kind.QUIET_START,
            f"The start is quiet: at the output {f'{share:.1%}' if share >= 5e-4 else 'less than 0.1 %'} of the stream "
            "comes from the blocks, which have to grow before they do anything.",
            "Draw the matrices of the blocks larger, or the embedding smaller: of recorded networks those learned "
            "fastest whose blocks write most of the stream.",
            RISKY if evidence.slow else NOTE,
        )
    if not evidence.slow:
        return None
    return Finding(
        Kind.SLOW_START,
        f"The start is slow: about {slowdown.value:.1f} times the steps of a well initialized network of its shape are "
        f"expected, because {slowdown.cause}.",
        "Draw the matrices of the blocks at another scale, or the embedding smaller; edgewise.fastest_plan(model, "
        "batch) looks for the scale of the blocks.",
        RISKY,
    )


def _entropy(evidence: FindingEvidence) -> Finding | None:
    attention = evidence.reading.attention
    ratio = None if attention is None else attention.condensation
    if attention is None or ratio is None or ratio < 1 or attention.entropy is None:
        return None
    entropy, uniform = attention.entropy, attention.uniform_entropy
    return Finding(
        Kind.ENTROPY_COLLAPSE,
        f"Attention condenses on few keys: logit variance over 2 log n is {ratio:.2f} (condensed from 1 on); the "
        f"expected entropy falls to {entropy:.2f} of {uniform:.2f} nats.",
        f"Divide score_gain by {math.sqrt(ratio / 0.5):.2f} or more, or use QK-norm.",
        NOTE,
    )


def _starved(evidence: FindingEvidence) -> Finding | None:
    """Query and key gradients carry the square of the token difference: they die first under collapse."""
    statistics = evidence.reading.trace.statistics
    logs, values = (statistics.get(f"weight_gradient.{name}") for name in ("query", "value"))
    if logs is None or values is None or np.isnan(logs).all():
        return None
    with np.errstate(invalid="ignore"):  # a branch that is switched off has no gradient at all
        share = (logs - values).mean(axis=0)
    share = share[np.isfinite(share)]
    fall = float((share - share[0]).min()) if len(share) else 0.0
    if not fall < STARVED:
        return None
    return Finding(
        Kind.STARVED_QUERY_KEY,
        f"Query and key gradients starve: against the value gradient they fall by 10^{fall / math.log(10):.1f} "
        "(squared norm) between the first block and the worst one.",
        "Cure the collapse of the tokens; a larger query/key learning rate treats the symptom only.",
        NOTE,
    )


def _jump(evidence: FindingEvidence) -> Finding | None:
    jump = evidence.reading.embedding_jump
    if jump is None or abs(jump) < JUMP:
        return None
    return Finding(
        Kind.EMBEDDING_JUMP,
        f"The relative gradient jumps by a factor e^{jump:.1f} across the first block: its branches are far larger "
        "than the embedding. This happens once and is apart from the dynamics over depth.",
        f"Raise the embedding's standard deviation about {math.exp(abs(jump) / 2):.0f} times, or shrink the first "
        "branches.",
        NOTE,
    )


def rule_out(reading: TraceReading, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """List what was checked and is not the trouble, with the number that says so."""
    kinds = {finding.kind for finding in findings}
    out = []
    if not kinds & {Kind.RANK_COLLAPSE, Kind.FULL_COLLAPSE, Kind.TOKENS_SEPARATE, Kind.STREAM_OUT_OF_RANGE}:
        out.append(f"rank collapse (log-change of 1 - overlap {reading.angle.change.scalar:+.2f})")
    gradient = reading.decisive_gradient
    if gradient is not None and not kinds & {Kind.VANISHING_GRADIENT, Kind.EXPLODING_GRADIENT}:
        out.append(f"vanishing and exploding gradients (log-change {gradient.change.scalar:+.2f})")
    ratio = None if reading.attention is None else reading.attention.condensation
    if ratio is not None and Kind.ENTROPY_COLLAPSE not in kinds:
        out.append(f"entropy collapse (condensation ratio {ratio:.2f}, condensed from 1 on)")
    queries = reading.trace.statistics.get("weight_gradient.query")
    if queries is not None and np.isfinite(queries).any() and Kind.STARVED_QUERY_KEY not in kinds:
        out.append("starved query and key gradients")
    return tuple(out)
