"""The rival: a plot of loss and gradient norm, read by a rule that was written down before any run.

    not a number      the loss is not finite                                    names "not finite"
    flat              the mean of the last 20 losses is above 0.98 of the first 10   "does not learn"
    jump              a loss above 1.3 times the median of the 20 before it     "spike"; three in a row "diverges"
    gradient          its norm is 0 at some step, or 100 times its median       "no gradient", "exploding gradient"

It names symptoms only; a cause counts as named if the symptom is the cause's own word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def read(losses: Sequence[float], gradients: Sequence[float]) -> list[str]:
    """Return what the rule says of a run."""
    said = []
    if any(not math.isfinite(x) for x in losses):
        said.append("not finite")
    finite = np.array([x for x in losses if math.isfinite(x)])
    if len(finite) > 40 and finite[-20:].mean() > 0.98 * finite[:10].mean():
        said.append("does not learn")
    away = [finite[i] > 1.3 * np.median(finite[i - 20 : i]) for i in range(20, len(finite))]
    if any(away):
        said.append(
            "spike"
            if max(map(len, "".join("x" if a else " " for a in away).split()), default=0) < 3
            else "diverges"
        )
    norms = np.array([g for g in gradients if math.isfinite(g)])
    if len(norms) and (norms == 0).any():
        said.append("no gradient")
    if len(norms) > 20 and norms.max() > 100 * np.median(norms):
        said.append("exploding gradient")
    return said
