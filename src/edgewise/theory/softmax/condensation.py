"""Softmax over many keys: the condensation ratio, and the published limits of the moments below it and beyond it.

Neither limit is exact at finite n: the large-n closure is 10 % off at n = 64, v = 1 and a factor 5 at v = 4; the random
energy limit says 0 where n = 256 keys at v = 9 give S2 = 0.216.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.softmax.integrals import SoftmaxMoments


def condensation_ratio(variance: ArrayLike, tokens: ArrayLike) -> Array:
    """v / (2 log n) of logits of variance v over n keys: attention condenses on few keys from 1 on. [Derrida 1981]

    1 is the freezing point of the random energy model. nan (a site without attention) stays nan.
    """
    v, n = np.asarray(variance, np.float64), np.asarray(tokens, np.float64)
    if np.any(v < 0) or np.any(n < 2):
        raise BadInput(
            f"a condensation ratio needs variance >= 0 and tokens >= 2, got variance={v}, tokens={n}."
        )
    return np.asarray(v / (2 * np.log(n)))


def large_n(variance: ArrayLike, correlation: ArrayLike, tokens: int) -> SoftmaxMoments:
    """Leading order in 1/n at fixed v, where Z = n e^{v/2} does not fluctuate. [Cowsik 2024]

    S2 = e^v/n, S11 = e^{rho v}/n; then R2 = S2 and T11 = S11 (also by Price's theorem), S3 = e^{3v}/n^2,
    S21 = e^{(1 + 2 rho) v}/n^2, SS = S2^2, OO = S11^2, entropy = log n - v/2. Nothing keeps S2 below 1.
    """
    from scipy.special import exprel

    v, rho = _state(variance, correlation, tokens)
    s2, s11 = np.exp(v) / tokens, np.exp(rho * v) / tokens
    return SoftmaxMoments.of(
        s2=s2,
        s3=np.exp(3 * v) / tokens**2,
        ss=s2**2,
        s11=s11,
        s21=np.exp((1 + 2 * rho) * v) / tokens**2,
        oo=s11**2,
        chord=s11 * exprel(v * (1 - rho)),
        r2=s2,
        t11=s11,
        entropy=np.log(tokens) - v / 2,
    )


def random_energy(variance: ArrayLike, correlation: ArrayLike, tokens: int) -> SoftmaxMoments:
    """The limit n -> infinity at a fixed ratio v / (2 log n) = 1/x^2. [Derrida 1981; Derrida and Toulouse 1985]

    Condensed (x < 1): the weights are Poisson-Dirichlet, S2 = 1 - x, S3 = (1-x)(2-x)/2,
    SS = (1-x)(3-2x)/3, R2 = x(1-x)/3, entropy = psi(1) - psi(1-x). Else these vanish and the entropy is
    log n - v/2.
    Rows that are not equal share no key: S11 = S21 = OO = T11 = 0 for rho < 1.
    """
    from scipy.special import digamma

    v, rho = _state(variance, correlation, tokens)
    frozen, same = v > 2 * np.log(tokens), rho == 1
    x = np.sqrt(2 * np.log(tokens) / np.where(frozen, v, 2 * np.log(tokens)))  # 1 where nothing is condensed
    s2, s3, ss, r2 = 1 - x, (1 - x) * (2 - x) / 2, (1 - x) * (3 - 2 * x) / 3, x * (1 - x) / 3
    bounded = digamma(1.0) - digamma(np.where(frozen, 1 - x, 1.0))
    return SoftmaxMoments.of(
        s2=s2,
        s3=s3,
        ss=ss,
        s11=s2 * same,
        s21=s3 * same,
        oo=ss * same,
        chord=np.where(same, r2, s2 / np.where(same | ~frozen, 1.0, v * (1 - rho))),
        r2=r2,
        t11=r2 * same,
        entropy=np.where(frozen, bounded, np.log(tokens) - v / 2),
    )


def _state(variance: ArrayLike, correlation: ArrayLike, tokens: int) -> tuple[Array, Array]:
    v, rho = np.broadcast_arrays(np.asarray(variance, np.float64), np.asarray(correlation, np.float64))
    if not (np.all(v >= 0) and np.all(np.abs(rho) <= 1) and tokens >= 2):
        raise BadInput(
            f"a closure needs variance >= 0, correlation in [-1, 1] and tokens >= 2; got variance={v}, "
            f"correlation={rho}, tokens={tokens}: check the state that was passed"
        )
    return v, rho
