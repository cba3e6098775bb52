"""Exact finite-n moments of the softmax of Gaussian logits: quadrature refined until it no longer changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.softmax.integrals import row_pair, single_row

Pair = Callable[[float, float, Array], dict[str, Array]]
FIRST_STEP, REFINEMENT, SMALLEST_STEP = 0.42, 0.75, 0.1
TOLERANCE = 1e-6  # largest relative change at the last refinement; the error left is far smaller (spectral)
CANCELLATION = 1e-2  # relative difference of two moments below which it is not taken as a difference


@dataclass(frozen=True)
class SoftmaxMoments:
    """Moments of two softmax rows s, s' over n keys, logits N(0, v), correlation rho; fields of one shape.

    s2 = E sum s^2, s3 = E sum s^3, ss = E (sum s^2)^2, s11 = E sum s s', s21 = E sum s^2 s',
    oo = E (sum s s')^2, chord = (s2 - s11) / (v (1 - rho)), r2 = s2 - 2 s3 + ss, t11 = s11 - 2 s21 + oo,
    entropy = E[-sum s log s].
    """

    s2: Array
    s3: Array
    ss: Array
    s11: Array
    s21: Array
    oo: Array
    chord: Array
    r2: Array
    t11: Array
    entropy: Array

    @classmethod
    def of(cls, **values: Array | float) -> SoftmaxMoments:
        """Build from values that broadcast to one shape."""
        arrays = np.broadcast_arrays(*(np.asarray(values[f.name], dtype=np.float64) for f in fields(cls)))
        return cls(*(np.array(array) for array in arrays))


def quadrature_moments(variance: float, correlation: float, tokens: int) -> SoftmaxMoments:
    """Converged moments of one state: variance v >= 0, correlation rho in [-1, 1], tokens n >= 1."""
    v, rho = float(variance), float(correlation)
    if not (np.isfinite(v) and v >= 0 and -1 <= rho <= 1 and tokens >= 1 and int(tokens) == tokens):
        raise BadInput(
            "softmax moments need a finite variance >= 0, a correlation in [-1, 1] and a whole number of "
            f"tokens >= 1; got variance={variance}, correlation={correlation}, tokens={tokens}: check the state"
        )
    if tokens == 1 or v == 0.0:
        return uniform_moments(int(tokens))
    n = np.array([float(tokens)])
    one, two = converged_single(v, n), converged_pair(v, rho, n)
    upper, _ = chords(v, rho, n, one["s2"], two["s11"])
    sums = {"ss": one["s4"] + one["pairs"], "oo": two["s22"] + two["pairs"], "chord": upper}
    return SoftmaxMoments.of(**{name: value[0] for name, value in {**one, **two, **sums}.items()})


def uniform_moments(tokens: int) -> SoftmaxMoments:
    """The exact case v = 0, or one token: every key has weight 1/n."""
    n = float(tokens)
    slope = (n - 1) / n**2
    squares = dict.fromkeys(("s3", "ss", "s21", "oo"), n**-2)
    slopes = dict.fromkeys(("chord", "r2", "t11"), slope)
    return SoftmaxMoments.of(s2=1 / n, s11=1 / n, entropy=np.log(n), **slopes, **squares)


def converged_single(v: float, n: Array) -> dict[str, Array]:
    """s2, s3, s4, pairs, r2, entropy for one variance and an array of n, refined until converged."""
    return _refine(lambda step: single_row(v, n, step))


def converged_pair(v: float, rho: float, n: Array) -> dict[str, Array]:
    """s11, s21, s22, pairs, t11 for one variance, one correlation and an array of n, until converged."""
    return _refine(lambda step: row_pair(v, rho, n, step))


def chords(
    v: float, rho: float, n: Array, s2: Array, s11: Array, pair: Pair = converged_pair
) -> tuple[Array, Array]:
    """(S2 - S11) / (v (1 - rho)) and (S11 - 1/n) / (v rho), for an array of n.

    By Price's theorem dS11/drho = v T11, so these are the means of T11 over [rho, 1] and over [0, rho]; where
    the difference would lose digits, T11 itself is averaged. [Price 1958]
    """

    def mean_of_t11(low: float, high: float) -> Array:
        nodes, weights = np.polynomial.legendre.leggauss(1 if low == high else 4)
        points = low + (high - low) * (nodes + 1) / 2
        return weights @ np.array([pair(v, float(point), n)["t11"] for point in points]) / 2

    above, below = s2 - s11, s11 - 1 / n
    upper = mean_of_t11(rho, 1.0) if np.any(above < CANCELLATION * s2) else above / (v * (1 - rho))
    lower = mean_of_t11(0.0, rho) if np.any(np.abs(below) < CANCELLATION / n) else below / (v * rho)
    return upper, lower


def _refine(evaluate: Callable[[float], dict[str, Array]]) -> dict[str, Array]:
    step, old = FIRST_STEP * REFINEMENT, evaluate(FIRST_STEP)
    while step > SMALLEST_STEP:
        new = evaluate(step)
        if all(np.allclose(new[name], old[name], rtol=TOLERANCE, atol=0) for name in new):
            return new
        step, old = step * REFINEMENT, new
    raise ArithmeticError(f"softmax quadrature still changes by more than {TOLERANCE} at the finest step")
