"""The integrals behind the softmax moments of Gaussian logits, for one grid step.

With t = e^u every average over n iid logits x ~ N(0, v) becomes an integral over u of powers of

    H_k(u)      = E[ e^{k(u+x)} exp(-e^{u+x}) ]                                       (one row)
    H_kl(u, u') = E[ e^{k(u+x)} e^{l(u'+x')} exp(-e^{u+x} - e^{u'+x'}) ]              (two rows, correlation rho)

because 1/Z^m = int t^{m-1} e^{-tZ} dt / (m-1)!. They are analytic in the strip |Im u| < pi/2, so the trapezoidal
rule converges like exp(-pi^2 / step). They do not depend on n, only their powers do: one call serves many n (which
need not be whole). R2 and T11 are written as sums of positive terms, with 1 - s_b = sum of the other weights:

    T11 = n(n-1) [ 2 E s1 s2 s'1 s'2 + (n-2) E s1 s2 s'1 s'3 ],   R2 the same with s' = s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
TAIL = 20.0  # e^-TAIL is the relative weight left outside the range of u
REACH = 11.5  # Gaussians are cut here, in standard deviations: E s^4 of 1e6 keys still sees 1e-24 events
SMALLEST = 1e-140  # its inverse square is still a number; weights this far out do not count


def single_row(v: float, n: Array, step: float) -> dict[str, Array]:
    """s2, s3, s4 = E sum s^4, pairs = E sum_{b != c} s_b^2 s_c^2, r2 and entropy of a row, each of the shape of n."""
    low, high = _range_of_u(v, n)
    u = _grid(low, max(high, 4.0), step)  # e^{-e^u} in E log Z needs u up to 4
    miss, (h0, h1, h2, h3, h4) = _smoothed(u, v, step, 4)
    log_h0 = _log_of(miss, h0)
    n = n[:, None]
    p0, p1, p2, p3 = (np.exp((n - k) * log_h0) for k in range(4))
    s2 = step * (n * h2 * p1).sum(1)
    pairs = step / 6 * (n * (n - 1) * h2**2 * p2).sum(1)
    log_z = step * (np.exp(-np.exp(u)) - p0).sum(1)  # Frullani: E log Z = int (e^-t - E e^-tZ) dt/t
    return {
        "s2": s2,
        "s3": step / 2 * (n * h3 * p1).sum(1),
        "s4": step / 6 * (n * h4 * p1).sum(1),
        "pairs": pairs,
        "r2": 2 * pairs + step / 6 * (n * (n - 1) * (n - 2) * h2 * h1**2 * p3).sum(1),
        "entropy": log_z - v * (1 - s2),  # Stein: E sum s x = v (1 - S2)
    }


def row_pair(v: float, rho: float, n: Array, step: float) -> dict[str, Array]:
    """s11, s21, s22 = E sum s^2 s'^2, pairs = E sum_{b != c} s_b s'_b s_c s'_c and t11, each of the shape of n."""
    u = _grid(*_range_of_u(v, n), step)
    miss, h = _joint(u, v, rho, step)
    log_h00 = _log_of(miss, h["00"])
    inverse = np.exp(-log_h00)
    two, three = h["11"] ** 2 * inverse, h["11"] * h["10"] * h["10"].T * inverse**2
    rows = []
    for m in n:
        power = np.exp((m - 1) * log_h00)
        s11, s21, s22 = (m * np.vdot(h[name], power) for name in ("11", "21", "22"))
        pairs = m * (m - 1) * np.vdot(two, power)
        t11 = 2 * pairs + m * (m - 1) * (m - 2) * np.vdot(three, power)
        rows.append((s11, s21, s22, pairs, t11))
    return dict(zip(("s11", "s21", "s22", "pairs", "t11"), step**2 * np.array(rows).T, strict=True))


def _range_of_u(v: float, n: Array) -> tuple[float, float]:
    """Where u = -log Z + log Gamma lives: log Z is 1-Lipschitz in x, at most log n + max x, at least log n + mean x."""
    few, many = float(np.min(n)), float(np.log(np.max(n)))
    typical = many + v / 2 if v < 2 * many else np.sqrt(2 * v * many)
    lipschitz = typical + np.sqrt(2 * v * (TAIL + 2 * many))
    highest = many + np.sqrt(2 * v * (TAIL + 3 * many))
    return -min(lipschitz, highest) - TAIL, -np.log(few) + REACH * np.sqrt(v / few) + 4.0


def _grid(low: float, high: float, step: float) -> Array:
    return step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)


def _gaussian(variance: float, step: float) -> tuple[Array, Array]:
    """Trapezoidal nodes and weights of N(0, variance): the step given, or a finer one for a narrow Gaussian."""
    if variance == 0.0:
        return np.zeros(1), np.ones(1)
    std = np.sqrt(variance)
    fine = min(step, 0.6 * std)
    half = np.ceil(REACH * std / fine)
    nodes = fine * np.arange(-half, half + 1)
    weights = np.exp(-0.5 * (nodes / std) ** 2)
    return nodes, weights / weights.sum()


def _smoothed(u: Array, variance: float, step: float, highest: int) -> tuple[Array, list[Array]]:
    """1 - H_0 and H_0 ... H_highest at the points u: e^{ku} exp(-e^u) averaged over N(0, variance)."""
    miss, terms = np.zeros_like(u), [np.zeros_like(u) for _ in range(highest + 1)]
    for x, weight in zip(*_gaussian(variance, step), strict=True):
        t = np.exp(u + x)
        term = weight * np.exp(-t)
        miss -= weight * np.expm1(-t)
        for k in range(highest + 1):
            terms[k] += term
            term = term * t
    return miss, terms


def _joint(u: Array, v: float, rho: float, step: float) -> tuple[Array, dict[str, Array]]:
    """1 - H_00 and H_kl on the grid u x u: logits share w, x = sqrt(v|rho|) w + sqrt(v(1-|rho|)) z, x' with the sign."""
    shared, weights = _gaussian(v * abs(rho), step)
    first = _shifted(u, shared, v * (1 - abs(rho)), step)
    second = first if rho >= 0 else [f[:, ::-1] for f in first]  # x' takes -w: read the symmetric nodes backwards
    weighted = [f * weights for f in first]
    both = weighted[0] @ second[0].T
    alone = weighted[0].sum(1)
    other = (second[0] * weights).sum(1)
    joint = {f"{k}{m}": weighted[1 + k] @ second[1 + m].T for k, m in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2))}
    return alone[:, None] + other - both, joint  # 1 - ab = (1-a) + (1-b) - (1-a)(1-b)


def _shifted(u: Array, shared: Array, variance: float, step: float) -> list[Array]:
    """1 - h_0, h_0, h_1, h_2 at every u_i + m_j; a Hankel view of one line when both have the same step."""
    if len(shared) > 1 and np.isclose(shared[1] - shared[0], step):
        line = u[0] + shared[0] + step * np.arange(len(u) + len(shared) - 1)
        miss, terms = _smoothed(line, variance, step, 2)
        return [np.lib.stride_tricks.sliding_window_view(f, len(shared)) for f in (miss, *terms)]
    miss, terms = _smoothed(u[:, None] + shared, variance, step, 2)
    return [miss, *terms]


def _log_of(miss: Array, hit: Array) -> Array:
    """log H from whichever of 1 - H and H is small, so that H^n keeps its digits at both ends."""
    return np.where(miss < 0.5, np.log1p(-np.minimum(miss, 0.5)), np.log(np.maximum(hit, SMALLEST)))
