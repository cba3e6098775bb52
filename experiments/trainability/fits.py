"""Scores and fits of the forecast: the plain sum, and logistic curves fitted on families that they do not forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit

from edgewise.arrays import Array

from .baselines import three_constant_loss, three_constants
from .scores import combined
from .table import Row

RIDGE = 1e-3
Forecast = Callable[[Sequence[Row], Sequence[Row]], Array]  # fitted on the first, of the second


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
    fit = minimize(loss, np.append(np.ones(k), 1.0), jac=True, method="L-BFGS-B", bounds=bounds)
    return Logistic(tuple(float(w) for w in fit.x[:-1] / scale), float(fit.x[-1]))


def plain(row: Row) -> float:
    """|log-change of angle| + |log-change of relative gradient|, pooled readout, whole depth: nothing fitted."""
    return combined(*row.changes(readout="pooled"))


def with_forgetting(row: Row) -> float:
    """The plain sum and a third of what the stream forgets (chosen after seeing the data)."""
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
    forecasts = np.full(len(rows), np.nan)
    for task, family in dict.fromkeys((row.task, row.family) for row in rows):
        inside = [i for i, row in enumerate(rows) if (row.task, row.family) == (task, family)]
        others = [row for row in rows if row.family != family and (row.task == task) == same_task]
        if others:
            forecasts[inside] = forecast(others, [rows[i] for i in inside])
    return forecasts
