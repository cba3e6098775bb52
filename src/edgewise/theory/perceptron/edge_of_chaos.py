"""The edge of chaos chi_1 = 1 in the plane of weight and bias variance, and the decay on it [Schoenholz 2017].

On the line the length q* is the natural coordinate, because both variances follow from it without solving:

    sw2 = 1 / E phi'^2,    sb2 = q* - sw2 E phi^2        at q*.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.averages.activations import Activation
from edgewise.theory.perceptron.fixed_points import bisected, length_fixed_point

_LENGTHS = np.exp(np.linspace(np.log(1e-8), np.log(1e8), 1001))
_ROUNDING = 1e-6  # near q = 0 and in homogeneous activations sb2 = q - q is rounding


class Decay(NamedTuple):
    """On the boundary 1 - c falls as amplitude / layer^power."""

    power: int
    amplitude: float


def boundary(phi: Activation, largest_bias_variance: float = 1.0) -> tuple[Array, Array]:
    """The boundary as a polyline (weight variances, bias variances), from sb2 = 0 to the largest asked for.

    Only points whose q* is reached from length 1 belong to it: a fixed point of the length map that repels, or
    lies behind another, is not on the boundary. Empty when phi has none (ReLU has the single point (2, 0)).
    """
    sw2, sb2 = _variances(phi, _LENGTHS)
    inside = (sb2 > _ROUNDING * _LENGTHS) & (sb2 <= largest_bias_variance) & np.isfinite(sw2)
    inside[inside] = _is_reached(phi, sw2[inside], sb2[inside], _LENGTHS[inside])
    ends = [critical_weight_variance(phi, x) for x in (0.0, largest_bias_variance)]
    sw2 = np.concatenate([[ends[0]], sw2[inside], [ends[1]]])
    sb2 = np.concatenate([[0.0], sb2[inside], [largest_bias_variance]])
    finite = np.flatnonzero(np.isfinite(sw2))
    order = finite[np.argsort(sb2[finite], kind="stable")]
    return sw2[order], sb2[order]


def critical_weight_variance(phi: Activation, bias_variance: float) -> float:
    """The weight variance with chi_1 = 1 at this bias variance; the smallest if several, nan if none.

    tanh: 1 at sb2 = 0; erf: pi/4; ReLU: 2 (there q* exists at sb2 = 0 only; otherwise lengths grow linearly).
    """
    if bias_variance < 0:
        raise BadInput(f"bias variance {bias_variance}: expected >= 0")
    slopes = phi.slope_square(_LENGTHS)
    if np.ptp(slopes) <= 1e-9 * slopes[0]:
        return float(1 / slopes[0])
    candidates = [_variance_at(phi, q) for q in _crossings(phi, bias_variance)]
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


def _variance_at(phi: Activation, q: float) -> tuple[float, float]:
    return float(1 / phi.slope_square(q)), q


def _crossings(phi: Activation, bias_variance: float) -> list[float]:
    """Lengths at which the line passes this bias variance."""

    def gap(log_length: float) -> float:
        return float(_variances(phi, np.asarray(np.exp(log_length)))[1] - bias_variance)

    sb2 = _variances(phi, _LENGTHS)[1] - bias_variance
    edges = np.log(_LENGTHS)
    sign = np.where(np.abs(sb2) < _ROUNDING * _LENGTHS, 0.0, np.sign(sb2))
    return [
        float(np.exp(bisected(gap, edges[k], edges[k + 1]))) for k in np.flatnonzero(sign[:-1] * sign[1:] < 0)
    ]


def _is_reached(phi: Activation, sw2: Array | float, sb2: Array | float, q: Array | float) -> Array:
    """Whether the length map started at 1 ends at q."""
    end = length_fixed_point(phi, sw2, sb2)
    return np.asarray(np.isclose(end, q, rtol=1e-3))


def boundary_decay(phi: Activation, weight_variance: float, length: float) -> Decay:
    """How 1 - c falls with depth l on the boundary, where it is not exponential.

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
