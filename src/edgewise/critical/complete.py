"""A verdict completed by what needs the description: limits at infinite depth, fixed points, remedies with numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgewise.architecture import Architecture
from edgewise.critical.asymptotics import asymptotics
from edgewise.critical.forgetting import forgotten
from edgewise.critical.remedies import remedies
from edgewise.perceptron import Perceptron
from edgewise.stability.depth_scale import depth_scale
from edgewise.stability.lyapunov import exponent
from edgewise.stability.phases import phase
from edgewise.stability.training_probability import training_probability
from edgewise.trace import Trace
from edgewise.verdict import Exponent, Outcome, Probability, Verdict


def complete(verdict: Verdict, trace: Trace) -> Verdict:
    """Without a description the verdict stands as it is, its asymptotic values null."""
    if isinstance(trace.architecture, Perceptron):
        from edgewise.critical.perceptron import complete_perceptron

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
