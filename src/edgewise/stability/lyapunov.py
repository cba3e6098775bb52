"""Exponents from logs along depth: an average growth, its error, and the part that decides.

Depth scales: after how many layers a perturbation has changed by a factor e.
"""

from __future__ import annotations

import math

import numpy as np

from edgewise.arrays import Array
from edgewise.verdict import Exponent


def exponent(logs: Array, width: float | None = None, sampled: bool = True) -> Exponent:
    """lambda(L) = (log_L - log_0)/L of logs (seeds, L + 1), with its error and twice its second half.

    `error` is what one network scatters by: the standard error over seeds or the finite-width value sqrt(2/(L d)),
    whichever is larger. The change over the second half, doubled, is lambda L for a constant exponent, O(1) for a
    power law, and ignores the start; `change_error` is how well that mean is known: over seeds, the finite-width
    scatter for a single measured network, and none for an exact recursion (`sampled` False).
    """
    depth = logs.shape[1] - 1
    half = depth // 2
    with np.errstate(invalid="ignore"):
        total = logs[:, -1] - logs[:, 0]
        change = (logs[:, -1] - logs[:, half]) * depth / (depth - half)
    scatter = math.nan if width is None else math.sqrt(2 * depth / width)
    # A log-change over L/2 layers scatters by sqrt(L/d); doubled, sqrt(2) times the scatter of the total.
    alone = scatter * math.sqrt(depth / (depth - half))
    return Exponent(
        at_depth=_mean(total) / depth,
        error=float(np.fmax(_error(total), scatter)) / depth,
        change=_mean(change),
        change_error=0.0 if not sampled else _error(change) if len(logs) > 1 else alone,
    )


def _mean(values: Array) -> float:
    """The mean over seeds; minus infinity when every seed collapsed fully (inf - inf counts as such)."""
    return -math.inf if np.isnan(values).any() or np.isneginf(values).any() else float(values.mean())


def _error(values: Array) -> float:
    """Standard error over seeds; unknown (nan) for one seed, none for an infinite exponent."""
    if not np.isfinite(values).all():
        return 0.0
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def lyapunov_exponent(derivatives: Array) -> float:
    """The mean log of a one-dimensional map's slopes along an orbit, lambda = <log |f'|> [Benettin 1976]."""
    return float(np.mean(np.log(np.abs(derivatives))))


def depth_scale(rate: float | None) -> float | None:
    """xi = 1/|lambda| for a log-rate per layer; infinite on the edge, None when there is no rate.

    >>> depth_scale(-0.25)
    4.0
    """
    if rate is None or math.isnan(rate):
        return None
    return math.inf if rate == 0 else 1.0 / abs(rate)
