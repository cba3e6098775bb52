"""Trace to Verdict, from the trace alone; `edgewise.judge` adds what needs the description.

A perceptron's verdict: fixed points, chi_1 and depth scales beside the exponents.

A verdict completed by what needs the description: limits at infinite depth, fixed points, remedies with numbers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np

from edgewise.architecture import Architecture
from edgewise.arrays import Array
from edgewise.critical.asymptotics import asymptotics
from edgewise.judgement.findings import find, out_of_range, rule_out
from edgewise.judgement.probability import forgotten, training_probability
from edgewise.judgement.remedies import remedies
from edgewise.perceptron import Perceptron
from edgewise.stability.limits import FAILS, RISKY, outcome, phase
from edgewise.stability.lyapunov import depth_scale, exponent
from edgewise.theory.perceptron.recursion import PerceptronTheory, summary
from edgewise.trace import Trace
from edgewise.verdict import Exponent, Finding, Outcome, Phase, Probability, Verdict, finite


def judge(trace: Trace) -> Verdict:
    """Exponents at this depth, phase, findings and outcome."""
    width = None if trace.architecture is None else trace.architecture.width
    with np.errstate(divide="ignore"):
        angle = exponent(np.log(_ends(trace, trace.separation)), width, trace.sampled)
    gradient, relative = gradients(trace, width)
    raw_decides = isinstance(trace.architecture, Perceptron)
    decisive = gradient if raw_decides else relative
    verdict = Verdict(
        outcome=Outcome.FAILS if out_of_range(trace).any() else outcome(angle, decisive),
        phase=phase(angle),
        angle=angle,
        gradient=gradient,
        relative_gradient=relative,
        readout=trace.readouts[0] if trace.readouts else None,
        embedding_jump=embedding_jump(trace),
        depth_scale=depth_scale(angle.at_depth),
        condensation=_largest(trace.statistics.get("condensation")),
        attention_entropy=_entropy(trace),
        extrapolated=trace.extrapolated,
        notes=getattr(trace.architecture, "assumed", ()),
        source=trace.source,
        name=getattr(trace.architecture, "name", ""),
        depth=trace.depth,
        limits=(RISKY, FAILS),
        raw_decides=raw_decides,
    )
    findings = find(verdict, trace)
    return replace(verdict, findings=findings, ruled_out=rule_out(verdict, trace, findings))


def gradients(trace: Trace, width: float | None) -> tuple[Exponent | None, Exponent | None]:
    """Raw and relative gradient exponents, lambda_g = (1/L) log(|g_0|^2/|g_L|^2) and of rho = |g|^2 q.

    Pre-norm divides the gradient by the stream's norm, so a stream that starts small shows a huge raw exponent in
    a network that trains well; the relative one is scale free.
    """
    if trace.log_gradient is None:
        return None, None
    raw = _ends(trace, trace.log_gradient[0])
    relative = raw + np.log(_ends(trace, trace.norm))
    return tuple(exponent(-logs, width, trace.sampled) for logs in (raw, relative))  # type: ignore[return-value]


def embedding_jump(trace: Trace) -> float | None:
    """log-change of the relative gradient across the first block: a defect of its own, apart from depth."""
    if trace.log_gradient is None or trace.depth < 2:
        return None
    ends = trace.block_ends()
    relative = trace.log_gradient[0][:, ends] + np.log(trace.norm[:, ends])
    return float((relative[:, 0] - relative[:, 1]).mean())


def _ends(trace: Trace, values: Array) -> Array:
    return values[:, trace.block_ends()]


def _largest(values: Array | None) -> float | None:
    if values is None or np.isnan(values).all():
        return None
    return float(np.nanmax(values.mean(axis=0)))


def _entropy(trace: Trace) -> tuple[float, float] | None:
    """The smallest expected attention entropy over depth, and that of uniform attention."""
    if trace.attention_entropy is None or np.isnan(trace.attention_entropy).all():
        return None
    tokens = getattr(trace.architecture, "tokens", None)
    lowest = float(np.nanmin(trace.attention_entropy.mean(axis=(0, 2))))
    return lowest, math.log(tokens) if tokens else math.nan


def complete_perceptron(verdict: Verdict, perceptron: Perceptron) -> Verdict:
    """Limits of the length and correlation maps [Poole 2016, Schoenholz 2017]."""
    theory = summary(perceptron)
    facts = {k: finite(v) if isinstance(v, float) else v for k, v in asdict(theory).items()}
    chi = math.log(theory.chi_1) if theory.chi_1 > 0 else -math.inf
    gradient = verdict.gradient and replace(verdict.gradient, asymptotic=chi)
    steady = 0 < theory.length_fixed_point < math.inf  # else the length changes for ever, and with it the relative one
    relative = verdict.relative_gradient and replace(verdict.relative_gradient, asymptotic=chi if steady else None)
    return replace(
        verdict,
        findings=tuple(replace(f, remedy=_remedy(f, perceptron, theory)) for f in verdict.findings),
        angle=replace(verdict.angle, asymptotic=chi),
        gradient=gradient,
        relative_gradient=relative,
        phase=Phase(theory.phase),
        depth_scale=theory.depth_scale_correlation,
        perceptron=facts,
    )


def _remedy(finding: Finding, perceptron: Perceptron, theory: PerceptronTheory) -> str:
    """The weight variance on the edge of chaos at this bias variance, where there is one."""
    boundary = theory.boundary_weight_variance
    if not math.isfinite(boundary):
        return finding.remedy
    return (
        f"Set weight_variance to {boundary:.4g} instead of {perceptron.weight_variance:.4g}: the edge of chaos at bias "
        f"variance {perceptron.bias_variance:.4g}. Trainable depth here is about {theory.trainable_depth:.0f} layers."
    )


def complete(verdict: Verdict, trace: Trace) -> Verdict:
    """Without a description the verdict stands as it is, its asymptotic values null."""
    if isinstance(trace.architecture, Perceptron):

        return complete_perceptron(verdict, trace.architecture)
    if not isinstance(trace.architecture, Architecture):
        return verdict
    known = replace(verdict, probability=forecast(verdict, trace, trace.architecture))
    return _complete(known, trace.architecture)


def forecast(verdict: Verdict, trace: Trace, architecture: Architecture) -> Probability | None:
    """How often such networks trained; not said where the stream left the range of numbers."""
    norms, separations = (trace.blocks(name) for name in ("norm", "separation"))
    if not (np.isfinite(norms).all() and (norms > 0).all() and verdict.relative_gradient is not None):
        return None
    lost = exponent(forgotten(architecture, norms.tolist(), separations.tolist())[None]).change
    return training_probability(trace, verdict.angle, verdict.relative_gradient, abs(lost or 0.0))


def _complete(verdict: Verdict, architecture: Architecture) -> Verdict:
    limits = asymptotics(architecture)
    angle = replace(verdict.angle, asymptotic=limits.angle)
    scale = depth_scale(limits.angle) if limits.angle is not None else verdict.depth_scale
    completed = replace(
        verdict,
        angle=angle,
        gradient=_limit(verdict.gradient, limits.gradient),
        relative_gradient=_limit(verdict.relative_gradient, limits.gradient),
        phase=phase(angle),
        depth_scale=scale,
        fixed_points=limits.fixed_points,
        power_law=limits.power_law,
        notes=verdict.notes + limits.notes,
    )
    if completed.outcome in (Outcome.TRAINS, Outcome.UNDECIDED):
        return completed
    return replace(completed, findings=remedies(completed, architecture))


def _limit(exponent: Exponent | None, asymptotic: float | None) -> Exponent | None:
    return None if exponent is None else replace(exponent, asymptotic=asymptotic)
