"""Gaussian averages by composite Gauss-Legendre panels that follow both the Gaussian and the function.

A rule in z alone fails in two ways that occur in practice: a steep function (tanh at q = 10^6 varies over
z = 0.001) and a kink. So panels are cut on the scale of the Gaussian, and again, in geometric steps, around
the function's own centers (0, and its kinks). Eight nodes per panel give about ten digits.

Shapes: J outer nodes, K inner nodes, P panel boundaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array

Function = Callable[[Array], Array]

REACH = 8.5  # standard deviations; beyond it the Gaussian holds 2e-17
_GAUSSIAN_MARKS = np.linspace(-REACH, REACH, 11)
_HERMITE_NODES, _HERMITE_WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
_HERMITE_WEIGHTS = _HERMITE_WEIGHTS / np.sqrt(2 * np.pi)
_CHUNK = 2048  # variances averaged at once: keeps the work arrays in cache


@dataclass(frozen=True)
class Grain:
    """Where a function may vary faster than a Gaussian: around `centres`, on `scale`; kinked there or not."""

    centres: tuple[float, ...] = (0.0,)
    scale: float = 0.5
    kinked: bool = False


def graded_marks(centres: tuple[float, ...], smallest: float, largest: float) -> Array:
    """Boundaries center and center +- smallest 2^k, up to `largest` away: shape (P,)."""
    levels = max(0, int(np.ceil(np.log2(max(largest, smallest) / smallest))))
    steps = smallest * 2.0 ** np.arange(levels + 1)
    around = np.concatenate([-steps[::-1], [0.0], steps])
    return np.unique(np.add.outer(np.asarray(centres, dtype=float), around))


_legendre = cache(np.polynomial.legendre.leggauss)


def panel_nodes(boundaries: Array, order: int = 8) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights between boundaries: (..., P) to (..., order (P-1)) twice."""
    node, weight = _legendre(order)
    half = np.diff(boundaries, axis=-1) / 2
    middle = boundaries[..., :-1] + half
    shape = (*boundaries.shape[:-1], order * half.shape[-1])
    nodes = (middle[..., None] + half[..., None] * node).reshape(shape)
    return nodes, (half[..., None] * weight).reshape(shape)


def gaussian_rule(
    mean: ArrayLike, deviation: ArrayLike, marks: Array | None = None, order: int = 8
) -> tuple[Array, Array]:
    """Nodes x and weights w with sum_k w_k f(x_k) = E f(mean + deviation z), shapes (..., K).

    `marks` are further boundaries in x, shared by all means and deviations.
    """
    m, s = np.broadcast_arrays(np.asarray(mean, dtype=float), np.asarray(deviation, dtype=float))
    z = np.broadcast_to(_GAUSSIAN_MARKS, (*m.shape, _GAUSSIAN_MARKS.size))
    if marks is not None:
        with np.errstate(over="ignore"):
            cuts = (marks - m[..., None]) / np.maximum(s, 1e-200)[..., None]
        z = np.sort(np.concatenate([z, np.clip(cuts, -REACH, REACH)], axis=-1), axis=-1)
    nodes, weights = panel_nodes(z, order)
    weights = weights * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    return m[..., None] + s[..., None] * nodes, weights


def mean(function: Function, variance: ArrayLike, grain: Grain, order: int = 8) -> Array:
    """E f(sqrt(variance) z), any shape of variance."""
    deviation = np.sqrt(np.asarray(variance, dtype=float))
    flat = deviation.ravel()
    parts = [_mean(function, flat[k : k + _CHUNK], grain, order) for k in range(0, flat.size, _CHUNK)]
    return np.concatenate(parts).reshape(deviation.shape) if parts else deviation.copy()


def _mean(function: Function, deviation: Array, grain: Grain, order: int) -> Array:
    reach = REACH * float(np.max(deviation))
    nodes, weights = gaussian_rule(0.0, deviation, _marks(grain, reach, float(np.max(deviation))), order)
    return np.asarray(np.sum(weights * function(nodes), axis=-1))


def _marks(grain: Grain, reach: float, deviation: float) -> Array | None:
    """None if the Gaussian's own panels resolve the function."""
    if not grain.kinked and deviation < grain.scale / 2:
        return None
    furthest = reach + max(abs(x) for x in grain.centres)
    return graded_marks(grain.centres, grain.scale, furthest)


def smoothed(function: Function, at: Array, variance: float, grain: Grain) -> Array:
    """G(x) = E_z f(x + sqrt(variance) z) at the points x, shape (J,)."""
    deviation = float(np.sqrt(variance))
    edge = REACH * deviation + grain.scale
    near = np.min(np.abs(at[:, None] - np.asarray(grain.centres)), axis=1) < edge
    marks = _marks(grain, edge, deviation)
    if marks is None:
        return _smoothed_by_polynomial(function, at, deviation)
    result = np.empty(at.size)
    nodes, weights = gaussian_rule(at[near], deviation, marks)
    result[near] = np.sum(weights * function(nodes), axis=-1)
    result[~near] = _smoothed_by_polynomial(function, at[~near], deviation)
    return result


def _smoothed_by_polynomial(function: Function, at: Array, deviation: float) -> Array:
    """Return the same if the function is smooth over the whole Gaussian: twenty Gauss-Hermite nodes."""
    return np.asarray(function(at[:, None] + deviation * _HERMITE_NODES) @ _HERMITE_WEIGHTS)


def pair_mean(function: Function, variance: float, rest: float, sign: float, grain: Grain) -> float:
    """E f(u) f(u') for variance q and correlation c = sign (1 - rest), 0 <= rest <= 1.

    u = sqrt(q |c|) w + sqrt(q rest) z shares w with u' up to the sign, so the average is
    E_w G(w) G(sign w): a mean of squares, stable up to |c| = 1, and exact in `rest` however small.
    """
    deviation, private = float(np.sqrt(variance * (1 - rest))), variance * rest
    # A kink smoothed over sqrt(private) is as sharp as that in the outer variable.
    scale = min(grain.scale, max(0.5 * private**0.5, 1e-9)) if grain.kinked else grain.scale
    reach = REACH * deviation + max(abs(x) for x in grain.centres)
    x, weights = gaussian_rule(0.0, deviation, graded_marks(grain.centres, scale, reach))
    g = smoothed(function, x, private, grain)
    other = g if sign > 0 else smoothed(function, -x, private, grain)
    return float(np.sum(weights * g * other))
