"""What the forecast is measured against, on the same runs; every score is larger where training is expected to fail."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgewise.study.forecast_fit import ThreeConstants, fit_three_constants
from edgewise.study.forecast_scores import BEYOND
from edgewise.study.forecast_table import Row

Array = NDArray[np.float64]
TOKENS = {"digits": 16, "bytes": 32}


def gradient_norm(row: Row) -> float:
    """|log| of the norm of the first gradient: both a very small and a very large one are bad."""
    norm = row.run["gradient_norm"]
    return BEYOND if not norm else abs(math.log(norm))


def early_loss(row: Row) -> float:
    """Loss after 20 steps, as a share of chance: costs a tenth of the run that it forecasts."""
    early = row.run["early"]
    return 10.0 if early is None else float(early / row.run["chance"])


def koopman(row: Row, whitening: str) -> float:
    """Few modes near the unit circle. (The rival reads the same number the other way round, as a risk of divergence
    at high rates; with the rate chosen per network it is the sign given here that forecasts.)"""
    share = row.geometry["koopman"][whitening]
    return 0.0 if share is None else -float(share)


def random_energy(row: Row) -> float:
    """Distance from the trainable region of the random-energy diagram: collapse, or logits beyond condensation.

    |log-change of the separation| + (v - 2 log n)_+, both in that limit.
    """
    found = row.geometry["random_energy"]
    angle = BEYOND if found["angle"] is None else abs(found["angle"])
    excess = BEYOND if found["condensation"] is None else max(0.0, found["condensation"] - 1)
    return float(angle + 2 * math.log(TOKENS[row.task]) * excess)


def collapsed(row: Row) -> tuple[float, float]:
    """The paper's exponents per block, linearised at collapse."""
    found = row.geometry["collapsed"]
    return tuple(BEYOND if found[name] is None else float(found[name]) for name in ("angle", "gradient"))  # type: ignore[return-value]


def three_constants(rows: Sequence[Row]) -> ThreeConstants:
    """The paper's fit of the final loss, on some rows."""
    angles, gradients = np.array([collapsed(row) for row in rows]).T
    return fit_three_constants(angles, gradients, [row.loss for row in rows])


def three_constant_loss(fit: ThreeConstants, row: Row) -> float:
    return float(fit.loss(*collapsed(row)))
