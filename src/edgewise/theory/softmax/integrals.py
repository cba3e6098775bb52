"""The integrals behind the softmax moments of Gaussian scores, for one grid step and many n at once.

With 1/Z^m = int t^{m-1} e^{-tZ} dt / (m-1)! and t = e^u every average over n iid keys becomes an integral over u
of powers of Gaussian averages H, which do not depend on n (n need not be whole). R2 and T11
are sums of positive terms, because 1 - s_b is the sum of the other weights:

    T11 = n(n-1) [ 2 E s1 s2 s'1 s'2 + (n-2) E s1 s2 s'1 s'3 ],   R2 the same with s' = s.

The averages H, on grids of u:

    H_k(u)      = E[ K_k(u+x) ],             K_k(y) = e^{ky} exp(-e^y), x ~ N(0, v)              (one row)
    H_kl(u, u') = E[ K_k(u+x) K_l(u'+x') ],  x = sqrt(v rho) w + sqrt(v (1-rho)) z, own z in x'  (two rows)

They are analytic in a strip of half-width pi/2, wider if the Gaussian is wide, so the trapezoidal rule
converges like exp(-pi^2 / step) and its steps may grow with the Gaussian: the cost hardly depends on v.

`quadrature_moments` refines the step until the moments no longer change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput

TAIL = 20.0  # e^-TAIL is the relative weight left outside the range of u
REACH = 11.5  # Gaussians are cut at these standard deviations: E s^4 of 1e6 keys sees 1e-24 events
HIGHEST = 4.0  # above this y every kernel e^{ky} exp(-e^y) has vanished
SQRT_TWO_PI = np.sqrt(2 * np.pi)
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
        return np.asarray(wide * (f * power).sum(1))

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


def range_of_u(v: float, n: Array) -> tuple[float, float]:
    """Bound u = -log Z + log Gamma: log Z is 1-Lipschitz in x, log n + mean x <= log Z <= log n + max x."""
    few, many = float(np.min(n)), float(np.log(np.max(n)))
    typical = many + v / 2 if v < 2 * many else np.sqrt(2 * v * many)
    lipschitz = typical + np.sqrt(2 * v * (TAIL + 2 * many))
    highest = many + np.sqrt(2 * v * (TAIL + 3 * many))
    return -min(lipschitz, highest) - TAIL, -np.log(few) + REACH * np.sqrt(v / few) + 4.0


def stretch(variance: float, n: Array) -> float:
    """Return the factor by which a step may grow: the strip of H^n widens as the spread of the largest x."""
    return max(1.0, float(np.sqrt(variance / (2 * np.log(np.max(n)) + 8))))


def grid(low: float, high: float, step: float) -> Array:
    """Multiples of step that cover [low, high]."""
    return step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)


def smoothed(u: Array, variance: float, step: float, n: Array, powers: int) -> dict[str, Array]:
    """Averages over N(0, variance) at points u: "miss" = 1 - H_0, "0", "1", ... H_k, "log" for -y K_1(y)."""
    std, fine = np.sqrt(variance), 0.6 * step
    if 0.6 * std < fine:
        result = {name: np.zeros_like(u) for name in ("miss", *(str(k) for k in range(powers + 1)), "log")}
        for x, weight in zip(*gaussian(std, 0.6 * std), strict=True):
            y = np.minimum(u + x, 50.0)  # all kernels are 0 there; beyond it e^{e^y} overflows
            result["miss"] -= weight * np.expm1(-np.exp(y))
            for k in range(powers + 1):
                result[str(k)] += weight * _kernel(y, k)
            result["log"] -= weight * y * _kernel(y, 1)
        return result
    y = grid(_lowest(n), HIGHEST, fine)
    distance = (u.reshape(-1, 1) - y) / std
    kernels = fine * np.array([*(_kernel(y, k) for k in range(1, powers + 1)), -y * _kernel(y, 1)]).T
    from scipy.special import ndtr

    # K_1 is the slope of 1 - K_0
    above, below = ndtr(distance) @ kernels[:, 0], ndtr(-distance) @ kernels[:, 0]
    averages = (np.exp(-0.5 * distance**2) / (SQRT_TWO_PI * std)) @ kernels
    names = ("miss", *(str(k) for k in range(powers + 1)), "log")
    return {m: f.reshape(u.shape) for m, f in zip(names, (above, below, *averages.T), strict=True)}


def _kernel(y: Array, k: int) -> Array:
    return np.exp(k * y - np.exp(y))


def gaussian(std: float, step: float) -> tuple[Array, Array]:
    """Trapezoidal nodes and weights of N(0, std^2)."""
    if std == 0.0:
        return np.zeros(1), np.ones(1)
    half = np.ceil(REACH * std / step)
    nodes = step * np.arange(-half, half + 1)
    weights = np.exp(-0.5 * (nodes / std) ** 2)
    return nodes, weights / weights.sum()


def joint(v: float, rho: float, n: Array, step: float) -> dict[str, Array]:
    """ "miss" = 1 - H_00 and "kl" = H_kl on a grid of (u, u'), with "area" the weight of its points.

    "21" is symmetrized. Nearly equal rows with a wide Gaussian need the coordinates (u+u')/2 and u-u'.
    """
    return _joint_rotated(v, rho, n, step) if rho >= 0.5 and v >= 16 else _joint_square(v, rho, n, step)


def _joint_square(v: float, rho: float, n: Array, step: float) -> dict[str, Array]:
    """Return the grid u x u': for each value of the shared part, rows of one-row averages; then a product over it."""
    own = v * (1 - abs(rho))
    shared = np.sqrt(v * abs(rho))
    wide = step * stretch(own, n)
    u = grid(*range_of_u(v, n), wide)
    nodes, weights = gaussian(shared, min(wide, 0.6 * shared))
    if 0.6 * shared >= wide:  # both grids have one step: every u + node lies on one line
        line = smoothed(u[0] + nodes[0] + wide * np.arange(len(u) + len(nodes) - 1), own, step, n, 2)
        first = {name: np.lib.stride_tricks.sliding_window_view(f, len(nodes)) for name, f in line.items()}
    else:
        first = smoothed(u[:, None] + nodes, own, step, n, 2)
    # x' takes -w: the nodes backwards.
    second = first if rho >= 0 else {m: f[:, ::-1] for m, f in first.items()}
    pairs = ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2))
    product = {f"{k}{m}": (first[str(k)] * weights) @ second[str(m)].T for k, m in pairs}
    miss, other = first["miss"] * weights, second["miss"]
    product["miss"] = miss.sum(1)[:, None] + (other * weights).sum(1) - miss @ other.T
    return product | {"01": product["10"].T, "area": np.array(wide**2)}


