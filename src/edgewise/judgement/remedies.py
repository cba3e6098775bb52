"""Remedies with numbers: each is tried on the theory before it is recommended."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edgewise.architecture import Architecture
from edgewise.arrays import Array
from edgewise.critical.exponents import evaluate
from edgewise.judgement.reading import Reading
from edgewise.stability.limits import RISKY
from edgewise.verdict import Finding, Kind

_CURABLE = {
    Kind.RANK_COLLAPSE, Kind.FULL_COLLAPSE, Kind.VANISHING_GRADIENT, Kind.EXPLODING_GRADIENT, Kind.TOKENS_SEPARATE,
}  # fmt: skip
SHARP = 200.0  # logit variance beyond the moment table: a search would take hours, and score_gain is the defect
TARGET = 0.75 * RISKY  # a remedy must leave the change clearly below «risky»


def with_remedies(
    findings: tuple[Finding, ...], reading: Reading, architecture: Architecture
) -> tuple[Finding, ...]:
    """The findings, with what works by theory put in front of the general advice."""
    readout = reading.trace.readouts[0] if reading.trace.readouts else "token"
    condensation = (reading.attention.condensation if reading.attention else None) or 0.0
    sharp = condensation * 2 * math.log(architecture.tokens) > SHARP
    cures = () if sharp else (_branches, _pre_norm, _input_gain)
    tried = [text for cure in cures if (text := cure(architecture, readout))]
    curable = [finding for finding in findings if finding.kind in _CURABLE]
    if not tried or not curable:
        return findings
    which = "this" if len(tried) == 1 else "any one of these"
    theory = "By theory" if architecture.symmetric else "By the theory that leaves out mask and positions"
    advice = f"{theory}, {which} brings it below the limit: {'; '.join(tried)}."
    first = replace(curable[0], remedy=f"{advice} {curable[0].remedy}")  # it cures the others too
    return tuple(first if finding is curable[0] else finding for finding in findings)


def _worst(architecture: Architecture, readout: str, **knobs: Array) -> Array:
    """The larger of the two changes over depth, for arrays of knob values tried at once."""
    rates = evaluate(architecture, knobs, readout)
    size = np.maximum(np.abs(rates.angle_change), np.abs(rates.gradient_change))
    return np.where(np.isfinite(size), size, np.inf)


def _branches(architecture: Architecture, readout: str) -> str:
    """The largest common branch multiplier that trains, the skips at 1: bracketed by halving, then narrowed."""
    multipliers = 2.0 ** -np.arange(13.0)
    for _ in range(2):
        ones = np.ones_like(multipliers)
        knobs = {"attention_branch": multipliers, "attention_skip": ones, "mlp_branch": multipliers, "mlp_skip": ones}
        good = multipliers[_worst(architecture, readout, **knobs) <= TARGET]
        if not len(good):
            return ""
        multipliers = np.linspace(good.max(), min(2 * good.max(), 1.0), 17)
    layers = [name for name, size in (("attention", architecture.heads), ("mlp", architecture.mlp_width)) if size]
    return f"{' = '.join(f'{name}_branch' for name in layers)} = {good.max():.2g} with skips of 1"


def _pre_norm(architecture: Architecture, readout: str) -> str:
    if architecture.norm == "pre":
        return ""
    changed = architecture.replace(norm="pre", attention_skip=1.0, mlp_skip=1.0)
    size = _worst(changed, readout, attention_branch=np.ones(1), mlp_branch=np.ones(1))[0]
    return "" if size > TARGET else f'norm = "pre" with skips of 1 (change {size:.1f})'


def _input_gain(architecture: Architecture, readout: str) -> str:
    """The gain of the MLP input nearest to the present one at which the worst change is below the target."""
    if not architecture.mlp_width:
        return ""
    here = float(np.mean(architecture.mlp_in_gain)) or 1.0
    factors = np.geomspace(0.25, 4.0, 41)
    sizes = _worst(architecture, readout, mlp_in_gain=here * factors)
    good = np.flatnonzero(sizes <= TARGET)
    if not len(good):
        return ""
    nearest = good[np.argmin(np.abs(np.log(factors[good])))]
    return f"mlp_in_gain = {here * factors[nearest]:.3g} instead of {here:.3g} (change {sizes[nearest]:.1f})"
