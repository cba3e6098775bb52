"""Two small fits: a logistic curve with weights of one sign, and the paper's three constants."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import expit

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