def _joint_rotated(v: float, rho: float, n: Array, step: float) -> dict[str, Array]:
    """Return the grid a = (u+u')/2, b = u-u' >= 0: one-row averages at mu +- b/2, averaged over mu ~ N(a, v rho).

    Only the mu where a product changes are needed: H_00 and 1 - H_00 come from its slope -(h_1 h_0 + h_0 h_1).
    """
    own, shared = v * (1 - rho), np.sqrt(v * rho)
    half, outer = step * stretch(own, n), step * stretch(v, n)  # steps of b/2 and a
    a = grid(*range_of_u(v, n), outer)
    offset = np.arange(int((TAIL + 6 + np.sqrt(4 * own * (TAIL + 2 * np.log(np.max(n))))) / (2 * half)) + 2)
    ratio = max(1, int(1.2 * step / np.sqrt(2 / max(own, 1e-12) + shared**-2) / half))
    inner = half * ratio  # step of mu: products of two smooth functions times a Gaussian
    reach = REACH * np.sqrt(own) + half * offset[-1]
    mu = inner * np.arange(np.floor((_lowest(n) - reach) / inner), np.ceil((HIGHEST + reach) / inner) + 1)
    around = np.arange(-offset[-1], ratio * (len(mu) - 1) + offset[-1] + 1)
    line = smoothed(mu[0] + half * around, own, step, n, 2)
    index = ratio * np.arange(len(mu))[:, None] + offset[-1]
    plus = {name: f[index + offset] for name, f in line.items()}
    minus = {name: f[index - offset] for name, f in line.items()}
    products = {f"{k}{m}": plus[str(k)] * minus[str(m)] for k, m in ((1, 0), (0, 1), (1, 1), (2, 2))}
    products["21"] = (plus["2"] * minus["1"] + plus["1"] * minus["2"]) / 2
    distance = (a[:, None] - mu) / shared
    density = inner * np.exp(-0.5 * distance**2) / (SQRT_TWO_PI * shared)
    averages = {name: density @ product for name, product in products.items()}
    slope = inner * (products["10"] + products["01"])
    from scipy.special import ndtr

    averages |= {"miss": ndtr(distance) @ slope, "00": ndtr(-distance) @ slope}
    return averages | {"area": outer * 2 * half * np.where(offset == 0, 1.0, 2.0)}


def _lowest(n: Array) -> float:
    """Below this y the kernels K_k(y) do not count: all n keys of weight e^y together would not matter."""
    return -float(np.log(np.max(n))) - TAIL - 10


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
    """Return the exact case v = 0, or one token: every key has weight 1/n."""
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
        return np.asarray(weights @ np.array([pair(v, float(point), n)["t11"] for point in points]) / 2)

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
