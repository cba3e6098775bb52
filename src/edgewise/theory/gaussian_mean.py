"""Gaussian averages by composite Gauss-Legendre panels that follow both the Gaussian and the function.

A rule in z alone fails in two ways that occur in practice: a steep function (tanh at q = 10^6 varies over
z = 0.001) and a kink. So panels are cut on the scale of the Gaussian, and again, in geometric steps, around
the function's own centres (0, and its kinks). Eight nodes per panel give about ten digits.

Shapes: J outer nodes, K inner nodes, P panel boundaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

REACH = 8.5  # standard deviations; beyond it the Gaussian holds 2e-17
_GAUSSIAN_MARKS = np.linspace(-REACH, REACH, 11)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def graded_marks(centres: Sequence[float], smallest: float, largest: float) -> Array:
    """Boundaries centre and centre +- smallest 2^k, up to `largest` away: shape (P,)."""
    levels = max(0, int(np.ceil(np.log2(max(largest, smallest) / smallest))))
    steps = smallest * 2.0 ** np.arange(levels + 1)
    around = np.concatenate([-steps[::-1], [0.0], steps])
    return np.unique(np.add.outer(np.asarray(centres, dtype=float), around))


def panel_nodes(boundaries: Array) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on consecutive boundaries: (..., P) to two arrays (..., 8 (P-1))."""
    half = np.diff(boundaries, axis=-1) / 2
    middle = boundaries[..., :-1] + half
    nodes = middle[..., None] + half[..., None] * _NODES
    weights = half[..., None] * _WEIGHTS
    shape = (*boundaries.shape[:-1], -1)
    return nodes.reshape(shape), weights.reshape(shape)


def gaussian_rule(
    mean: ArrayLike, deviation: ArrayLike, centres: Sequence[float] = (), scale: float = 0.5
) -> tuple[Array, Array]:
    """Nodes x and weights w with sum_k w_k f(x_k) = E f(mean + deviation z), shapes (..., K).

    `centres` are the points around which f varies on `scale`; none are needed when the deviation is smaller
    than that and f has no kink.
    """
    m, s = np.broadcast_arrays(np.asarray(mean, dtype=float), np.asarray(deviation, dtype=float))
    z = np.broadcast_to(_GAUSSIAN_MARKS, (*m.shape, _GAUSSIAN_MARKS.size))
    if len(centres) and m.size:
        reach = float(np.max(np.abs(m) + REACH * s)) + max(abs(x) for x in centres)
        marks = graded_marks(centres, scale, reach)
        with np.errstate(over="ignore"):
            cut = (marks - m[..., None]) / np.maximum(s, 1e-200)[..., None]
        z = np.sort(np.concatenate([z, np.clip(cut, -REACH, REACH)], axis=-1), axis=-1)
    nodes, weights = panel_nodes(z)
    weights = weights * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    return m[..., None] + s[..., None] * nodes, weights


def mean(function: Function, variance: ArrayLike, centres: Sequence[float]) -> Array:
    """E f(sqrt(variance) z), any shape of variance."""
    nodes, weights = gaussian_rule(0.0, np.sqrt(variance), centres)
    return np.asarray(np.sum(weights * function(nodes), axis=-1))


def smoothed(function: Function, at: Array, variance: float, centres: Sequence[float], kinked: bool) -> Array:
    """G(x) = E_z f(x + sqrt(variance) z) at the points x, shape (J,)."""
    deviation = float(np.sqrt(variance))
    needed = centres if (kinked or deviation > 0.25) else ()
    nodes, weights = gaussian_rule(at, deviation, needed)
    return np.asarray(np.sum(weights * function(nodes), axis=-1))


def pair_mean(
    function: Function, variance: float, rest: float, sign: float, centres: Sequence[float], kinked: bool
) -> float:
    """E f(u) f(u') for variance q and correlation c = sign (1 - rest), 0 <= rest <= 1.

    u = sqrt(q |c|) w + sqrt(q rest) z shares w with u' up to the sign, so the average is
    E_w G(w) G(sign w): a mean of squares, stable up to |c| = 1, and exact in `rest` however small.
    """
    shared, private = variance * (1 - rest), variance * rest
    # A kink smoothed over sqrt(private) is as sharp as that in the outer variable.
    scale = min(0.5, 0.5 * float(np.sqrt(private)) + 1e-12) if kinked else 0.5
    x, weights = gaussian_rule(0.0, float(np.sqrt(shared)), centres, scale)
    g = smoothed(function, x, private, centres, kinked)
    other = g if sign > 0 else smoothed(function, -x, private, centres, kinked)
    return float(np.sum(weights * g * other))
