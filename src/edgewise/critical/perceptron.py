"""A perceptron's verdict: fixed points, chi_1 and depth scales beside the exponents."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

from edgewise.perceptron import Perceptron
from edgewise.theory.perceptron import summary
from edgewise.verdict import Phase, Verdict, finite


def complete_perceptron(verdict: Verdict, perceptron: Perceptron) -> Verdict:
    """Limits of the length and correlation maps [Poole 2016, Schoenholz 2017]."""
    theory = summary(perceptron)
    facts = {k: finite(v) if isinstance(v, float) else v for k, v in asdict(theory).items()}
    chi = math.log(theory.chi_1) if theory.chi_1 > 0 else -math.inf
    gradient = verdict.gradient and replace(verdict.gradient, asymptotic=chi)
    relative = verdict.relative_gradient and replace(verdict.relative_gradient, asymptotic=chi)
    return replace(
        verdict,
        angle=replace(verdict.angle, asymptotic=chi),
        gradient=gradient,
        relative_gradient=relative,
        phase=Phase(theory.phase),
        depth_scale=theory.depth_scale_correlation,
        perceptron=facts,
    )
