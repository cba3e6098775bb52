"""A perceptron's verdict: fixed points, chi_1 and depth scales beside the exponents."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from edgewise.perceptron import Perceptron
from edgewise.theory.perceptron.recursion import PerceptronTheory, summary
from edgewise.verdict import Finding, Phase, Verdict, finite


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
