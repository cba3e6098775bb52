"""Where a deep random perceptron ends: fixed points, depth scales, and the edge of chaos chi_1 = 1 [Schoenholz 2017].

On the edge, a line in the plane of weight and bias variance, the length q* is the natural coordinate, because both
variances follow from it without solving:

    sw2 = 1 / E phi'^2,    sb2 = q* - sw2 E phi^2        at q*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.averages.activation_averages import Activation
from edgewise.theory.perceptron.step import FAR, length_map

_LENGTHS = np.exp(np.linspace(np.log(1e-12), np.log(FAR), 561))
_EDGE_LENGTHS = np.exp(np.linspace(np.log(1e-8), np.log(1e8), 1001))
_ROUNDING = 1e-6  # near q = 0 and in homogeneous activations sb2 = q - q is rounding


class LengthFixedPoint(NamedTuple):
    """A solution of the length map, with its slope chi_q there; stable when |slope| < 1."""

    length: float
    slope: float


def length_fixed_point(
    phi: Activation, weight_variance: ArrayLike, bias_variance: ArrayLike, start: float = 1.0
) -> Array:
    """Follow the length from `start` to the next fixed point in the direction of motion, 0 or inf if none.

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
    """Return the sign change of q' - q from positive (low) to not (high), to rounding."""
    for _ in range(64):
        middle = np.where(low > 0, np.sqrt(low * high), high / 2)
        if np.all((middle == low) | (middle == high)):  # no number lies between
            break
        rises = length_map(phi, sw2, sb2, middle) > middle
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    return np.asarray(np.where(low > 0, np.sqrt(low * high), np.where(high < 1e-20, 0.0, high)))


def bisected(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the zero between two numbers at which a function has opposite signs, to 1e-14 of their distance."""
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


class Decay(NamedTuple):
    """On the boundary 1 - c falls as amplitude / layer^power."""

    power: int
    amplitude: float


def boundary(phi: Activation, largest_bias_variance: float = 1.0) -> tuple[Array, Array]:
    """Return the boundary as a polyline (weight variances, bias variances), from sb2 = 0 to the largest asked for.

    Only points whose q* is reached from length 1 belong to it: a fixed point of the length map that repels, or
    lies behind another, is not on the boundary. Empty when phi has none (ReLU has the single point (2, 0)).
    """
    sw2, sb2 = _variances(phi, _EDGE_LENGTHS)
    inside = (sb2 > _ROUNDING * _EDGE_LENGTHS) & (sb2 <= largest_bias_variance) & np.isfinite(sw2)
    inside[inside] = _is_reached(phi, sw2[inside], sb2[inside], _EDGE_LENGTHS[inside])
    ends = [critical_weight_variance(phi, x) for x in (0.0, largest_bias_variance)]
    sw2 = np.concatenate([[ends[0]], sw2[inside], [ends[1]]])
    sb2 = np.concatenate([[0.0], sb2[inside], [largest_bias_variance]])
    finite = np.flatnonzero(np.isfinite(sw2))
    order = finite[np.argsort(sb2[finite], kind="stable")]
    return sw2[order], sb2[order]


def critical_weight_variance(phi: Activation, bias_variance: float) -> float:
    """Return the weight variance with chi_1 = 1 at this bias variance; the smallest if several, nan if none.

    tanh: 1 at sb2 = 0; erf: pi/4; ReLU: 2 (there q* exists at sb2 = 0 only; otherwise lengths grow linearly).
    """
    if bias_variance < 0:
        raise BadInput(f"bias variance {bias_variance}: expected >= 0")
    slopes = phi.slope_square(_EDGE_LENGTHS)
    if np.ptp(slopes) <= 1e-9 * slopes[0]:
        return float(1 / slopes[0])
    candidates = [(float(1 / phi.slope_square(q)), q) for q in _crossings(phi, bias_variance)]
    reached = [sw2 for sw2, q in candidates if _is_reached(phi, sw2, bias_variance, q)]
    if bias_variance == 0 and float(phi.square(0.0)) == 0 and float(phi.slope_square(0.0)) > 0:
        at_zero = float(1 / phi.slope_square(0.0))  # q* -> 0, where phi is linear
        if float(length_fixed_point(phi, at_zero, 0.0)) < 1e-5:
            reached.append(at_zero)
    return min(reached, default=float("nan"))


def _variances(phi: Activation, q: Array) -> tuple[Array, Array]:
    with np.errstate(divide="ignore", invalid="ignore"):
        sw2 = 1 / phi.slope_square(q)
        return np.asarray(sw2), np.asarray(q - sw2 * phi.square(q))


def _crossings(phi: Activation, bias_variance: float) -> list[float]:
    """Lengths at which the line passes this bias variance."""

    def gap(log_length: float) -> float:
        return float(_variances(phi, np.asarray(np.exp(log_length)))[1] - bias_variance)

    sb2 = _variances(phi, _EDGE_LENGTHS)[1] - bias_variance
    edges = np.log(_EDGE_LENGTHS)
    sign = np.where(np.abs(sb2) < _ROUNDING * _EDGE_LENGTHS, 0.0, np.sign(sb2))
    return [
        float(np.exp(bisected(gap, edges[k], edges[k + 1]))) for k in np.flatnonzero(sign[:-1] * sign[1:] < 0)
    ]


def _is_reached(phi: Activation, sw2: Array | float, sb2: Array | float, q: Array | float) -> Array:
    """Return whether the length map started at 1 ends at q."""
    end = length_fixed_point(phi, sw2, sb2)
    return np.asarray(np.isclose(end, q, rtol=1e-3))


def boundary_decay(phi: Activation, weight_variance: float, length: float) -> Decay:
    """Return how 1 - c falls with depth l on the boundary, if it is not exponential.

    smooth:  2 / (q* chi_2 l),  chi_2 = sw2 E phi''^2           [Schoenholz 2017; Hayou 2019]
    kinked:  (9/2) / (k l)^2,   k = sw2 sum_kinks J^2 exp(-x^2/2q*) / (2 pi), J the jump of phi' at x

    since E phi' phi' falls from its value at c = 1 as q* e E phi''^2, or as the angle times k / sw2. ReLU at
    sw2 = 2: 9 pi^2 / 2 / l^2. The amplitude is inf where phi is linear at q* (nothing falls).
    """
    if phi.is_smooth:
        rate = length * weight_variance * float(phi.curvature_square(length))
        return Decay(1, 2 / rate if rate > 0 else float("inf"))
    kinks = np.asarray(phi.kinks)
    jumps = phi.derivative(kinks + 1e-6) - phi.derivative(kinks - 1e-6)
    density = np.exp(-(kinks**2) / (2 * length)) / (2 * np.pi)
    return Decay(2, 4.5 / (weight_variance * float(np.sum(jumps**2 * density))) ** 2)
