"""The integrals behind the softmax moments of Gaussian logits, for one grid step and many n at once.

With 1/Z^m = int t^{m-1} e^{-tZ} dt / (m-1)! and t = e^u every average over n iid keys becomes an integral over u
of powers of the Gaussian averages H of softmax_grids, which do not depend on n (n need not be whole). R2 and T11
are sums of positive terms, because 1 - s_b is the sum of the other weights:

    T11 = n(n-1) [ 2 E s1 s2 s'1 s'2 + (n-2) E s1 s2 s'1 s'3 ],   R2 the same with s' = s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgewise.theory.softmax.grids import grid, joint, range_of_u, smoothed, stretch

Array = NDArray[np.float64]
SMALLEST = 1e-140  # its inverse square is still a number; weights this far out do not count


def single_row(v: float, n: Array, step: float) -> dict[str, Array]:
    """s2, s3, s4 = E sum s^4, pairs = E sum_{b != c} s_b^2 s_c^2, r2, entropy, each of the shape of n.

    The entropy E sum s (log Z - x) is n int E[-y K_1(y)] H_0^{n-1} du - Euler's constant, with y = u + x.
    """
    wide = step * stretch(v, n)
    u = grid(*range_of_u(v, n), wide)
    h = smoothed(u, v, step, n, 4)
    inverse, n = 1 / np.maximum(h["0"], SMALLEST), n[:, None]
    power = np.exp((n - 1) * _log_of(h["miss"], h["0"]))

    def integral(f: Array) -> Array:
        return wide * (f * power).sum(1)

    pairs = integral(n * (n - 1) / 6 * h["2"] ** 2 * inverse)
    triples = integral(n * (n - 1) * (n - 2) / 6 * h["2"] * (h["1"] * inverse) ** 2)
    return {
        "s2": integral(n * h["2"]),
        "s3": integral(n / 2 * h["3"]),
        "s4": integral(n / 6 * h["4"]),
        "pairs": pairs,
        "r2": 2 * pairs + triples,
        "entropy": integral(n * h["log"]) - np.euler_gamma,
    }


def row_pair(v: float, rho: float, n: Array, step: float) -> dict[str, Array]:
    """s11, s21, s22 = E sum s^2 s'^2, pairs = E sum_{b != c} s_b s'_b s_c s'_c, t11, of the shape of n."""
    h = joint(v, rho, n, step)
    inverse = 1 / np.maximum(h["00"], SMALLEST)
    two = h["11"] ** 2 * inverse * h["area"]
    three = h["11"] * h["10"] * h["01"] * inverse**2 * h["area"]
    log_h00 = _log_of(h["miss"], h["00"])
    plain = [h[name] * h["area"] for name in ("11", "21", "22")]
    rows = []
    for m in n:
        power = np.exp((m - 1) * log_h00)
        s11, s21, s22 = (m * np.vdot(f, power) for f in plain)
        pairs = m * (m - 1) * np.vdot(two, power)
        t11 = 2 * pairs + m * (m - 1) * (m - 2) * np.vdot(three, power)
        rows.append((s11, s21, s22, pairs, t11))
    return dict(zip(("s11", "s21", "s22", "pairs", "t11"), np.array(rows).T, strict=True))


def _log_of(miss: Array, hit: Array) -> Array:
    """log H from whichever of 1 - H and H is small, so that H^n keeps its digits at both ends."""
    return np.where(miss < 0.5, np.log1p(-np.minimum(miss, 0.5)), np.log(np.maximum(hit, SMALLEST)))
