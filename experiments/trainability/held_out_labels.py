"""What became of a held-out network: trained, wrong rate, slow or dead, and how long it took.

The rules were fixed before any run; `held_out` has them in words.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgewise.study.train import TRAINS

LABELS = ("trained", "wrong rate", "slow", "dead")
WITHIN = 5.0  # times the steps, by a straight line
CERTAIN = 3.0  # standard errors of its slope


def label(value: dict[str, Any]) -> str:
    """The outcome of one network."""
    half = TRAINS * value["chance"]
    if _final(value["best"]) + _final(value["second"]) < 2 * half:
        return "trained"
    runs = [run for run in (value["best"], value["second"], value["beyond"]) if run is not None]
    if value["beyond"] is not None and _final(value["beyond"]) < half:
        return "wrong rate"
    if any(loss is not None and loss < half for run in runs for loss in run["curve"]):
        return "wrong rate"
    return "slow" if share_of_steps(value) <= WITHIN else "dead"


def share_of_steps(value: dict[str, Any]) -> float:
    """When the best run is at half of chance, in units of its steps: on its curve, else by the line; else infinite."""
    half, curve = TRAINS * value["chance"], value["best"]["curve"]
    below = [place for place, loss in enumerate(curve) if loss is not None and loss < half]
    if below:
        return (below[0] + 0.5) / len(curve)
    if value["best"]["diverged"] or any(loss is None for loss in curve):
        return math.inf
    return _by_line(np.array(curve, float), half)


def _by_line(curve: np.ndarray, half: float) -> float:
    """Where a line through the second half meets a loss, in units of the whole curve; infinite where it is not "
    "sure."""
    count = len(curve)
    at = (np.arange(count) + 0.5)[count // 2 :] / count
    loss = curve[count // 2 :]
    spread = float(((at - at.mean()) ** 2).sum())
    slope = float(((at - at.mean()) * (loss - loss.mean())).sum()) / spread
    rest = loss - loss.mean() - slope * (at - at.mean())
    error = math.sqrt(float((rest**2).sum()) / max(1, len(at) - 2) / spread)
    if not slope < -CERTAIN * error:
        return math.inf
    return float(at.mean() + (half - loss.mean()) / slope)


def _final(run: dict[str, Any]) -> float:
    return math.inf if run["final"] is None else float(run["final"])
