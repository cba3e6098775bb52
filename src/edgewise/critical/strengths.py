"""Strengths: one number for a branch and the skip around it, x <- sqrt(1 - a^2) x + a branch(x) [Cowsik 2024]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.knobs import KNOBS, Knob

Array = NDArray[np.float64]

_PAIRS = {
    "attention_strength": ("attention_skip", "attention_branch"),
    "mlp_strength": ("mlp_skip", "mlp_branch"),
}
_MEANING = "multiplier a of the branch, with sqrt(1 - a^2) on the skip around it; from 0 to 1"
AXES: dict[str, Knob] = KNOBS | {name: Knob(name, "fraction", 0.0, _MEANING) for name in _PAIRS}


def is_strength(name: str) -> bool:
    return name in _PAIRS


def as_knobs(name: str, values: Array) -> dict[str, Array]:
    """The knobs that an axis of a diagram moves."""
    if name not in _PAIRS:
        return {name: values}
    skip, branch = _PAIRS[name]
    return {skip: np.sqrt(1 - values**2), branch: values}


def value_of(name: str, architecture: Any) -> Any:
    """Where a network stands on an axis; None where its skip and branch are no such pair."""
    if name not in _PAIRS:
        return getattr(architecture, name)
    skip, branch = (getattr(architecture, knob) for knob in _PAIRS[name])
    if isinstance(skip, tuple) or isinstance(branch, tuple) or abs(skip**2 + branch**2 - 1) > 1e-6:
        return None
    return branch
