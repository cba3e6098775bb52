"""`--critical`: which knobs are freed for which network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import edgewise
from edgewise.critical.critical_point import CriticalPoint
from edgewise.verdict import Exponent, Verdict


def critical_setting(network: Any, verdict: Verdict, how: Mapping[str, Any]) -> CriticalPoint:
    """The attention branch, which sets the gap between the two exponents; without attention the MLP's input gain.

    Two free knobs would mostly find the trivial answer, branches of zero; Python's `critical_point` takes any.
    """
    if isinstance(network, edgewise.Perceptron):
        return boundary(network, verdict, how)
    return edgewise.critical_point(network, "attention_branch" if network.heads else "mlp_in_gain", **how)


def boundary(network: edgewise.Perceptron, verdict: Verdict, how: Mapping[str, Any]) -> CriticalPoint:
    """A perceptron at its edge of chaos: the weight variance with chi_1 = 1 at this bias variance."""
    assert verdict.perceptron is not None
    variance = verdict.perceptron["boundary_weight_variance"]
    if variance is None:
        note = "No weight variance gives chi_1 = 1 at this bias variance."
        return CriticalPoint({}, *_limits(verdict), False, note, network)  # type: ignore[arg-type]
    changed = network.replace(weight_variance=variance)
    found = edgewise.judge(edgewise.predict(changed, **how))
    note = "Exponents are those at infinite depth; on the edge differences change by a power of depth."
    values = {"weight_variance": float(variance)}
    return CriticalPoint(values, *_limits(found), True, note, changed)  # type: ignore[arg-type]


def _limits(verdict: Verdict) -> tuple[float, float]:
    def limit(exponent: Exponent | None) -> float:
        return math.nan if exponent is None or exponent.asymptotic is None else exponent.asymptotic

    return limit(verdict.angle), limit(verdict.relative_gradient)
