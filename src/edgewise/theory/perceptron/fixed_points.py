"""Where a deep random perceptron ends: fixed points of length and correlation, chi_1 and depth scales.

    q' = sw2 E phi(sqrt(q) z)^2 + sb2,   c' = (sw2 E phi(u) phi(u') + sb2) / q'   [Poole 2016, eq. 3 and 5]

Arrays of weight and bias variances broadcast. A length that grows without bound has the fixed point inf; the maps
are then evaluated at FAR, where every activation whose length can grow is homogeneous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.theory.averages.activations import Activation

FAR = 1e12
_LENGTHS = np.exp(np.linspace(np.log(1e-12), np.log(FAR), 561))


class LengthFixedPoint(NamedTuple):
    """A solution of the length map, with its slope chi_q there; stable when |slope| < 1."""

    length: float
    slope: float


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


def length_fixed_point(
    phi: Activation, weight_variance: ArrayLike, bias_variance: ArrayLike, start: float = 1.0
) -> Array:
    """Where the length goes from `start`: the next fixed point in the direction of motion, 0 or inf if none.

    Bracketed on a logarithmic grid, then bisected. A marginal map (ReLU at sw2 = 2, sb2 = 0) keeps the start.
    """
    sw2, sb2 = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (weight_variance, bias_variance)))
    grid = np.unique(np.append(_LENGTHS, start))
    here = int(np.searchsorted(grid, start))
    excess = np.multiply.outer(sw2, phi.square(grid)) + sb2[..., None] - grid  # (..., G)
    rises = excess[..., here] > 0
    up, down = excess[..., here:] <= 0, excess[..., : here + 1] >= 0
    above = here + np.argmax(up, axis=-1)
    below = here - np.argmax(down[..., ::-1], axis=-1)
    grows = rises & ~np.any(up, axis=-1)
    shrinks = ~rises & ~np.any(down, axis=-1)
    low = np.where(rises, grid[np.maximum(above - 1, 0)], np.where(shrinks, 0.0, grid[below]))
    high = np.where(
        rises, grid[above], np.where(shrinks, grid[0], grid[np.minimum(below + 1, grid.size - 1)])
    )
    bisected = _bisect_length(phi, sw2, sb2, low, high)
    marginal = np.abs(excess[..., here]) <= 1e-13 * start
    return np.asarray(np.where(marginal, start, np.where(grows, np.inf, bisected)))


def _bisect_length(phi: Activation, sw2: Array, sb2: Array, low: Array, high: Array) -> Array:
    """The sign change of q' - q from positive (low) to not (high), to rounding."""
    for _ in range(64):
        middle = np.where(low > 0, np.sqrt(low * high), high / 2)
        if np.all((middle == low) | (middle == high)):  # no number lies between
            break
        rises = length_map(phi, sw2, sb2, middle) > middle
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    return np.asarray(np.where(low > 0, np.sqrt(low * high), np.where(high < 1e-20, 0.0, high)))


