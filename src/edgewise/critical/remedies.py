"""Remedies with numbers: each is tried on the theory before it is recommended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from edgewise.architecture import Architecture
from edgewise.critical.exponents import evaluate
from edgewise.stability.phases import RISKY
from edgewise.verdict import Finding, Kind, Verdict

_CURABLE = {
    Kind.RANK_COLLAPSE, Kind.FULL_COLLAPSE, Kind.VANISHING_GRADIENT, Kind.EXPLODING_GRADIENT, Kind.TOKENS_SEPARATE,
}  # fmt: skip
TARGET = 0.75 * RISKY  # a remedy must leave the change clearly below «risky»


def remedies(verdict: Verdict, architecture: Architecture) -> tuple[Finding, ...]:
    """The findings, with what was found to work put in front of the general advice."""
    tried = [text for cure in (_branches, _pre_norm, _input_gain) if (text := cure(verdict, architecture))]
    advice = "By theory, any one of these brings it below the limit: " + "; ".join(tried) + "." if tried else ""
    return tuple(
        replace(f, remedy=f"{advice} {f.remedy}".strip()) if f.kind in _CURABLE else f for f in verdict.findings
    )


def _worst(verdict: Verdict, architecture: Architecture, **knobs: float) -> float:
    """The larger of the two changes over depth with some knobs set."""
    readout = verdict.readout or "token"
    rates = evaluate(architecture, {name: np.array([value]) for name, value in knobs.items()}, readout)
    size = max(abs(float(rates.angle_change[0])), abs(float(rates.gradient_change[0])))
    return size if np.isfinite(size) else 1e3


def _branches(verdict: Verdict, architecture: Architecture) -> str:
    """The largest common branch multiplier that trains, the skips at 1."""

    def excess(multiplier: float) -> float:
        knobs = {"attention_branch": multiplier, "attention_skip": 1.0}
        if architecture.mlp_width:
            knobs |= {"mlp_branch": multiplier, "mlp_skip": 1.0}
        return _worst(verdict, architecture, **knobs) - TARGET

    value = _largest(excess, 1.0)
    return "" if value is None else f"attention_branch = mlp_branch = {value:.2g} with skips of 1"


def _largest(excess: Callable[[float], float], top: float) -> float | None:
    """The largest value in (0, top] with no excess, one sign change assumed, bracketed by halving."""
    if excess(top) <= 0:
        return top
    low = top
    for _ in range(12):
        low /= 2
        if excess(low) <= 0:
            return float(brentq(excess, low, 2 * low, rtol=1e-3))
    return None


def _pre_norm(verdict: Verdict, architecture: Architecture) -> str:
    if architecture.norm == "pre":
        return ""
    changed = architecture.replace(norm="pre", attention_skip=1.0, mlp_skip=1.0)
    size = _worst(verdict, changed, value_gain=float(np.mean(architecture.value_gain)))
    return "" if size > TARGET else f'norm = "pre" with skips of 1 (change {size:.1f})'


def _input_gain(verdict: Verdict, architecture: Architecture) -> str:
    """A gain of the MLP input at which the worst change is below the target, found between factors of two."""
    if not architecture.mlp_width:
        return ""
    here = float(np.mean(architecture.mlp_in_gain))
    for factor in (1.2, 1.5, 2.0, 3.0, 1 / 1.2, 1 / 1.5, 0.5, 1 / 3):
        size = _worst(verdict, architecture, mlp_in_gain=here * factor)
        if size <= TARGET:
            return f"mlp_in_gain = {here * factor:.3g} instead of {here:.3g} (change {size:.1f})"
    return ""
