"""What was found wrong, and what was ruled out: sentences with numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgewise.trace import Trace
from edgewise.verdict import Exponent, Finding, Kind, Verdict

STARVED = math.log(1e-4)  # squared query/key gradient against its value at the first block
JUMP = 4.0  # log-change of the relative gradient across the first block


def find(verdict: Verdict, trace: Trace) -> tuple[Finding, ...]:
    """Every defect the numbers show, the worst first."""
    found = [
        _range(trace), _angle(verdict, trace), _gradient(verdict), _entropy(verdict), _starved(trace),
        _jump(verdict),
    ]  # fmt: skip
    order = {"fails": 0, "risky": 1, "note": 2}
    return tuple(sorted((f for f in found if f is not None), key=lambda f: order[f.severity]))


def out_of_range(trace: Trace) -> NDArray[np.bool_]:
    """Sites at which the stream has left the range of numbers, or vanished."""
    return np.asarray((np.isinf(trace.norm) | (trace.norm == 0)).any(axis=0))


def _range(trace: Trace) -> Finding | None:
    beyond = out_of_range(trace)
    if not beyond.any():
        return None
    what = "explodes" if np.isinf(trace.norm).any() else "vanishes"
    return Finding(
        Kind.STREAM_OUT_OF_RANGE,
        f"The stream {what}: at {trace.sites[int(beyond.argmax())]} its mean square leaves the range of numbers, "
        "so gradients were not followed.",
        "Add a norm, or bring the gains towards 1: without a norm each block multiplies the stream.",
        "fails",
    )


def _severity(exponent: Exponent, limits: tuple[float, float]) -> str | None:
    size, error = abs(exponent.change or 0.0), exponent.change_error or 0.0
    error = 0.0 if math.isnan(error) else error
    return "fails" if size - error > limits[1] else "risky" if size > limits[0] else None


def _angle(verdict: Verdict, trace: Trace) -> Finding | None:
    angle = verdict.angle
    if angle.change == -math.inf:
        site = _first_full_collapse(trace)
        return Finding(
            Kind.FULL_COLLAPSE,
            f"All tokens are identical from {site} on: the overlap reached 1 exactly, the exponent is infinite.",
            "Add a skip connection (attention_skip, mlp_skip above 0): without it averaging leaves one token.",
            "fails",
        )
    severity = _severity(angle, verdict.limits)
    if severity is None or angle.change is None or out_of_range(trace).any():
        return None
    final = float(trace.overlap[:, -1].mean())
    if angle.change < 0:
        return Finding(
            Kind.RANK_COLLAPSE,
            f"Tokens merge: 1 - overlap changes by a factor e^{angle.change:.1f} over the depth at the rate of its "
            f"second half (limit e^-{verdict.limits[1]:.0f}); the overlap ends at {_near_one(final, trace)}.",
            "Shrink the branches against the skip (attention_branch, mlp_branch), or use pre-norm.",
            severity,
        )
    return Finding(
        Kind.TOKENS_SEPARATE,
        f"Near tokens separate: 1 - overlap grows by a factor e^{angle.change:.1f} over the depth at the rate of its "
        "second half.",
        "Lower mlp_in_gain, or shrink the MLP branch: small differences of the input are blown up to noise.",
        severity,
    )


def _near_one(overlap: float, trace: Trace) -> str:
    return f"{overlap:.3f}" if overlap < 0.999 else f"1 - {float(trace.separation[:, -1].mean()):.1e}"


def _first_full_collapse(trace: Trace) -> str:
    return trace.sites[int(np.argmax((trace.separation == 0).any(axis=0)))]


def _gradient(verdict: Verdict) -> Finding | None:
    relative = verdict.decisive_gradient
    severity = None if relative is None else _severity(relative, verdict.limits)
    if severity is None or relative is None or relative.change is None:
        return None
    kind = Kind.EXPLODING_GRADIENT if relative.change > 0 else Kind.VANISHING_GRADIENT
    measured = "|g|^2" if verdict.raw_decides else "relative to the stream, |g|^2 q"
    what, remedy = {
        Kind.EXPLODING_GRADIENT: ("grows", "Lower score_gain or the MLP gains, or shrink the branches."),
        Kind.VANISHING_GRADIENT: ("dies", "Shrink the branches against the skip, or raise mlp_in_gain."),
    }[kind]
    return Finding(
        kind,
        f"The gradient {what} towards the input: {measured} changes by a factor "
        f"e^{relative.change:.1f} over the depth at the rate of its second half (limit e^±{verdict.limits[1]:.0f}).",
        remedy,
        severity,
    )


def _entropy(verdict: Verdict) -> Finding | None:
    ratio = verdict.condensation
    if ratio is None or ratio < 1 or verdict.attention_entropy is None:
        return None
    entropy, uniform = verdict.attention_entropy
    return Finding(
        Kind.ENTROPY_COLLAPSE,
        f"Attention condenses on few keys: logit variance over 2 log n is {ratio:.2f} (condensed from 1 on); the "
        f"expected entropy falls to {entropy:.2f} of {uniform:.2f} nats.",
        f"Divide score_gain by {math.sqrt(ratio / 0.5):.2f} or more, or use QK-norm.",
        "risky" if ratio >= 2 else "note",
    )


def _starved(trace: Trace) -> Finding | None:
    """Query and key gradients carry the square of the token difference: they die first under collapse."""
    logs = trace.statistics.get("weight_gradient.query")
    values = trace.statistics.get("weight_gradient.value")
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
        "note",
    )


def _jump(verdict: Verdict) -> Finding | None:
    jump = verdict.embedding_jump
    if jump is None or abs(jump) < JUMP:
        return None
    return Finding(
        Kind.EMBEDDING_JUMP,
        f"The relative gradient jumps by a factor e^{jump:.1f} across the first block: its branches are far larger "
        "than the embedding. This happens once and is apart from the dynamics over depth.",
        f"Raise the embedding's standard deviation about {math.exp(abs(jump) / 2):.0f} times, or shrink the first "
        "branches.",
        "note",
    )


def rule_out(verdict: Verdict, trace: Trace, findings: tuple[Finding, ...]) -> tuple[str, ...]:
    """What was looked at and is not the trouble, with the number that says so."""
    kinds = {finding.kind for finding in findings}
    out = []
    if not kinds & {Kind.RANK_COLLAPSE, Kind.FULL_COLLAPSE, Kind.TOKENS_SEPARATE}:
        out.append(
            f"rank collapse (log-change of 1 - overlap {verdict.angle.change:+.2f}, limit {verdict.limits[0]:g})"
        )
    gradient = verdict.decisive_gradient
    if gradient is not None and not kinds & {Kind.VANISHING_GRADIENT, Kind.EXPLODING_GRADIENT}:
        change = gradient.change
        out.append(
            f"vanishing and exploding gradients (log-change {change:+.2f}, limit {verdict.limits[0]:g})"
        )
    if verdict.condensation is not None and Kind.ENTROPY_COLLAPSE not in kinds:
        out.append(f"entropy collapse (condensation ratio {verdict.condensation:.2f}, condensed from 1 on)")
    queries = trace.statistics.get("weight_gradient.query")
    if queries is not None and np.isfinite(queries).any() and Kind.STARVED_QUERY_KEY not in kinds:
        out.append("starved query and key gradients")
    return tuple(out)