def bisected(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero between two numbers at which a function has opposite signs, to 1e-14 of their distance."""
    rises = function(low) < 0
    for _ in range(48):
        middle = (low + high) / 2
        low, high = (middle, high) if (function(middle) < 0) == rises else (low, middle)
    return (low + high) / 2


def length_fixed_points(
    phi: Activation, weight_variance: float, bias_variance: float
) -> tuple[LengthFixedPoint, ...]:
    """Every isolated fixed point of the length map in [0, 1e12], stable or not, in increasing order."""
    excess = length_map(phi, weight_variance, bias_variance, _LENGTHS) - _LENGTHS

    def gap(log_length: float) -> float:
        q = np.exp(log_length)
        return float(length_map(phi, weight_variance, bias_variance, q) - q)

    crossings = np.flatnonzero(np.sign(excess[:-1]) * np.sign(excess[1:]) < 0)
    edges = np.log(_LENGTHS)
    lengths = [float(np.exp(bisected(gap, edges[k], edges[k + 1]))) for k in crossings]
    if length_map(phi, weight_variance, bias_variance, 0.0) == 0:
        lengths = [0.0, *lengths]
    return tuple(LengthFixedPoint(q, float(weight_variance * phi.length_slope(q))) for q in lengths)


def chi_1(phi: Activation, weight_variance: ArrayLike, length: ArrayLike) -> Array:
    """chi_1 = sw2 E phi'^2: growth of the squared gradient per layer, and of small differences [Poole 2016]."""
    return np.asarray(np.asarray(weight_variance) * _at_limit(phi.slope_square, length))


def chi_q(phi: Activation, weight_variance: ArrayLike, length: ArrayLike) -> Array:
    """chi_q = sw2 d E phi^2 / dq: slope of the length map."""
    return np.asarray(np.asarray(weight_variance) * _at_limit(phi.length_slope, length))


def _at_limit(average: Callable[[Array], Array], length: ArrayLike) -> Array:
    """The average at length q, continued to q = inf: its value far out, inf if it still grows there."""
    q = np.asarray(length, dtype=float)
    value = average(np.minimum(q, FAR))
    if not np.any(np.isinf(q)):
        return value
    grows = float(average(np.asarray(FAR))) > 2 * float(average(np.asarray(FAR / 100)))
    return np.asarray(np.where(np.isinf(q) & grows, np.inf, value))


def separation_fixed_point(
    phi: Activation, weight_variance: ArrayLike, bias_variance: ArrayLike, length: ArrayLike
) -> Array:
    """e* = 1 - c*: the limit of the separation of two different inputs at fixed length q*.

    The c-map is a power series with coefficients >= 0 that passes through (1, 1), so c = 1 is the only limit
    when its slope there is at most 1; else sw2 q chord(q, e) / q' = 1 has one root, bracketed by (0, 1].
    """
    q = np.minimum(length, FAR)
    gain = _gain(phi, weight_variance, bias_variance, q)
    q, gain = np.broadcast_arrays(q, gain)
    chaotic = gain * phi.slope_square(q) > 1 + 1e-9
    if not chaotic.any():
        return np.zeros(q.shape)
    low, high = np.zeros(q.shape), np.ones(q.shape)  # of sqrt(e), which keeps its digits near the boundary
    for _ in range(52):
        middle = (low + high) / 2
        parts = gain * phi.chord(q, middle**2) > 1
        low, high = np.where(parts, middle, low), np.where(parts, high, middle)
    return np.asarray(np.where(chaotic, ((low + high) / 2) ** 2, 0.0))


def correlation_slope(
    phi: Activation,
    weight_variance: ArrayLike,
    bias_variance: ArrayLike,
    length: ArrayLike,
    separation: ArrayLike,
) -> Array:
    """Slope of the c-map at correlation 1 - e: sw2 E phi'(u) phi'(u') (times q/q' while the length grows)."""
    q = np.minimum(length, FAR)
    gain = _gain(phi, weight_variance, bias_variance, q)
    return np.asarray(gain * phi.slope_product_apart(q, separation))


def _gain(phi: Activation, weight_variance: ArrayLike, bias_variance: ArrayLike, q: Array) -> Array:
    """sw2 q / q', which is sw2 at a fixed point (also at q = 0, where the ratio has no value)."""
    following = length_map(phi, weight_variance, bias_variance, q)
    moving = (q >= FAR) & (following > 0)
    return np.asarray(
        np.asarray(weight_variance) * np.where(moving, q / np.where(moving, following, 1.0), 1.0)
    )


def depth_scale(slope: ArrayLike) -> Array:
    """xi = 1 / |log |slope||: layers per factor e; inf on the boundary, 0 for a map that forgets at once.

    Slopes are known to about 1e-6, so a scale above a million layers is the boundary.
    """
    with np.errstate(divide="ignore"):
        rate = np.abs(np.log(np.abs(np.asarray(slope, dtype=float))))
        return np.asarray(np.where(rate < 1e-6, np.inf, 1.0 / rate))
