"""What the forecast is measured against, on the same runs; every score is larger where training should fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from edgewise.arrays import Array

from .scores import BEYOND
from .table import Row

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
    """Few modes near the unit circle; [Kim 2026] reads the same number the other way round, as a risk of divergence.

    The sign here is the one that forecasts when the rate is chosen per network.
    """
    share = row.geometry["koopman"][whitening]
    return 0.0 if share is None else -float(share)


def random_energy(row: Row) -> float:
    """Distance from the trainable region of the random-energy diagram: collapse, or logits beyond condensation.

    |log-change of the separation| + (v - 2 log n)_+, both in that limit.
    """
    limit = row.geometry["random_energy"]
    angle = BEYOND if limit["angle"] is None else abs(limit["angle"])
    excess = BEYOND if limit["condensation"] is None else max(0.0, limit["condensation"] - 1)
    return float(angle + 2 * math.log(TOKENS[row.task]) * excess)


def collapsed(row: Row) -> tuple[float, float]:
    """The paper's exponents per block, linearised at collapse."""
    exponents = row.geometry["collapsed"]
    return tuple(
        BEYOND if exponents[name] is None else float(exponents[name]) for name in ("angle", "gradient")
    )  # type: ignore[return-value]


def three_constants(rows: Sequence[Row]) -> ThreeConstants:
    """The paper's fit of the final loss, on some rows."""
    angles, gradients = np.array([collapsed(row) for row in rows]).T
    return fit_three_constants(angles, gradients, [row.loss for row in rows])


def three_constant_loss(fit: ThreeConstants, row: Row) -> float:
    return float(fit.loss(*collapsed(row)))


@dataclass(frozen=True)
class ThreeConstants:
    """loss = c0 + max(c1 |lambda_a|, c2 |lambda_g|) [Cowsik 2024, talk]."""

    base: float
    angle: float
    gradient: float

    def loss(self, angle: ArrayLike, gradient: ArrayLike) -> Array:
        a, g = np.abs(np.asarray(angle, float)), np.abs(np.asarray(gradient, float))
        return self.base + np.maximum(self.angle * a, self.gradient * g)


def fit_three_constants(angle: ArrayLike, gradient: ArrayLike, loss: ArrayLike) -> ThreeConstants:
    """Least squares from several starts: the maximum has kinks."""
    a, g, y = (np.asarray(v, float) for v in (angle, gradient, loss))

    def error(p: Array) -> float:
        return float(np.mean((ThreeConstants(*p).loss(a, g) - y) ** 2))

    scales = (0.1, 1.0, 10.0)
    starts = [np.array([y.min(), s, t]) for s, t in product(scales, scales)]
    bounds = [(None, None), (0, None), (0, None)]
    fits = [minimize(error, start, method="Nelder-Mead", bounds=bounds) for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun))
    return ThreeConstants(*(float(v) for v in best.x))
