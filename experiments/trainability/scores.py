"""Scores from orbits: how much tokens merge or separate, and gradients vanish or explode, over the depth.

With e the separation 1 - c, q the norm and g the gradient at block l of L:

    A = log e_L - log e_0        G = log |g_0|^2 - log |g_L|^2        G_rel = G + log q_0 - log q_L

and F the log-share of the stream that is no longer the input (`edgewise.judgement.outcome`).

`span` is "total", "layer" (divided by L) or "half" (twice the change over the second half).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgewise.arrays import Array

BEYOND = 200.0  # |log-change| of what left the range of numbers: beyond every finite orbit here
SPANS = ("total", "layer", "half")
COMBINATIONS = ("sum", "max", "angle", "gradient")


def changes(
    orbit: Mapping[str, Any], readout: str, relative: bool, span: str = "total"
) -> tuple[float, float]:
    """(angle, gradient): the two signed log-changes of one orbit."""
    gradient = _curve(orbit, readout)
    if relative:
        gradient = gradient + _curve(orbit, "norm")
    return _change(_curve(orbit, "separation"), span), -_change(gradient, span)


def forgetting(orbit: Mapping[str, Any], span: str = "total") -> float:
    """F over the depth, never negative."""
    return abs(_change(_curve(orbit, "forgotten"), span))


def _curve(orbit: Mapping[str, Any], name: str) -> Array:
    return np.array([np.nan if value is None else value for value in orbit[name]], float)


def _change(curve: Array, span: str) -> float:
    depth = len(curve) - 1
    half = depth // 2
    first, factor = (half, depth / (depth - half)) if span == "half" else (0, 1.0)
    change = (curve[-1] - curve[first]) * factor
    if not np.isfinite(change):
        change = -BEYOND
    change = float(np.clip(change, -BEYOND, BEYOND))
    return change / depth if span == "layer" else change


def combined(angle: float, gradient: float, how: str = "sum") -> float:
    """The score: nothing fitted, larger is worse."""
    a, g = abs(angle), abs(gradient)
    return {"sum": a + g, "max": max(a, g), "angle": a, "gradient": g}[how]


def own_readout(task: str) -> str:
    """Images are read from the mean over tokens, text at every token."""
    return "token" if task == "bytes" else "pooled"
