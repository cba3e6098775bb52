"""Fits that have not seen the architecture (or neither it nor the task) they forecast.

Two small fits: a logistic curve with weights of one sign, and the paper's three constants.

What the forecast is measured against, on the same runs; every score is larger where training is expected to fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit

from .scores import BEYOND, combined
from .table import Row

Array = NDArray[np.float64]
RIDGE = 1e-3


@dataclass(frozen=True)
class Logistic:
    """P(trains) = 1 / (1 + exp(sum_i w_i x_i - b)), every w_i >= 0: more of a defect never helps."""

    weights: tuple[float, ...]
    offset: float

    def score(self, features: ArrayLike) -> Array:
        """Larger is worse; features (N, k)."""
        return np.asarray(np.asarray(features, float) @ np.array(self.weights) - self.offset)

    def probability(self, features: ArrayLike) -> Array:
        return np.asarray(expit(-self.score(features)))


def fit_logistic(features: ArrayLike, failed: ArrayLike, ridge: float = RIDGE) -> Logistic:
    """Maximum likelihood with a slight pull of the weights to zero [Cox 1958]; features (N, k)."""
    x, y = np.asarray(features, float), np.asarray(failed, float)
    scale = x.std(axis=0) + 1e-12

    def loss(parameters: Array) -> tuple[float, Array]:
        w, b = parameters[:-1], parameters[-1]
        z = (x / scale) @ w - b
        residual = expit(z) - y
        value = float(np.logaddexp(0, z).sum() - (y * z).sum()) / len(y) + ridge * float(w @ w)
        gradient = np.append((x / scale).T @ residual / len(y) + 2 * ridge * w, -residual.mean())
        return value, gradient

    k = x.shape[1]
    bounds = [(0.0, None)] * k + [(None, None)]
    found = minimize(loss, np.append(np.ones(k), 1.0), jac=True, method="L-BFGS-B", bounds=bounds)
    return Logistic(tuple(float(w) for w in found.x[:-1] / scale), float(found.x[-1]))


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


Forecast = Callable[[Sequence[Row], Sequence[Row]], Array]  # fitted on the first, of the second


def plain(row: Row) -> float:
    """|log-change of angle| + |log-change of relative gradient|, pooled readout, whole depth: nothing fitted."""
    return combined(*row.changes(readout="pooled"))


def with_forgetting(row: Row) -> float:
    """The plain sum and a third of what the stream forgets. The third was chosen after seeing the runs."""
    return plain(row) + row.forgetting() / 3


def defects(row: Row) -> list[float]:
    """(sum of both exponents with the task's own readout, forgetting): what the fit weighs."""
    return [combined(*row.changes()), row.forgetting()]


def calibration(rows: Sequence[Row]) -> Logistic:
    """The plain sum turned into a probability: two constants."""
    return fit_logistic([[plain(row)] for row in rows], [row.failed for row in rows])


def fitted_score(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    """Two weights and an offset."""
    return _fitted(fitted).score([defects(row) for row in of])


def fitted_probability(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    return _fitted(fitted).probability([defects(row) for row in of])


def _fitted(rows: Sequence[Row]) -> Logistic:
    return fit_logistic([defects(row) for row in rows], [row.failed for row in rows])


def plain_probability(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    return calibration(fitted).probability([[plain(row)] for row in of])


def paper_loss(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    """The paper's three constants."""
    fit = three_constants(fitted)
    return np.array([three_constant_loss(fit, row) for row in of])


def cross_fitted(rows: Sequence[Row], forecast: Forecast, same_task: bool = False) -> Array:
    """For every row a forecast fitted on other families: of the other tasks, or (`same_task`) of its own task."""
    found = np.full(len(rows), np.nan)
    for task, family in dict.fromkeys((row.task, row.family) for row in rows):
        inside = [i for i, row in enumerate(rows) if (row.task, row.family) == (task, family)]
        others = [row for row in rows if row.family != family and (row.task == task) == same_task]
        found[inside] = forecast(others, [rows[i] for i in inside])
    return found
