"""Depth scales: after how many layers a perturbation has changed by a factor e."""

from __future__ import annotations

import math


def depth_scale(rate: float | None) -> float | None:
    """xi = 1/|lambda| for a log-rate per layer; infinite on the edge, None when there is no rate.

    >>> depth_scale(-0.25)
    4.0
    """
    if rate is None or math.isnan(rate):
        return None
    return math.inf if rate == 0 else 1.0 / abs(rate)
