"""A verdict completed by what needs the description: limits at infinite depth, fixed points, remedies with numbers."""

from __future__ import annotations

from dataclasses import replace

from edgewise.architecture import Architecture
from edgewise.critical.asymptotics import asymptotics
from edgewise.critical.remedies import remedies
from edgewise.perceptron import Perceptron
from edgewise.stability.depth_scale import depth_scale
from edgewise.stability.phases import phase
from edgewise.trace import Trace
from edgewise.verdict import Exponent, Outcome, Verdict


def complete(verdict: Verdict, trace: Trace) -> Verdict:
    """Without a description the verdict stands as it is, its asymptotic values null."""
    if isinstance(trace.architecture, Perceptron):
        from edgewise.critical.perceptron import complete_perceptron

        return complete_perceptron(verdict, trace.architecture)
    if not isinstance(trace.architecture, Architecture):
        return verdict
    return _complete(verdict, trace.architecture)


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
