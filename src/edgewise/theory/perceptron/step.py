"""One layer of a random perceptron at infinite width: the maps of length and correlation, and the gradient's way back.

    q' = sw2 E phi(sqrt(q) z)^2 + sb2,   c' = (sw2 E phi(u) phi(u') + sb2) / q'   [Poole 2016, eq. 3 and 5]

Preactivations h^l = W^l phi(h^(l-1)) + b^l, weights of variance sw2 / fan_in, biases of variance sb2. Arrays of weight
and bias variances broadcast. A length that grows without bound has the fixed point inf; the maps are then evaluated at
FAR, where every activation whose length can grow is homogeneous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.nouns.architecture import Perceptron
from edgewise.theory.averages.activation_averages import Activation, activation
from edgewise.theory.perceptron.state import PerceptronState

FAR = 1e12


@dataclass(frozen=True)
class PerceptronStep:
    """The state after a layer, and how the squared gradient comes back through it."""

    state: PerceptronState
    pull: Callable[[Array], Array]


def step(state: PerceptronState, layer: Perceptron) -> PerceptronStep:
    """Send two inputs through one layer.

    q' = sw2 E phi^2 + sb2,   e' = sw2 q e chord(q, e) / q',   |g|^2 = sw2 E phi'(q)^2 |g'|^2
    """
    phi, sw2, sb2 = activation(layer.activation), layer.weight_variance, layer.bias_variance
    q, e = state
    after = PerceptronState(length_map(phi, sw2, sb2, q), separation_map(phi, sw2, sb2, q, e))
    return PerceptronStep(after, lambda gradient: gradient * chi_1(phi, sw2, q))


def length_map(
    phi: Activation, weight_variance: ArrayLike, bias_variance: ArrayLike, length: ArrayLike
) -> Array:
    """q' = sw2 E phi^2 + sb2."""
    return np.asarray(np.asarray(weight_variance) * phi.square(length) + np.asarray(bias_variance))


def correlation_map(
    phi: Activation,
    weight_variance: ArrayLike,
    bias_variance: ArrayLike,
    length: ArrayLike,
    correlation: ArrayLike,
) -> Array:
    """c' = (sw2 E phi(u) phi(u') + sb2) / q' for a pair of length q and correlation c."""
    product = np.asarray(weight_variance) * phi.product(length, correlation) + np.asarray(bias_variance)
    return np.asarray(product / length_map(phi, weight_variance, bias_variance, length))


def separation_map(
    phi: Activation,
    weight_variance: ArrayLike,
    bias_variance: ArrayLike,
    length: ArrayLike,
    separation: ArrayLike,
) -> Array:
    """e' = sw2 q e chord(q, e) / q': the correlation map for e = 1 - c, with nothing subtracted."""
    spread = np.asarray(weight_variance) * np.asarray(length) * separation * phi.chord(length, separation)
    following = length_map(phi, weight_variance, bias_variance, length)
    after = np.where(following > 0, spread / np.where(following > 0, following, 1.0), 0.0)
    return np.minimum(after, 2.0)  # opposite inputs stay opposite in a linear layer, but for rounding


def chi_1(phi: Activation, weight_variance: ArrayLike, length: ArrayLike) -> Array:
    """chi_1 = sw2 E phi'^2: growth of the squared gradient per layer, and of small differences [Poole 2016]."""
    return np.asarray(np.asarray(weight_variance) * _at_limit(phi.slope_square, length))


def chi_q(phi: Activation, weight_variance: ArrayLike, length: ArrayLike) -> Array:
    """chi_q = sw2 d E phi^2 / dq: slope of the length map."""
    return np.asarray(np.asarray(weight_variance) * _at_limit(phi.length_slope, length))


def _at_limit(average: Callable[[Array], Array], length: ArrayLike) -> Array:
    """Return the average at length q, continued to q = inf: its value far out, inf if it still grows there."""
    q = np.asarray(length, dtype=float)
    value = average(np.minimum(q, FAR))
    if not np.any(np.isinf(q)):
        return value
    grows = float(average(np.asarray(FAR))) > 2 * float(average(np.asarray(FAR / 100)))
    return np.asarray(np.where(np.isinf(q) & grows, np.inf, value))
