"""Moments of a softmax over Gaussian scores, exact at finite n, for arrays of states.

Up to v = 256, rho >= -0.05 and a million tokens the values come from a shipped table, within 1e-4 relative of
the converged quadrature (tests/theory/softmax/test_moments.py); any other state goes to the quadrature itself.

The table (built by tools/build_tables.py) holds Chebyshev coefficients of logarithms of moments, divided by their value
at v = 0, in

    z = log(1 + v/3) / log(1 + V/3),   y = log(1 + D/5) / log(1 + 1.05 v/5) with D = v (1 - rho),   log n,

because the crossovers are wide in log v and near collapse everything depends on v (1 - rho). Of T11 the mean
over rho in [0, 1] and the ratio of its means over [rho, 1] and [0, rho] are stored: they give S11 - 1/n and
S2 - S11 as positive numbers that add up exactly. For one number of tokens it becomes cubic splines in z and y, which
are evaluated at many points at once.

Beside them stand the condensation ratio and two published limits. Neither limit is exact at finite n: the large-n
closure is 10 % off at n = 64, v = 1 and a factor 5 at v = 4; the random energy limit says 0 where n = 256 keys at v = 9
give S2 = 0.216.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike, NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput, SearchBudget
from edgewise.theory.softmax.integrals import SoftmaxMoments, quadrature_moments
from edgewise.theory.splines import spline_coefficients, spline_values

Names = tuple[str, ...]
SECONDS = 0.15  # about, for one state by quadrature: 0.03 to 0.3
ROUNDING = 1e-9  # a correlation this little above 1 is the caller's rounding, not an error


class OverlapMoments(NamedTuple):
    """The five moments the simplex recursion needs, each of the shape of its arguments."""

    s2: Array
    s11: Array
    chord: Array
    r2: Array
    t11: Array


def exact_moments(
    variance: Array, correlation: Array, tokens: int, budget: SearchBudget | None = None
) -> OverlapMoments:
    """Return the moments at this very length."""
    return moment_table(tokens).overlaps(variance, correlation, budget)


@lru_cache(maxsize=64)
def moment_table(tokens: int) -> MomentTable:
    """Return the moments for one number of tokens n >= 1, cached."""
    if not tokens >= 1 or int(tokens) != tokens:
        raise BadInput(f"tokens must be a whole number >= 1, got {tokens}: pass the number of keys of a row")
    return MomentTable(int(tokens))


class MomentTable:
    """Moments for one number of tokens as functions of variance v and correlation rho, which broadcast."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def overlaps(
        self, variance: ArrayLike, correlation: ArrayLike, budget: SearchBudget | None = None
    ) -> OverlapMoments:
        """Return s2, s11, chord, r2, t11: what the recursions need; some 10 ms for 40,000 points."""
        return OverlapMoments(**self._evaluate(variance, correlation, OverlapMoments._fields, budget))

    def moments(self, variance: ArrayLike, correlation: ArrayLike) -> SoftmaxMoments:
        """All ten moments."""
        names = tuple(field.name for field in fields(SoftmaxMoments))
        return SoftmaxMoments(**self._evaluate(variance, correlation, names))

    def entropy(self, variance: ArrayLike, budget: SearchBudget | None = None) -> Array:
        """Return the expected row entropy E[-sum s log s]."""
        return self._evaluate(variance, 1.0, ("entropy",), budget)["entropy"]

    def _evaluate(
        self, variance: ArrayLike, correlation: ArrayLike, names: Names, budget: SearchBudget | None = None
    ) -> dict[str, Array]:
        v, rho = _checked(variance, correlation)
        shape, v, rho = v.shape, v.ravel(), rho.ravel()
        inside = (v <= LARGEST_VARIANCE) & (rho >= LOWEST_CORRELATION) & (2 <= self.tokens <= LARGEST_TOKENS)
        if inside.all():
            values = self._from_table(v, rho, names)
        else:
            values = {name: np.empty(v.shape) for name in names}
            self._fill(values, inside, self._from_table(v[inside], rho[inside], names))
            # Also for states that are remembered: a search must end at the same step again.
            if budget is not None:
                budget.spend(SECONDS * np.count_nonzero(~inside))
            outside = zip(v[~inside], rho[~inside], strict=True)
            states = [_one_state(float(a), float(b), self.tokens) for a, b in outside]
            by_name = {name: np.array([getattr(state, name) for state in states]) for name in names}
            self._fill(values, ~inside, by_name)
        return {name: values[name].reshape(shape) for name in names}

    def _from_table(self, v: Array, rho: Array, names: Names) -> dict[str, Array]:
        """Read the table, which holds the mean M of T11 over [0, 1] and the ratio m1/m0 of its partial means.

        S2 = 1/n + v M,  S11 = 1/n + rho v m0,  S2 - S11 = (1 - rho) v m1,  M = rho m0 + (1 - rho) m1,
        m0 the mean over [0, rho] and m1 over [rho, 1].
        """
        if not v.size:
            return dict.fromkeys(names, v)
        if names == ("entropy",):
            return {
                "entropy": np.exp(spline_values(_splines(self.tokens, names), (variance_coordinate(v),))[0])
            }
        (mean, r2), (ratio, t11) = self._read(v, rho, ROW, PAIR)
        lower, n = mean / (rho + (1 - rho) * ratio), self.tokens
        few = {
            "s2": 1 / n + v * mean,
            "s11": 1 / n + rho * v * lower,
            "chord": ratio * lower,
            "r2": r2,
            "t11": t11,
        }
        if names == OverlapMoments._fields:
            return few
        (entropy, s3, s4, row_pairs), (s21, s22, pairs) = self._read(v, rho, MORE_ROW, MORE_PAIR)
        return few | {"s3": s3, "ss": s4 + row_pairs, "s21": s21, "oo": s22 + pairs, "entropy": entropy}

    def _read(self, v: Array, rho: Array, row: Names, pair: Names) -> tuple[Array, Array]:
        z, y = variance_coordinate(v), correlation_coordinate(v, rho)
        rows = spline_values(_splines(self.tokens, row), (z,))
        return np.exp(rows), np.exp(spline_values(_splines(self.tokens, pair), (z, y)))

    @staticmethod
    def _fill(values: dict[str, Array], where: NDArray[np.bool_], part: dict[str, Array]) -> None:
        for name, value in values.items():
            value[where] = part[name]


_one_state = lru_cache(maxsize=65536)(quadrature_moments)


def _checked(variance: ArrayLike, correlation: ArrayLike) -> tuple[Array, Array]:
    v, rho = np.broadcast_arrays(np.asarray(variance, np.float64), np.asarray(correlation, np.float64))
    for name, value, good, expected in (
        ("variance", v, np.isfinite(v) & (v >= 0), "finite and >= 0"),
        ("correlation", rho, (rho >= -1) & (rho <= 1 + ROUNDING), "in [-1, 1]"),
    ):
        if not good.all():
            bad = value[~good].flat[0]
            raise BadInput(
                f"the softmax logit {name} must be {expected}, got {bad} in {np.count_nonzero(~good)} of "
                f"{good.size} states: check the norms and overlaps, v = sA^2 q (q - p) and rho = p/q"
            )
    return v, np.minimum(rho, 1.0)


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
    """Return the limit n -> infinity at a fixed ratio v / (2 log n) = 1/x^2. [Derrida 1981; Derrida and Toulouse 1985]

    Condensed (x < 1): the weights are Poisson-Dirichlet, S2 = 1 - x, S3 = (1-x)(2-x)/2,
    SS = (1-x)(3-2x)/3, R2 = x(1-x)/3, entropy = psi(1) - psi(1-x). Else these vanish and the entropy is
    log n - v/2.
    Rows that are not equal share no key: S11 = S21 = OO = T11 = 0 for rho < 1.
    """
    from scipy.special import digamma

    v, rho = _state(variance, correlation, tokens)
    frozen, same = v > 2 * np.log(tokens), rho == 1
    x = np.sqrt(2 * np.log(tokens) / np.where(frozen, v, 2 * np.log(tokens)))  # 1 if nothing is condensed
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


TABLE_FILE = Path(__file__).with_name("moments.npz")
LARGEST_VARIANCE, LARGEST_TOKENS, LOWEST_CORRELATION = 256.0, 1_000_000, -0.05
VARIANCE_SCALE, DISTANCE_SCALE = 3.0, 5.0
ROW_NAMES = ("mean_t11", "entropy")  # functions of (v, n)
PAIR_NAMES = ("ratio", "t11", "s21", "s22", "pairs")  # functions of (v, rho, n)
GRID = (193, 161)  # points of the splines in the coordinates of v and rho
ROW, PAIR = ("mean_t11", "r2"), ("ratio", "t11")  # what the recursions need
MORE_ROW, MORE_PAIR = ("entropy", "s3", "s4", "row_pairs"), ("s21", "s22", "pairs")  # what a full report adds
AT_EQUAL_ROWS = {"r2": "t11", "s3": "s21", "s4": "s22", "row_pairs": "pairs"}  # one row is a pair at rho = 1


def variance_coordinate(v: Array) -> Array:
    """z in [0, 1] for v in [0, LARGEST_VARIANCE]."""
    return np.asarray(np.log1p(v / VARIANCE_SCALE) / np.log1p(LARGEST_VARIANCE / VARIANCE_SCALE))


def correlation_coordinate(v: Array, rho: Array) -> Array:
    """y in [0, 1] for rho from 1 down to LOWEST_CORRELATION, at variance v."""
    v = np.maximum(v, 1e-9)  # the limit v -> 0 is (1 - rho) / 1.05
    return np.log1p(v * (1 - rho) / DISTANCE_SCALE) / np.log1p(v * (1 - LOWEST_CORRELATION) / DISTANCE_SCALE)


def value_at_zero_variance(name: str, n: Array | float) -> Array | float:
    """Return what each tabulated moment is divided by: its value for equal weights 1/n."""
    slope = (n - 1) / n**2
    scales = {"mean_t11": slope, "t11": slope, "pairs": slope / n, "s21": n**-2.0, "s22": n**-3.0}
    return (scales | {"ratio": 1.0, "entropy": np.log(n)})[name]


@lru_cache(maxsize=1)
def stored_coefficients() -> dict[str, Array]:
    """Return the shipped coefficients, by name: axes (z, log n) for ROW_NAMES and (z, y, log n) for PAIR_NAMES."""
    with np.load(TABLE_FILE) as file:
        return {name: file[name].astype(np.float64) for name in (*ROW_NAMES, *PAIR_NAMES)}


def logarithms_on_grid(name: str, tokens: int, z: Array, y: Array) -> Array:
    """Log of the moment over its value at v = 0, on the grid z (x y for a pair), for one number of tokens."""
    coefs = stored_coefficients()[name]
    place = np.asarray(np.log(np.asarray(float(tokens)) / 2) / np.log(LARGEST_TOKENS / 2))  # log n in [0, 1]
    coefs = coefs @ _basis(place, coefs.shape[-1])[0]
    along_z = _basis(z, coefs.shape[0]) @ coefs
    return np.asarray(along_z if name in ROW_NAMES else along_z @ _basis(y, coefs.shape[1]).T)


def _basis(position: Array, count: int) -> Array:
    return np.asarray(chebyshev.chebvander(2 * np.atleast_1d(position) - 1, count - 1), dtype=np.float64)


@lru_cache(maxsize=256)
def _splines(tokens: int, names: Names) -> Array:
    """Coefficients (names, grid) of the logarithms of the named moments."""
    # Else every reading copies it.
    return np.ascontiguousarray(np.stack([_spline(tokens, name) for name in names]))


def _spline(tokens: int, name: str) -> Array:
    z, y = (np.linspace(0, 1, count) for count in GRID)
    stored = AT_EQUAL_ROWS.get(name, name)
    logarithms = logarithms_on_grid(stored, tokens, z, y[:1] if name in AT_EQUAL_ROWS else y)
    values = logarithms + np.log(value_at_zero_variance(stored, float(tokens)))
    if name in AT_EQUAL_ROWS:
        values = values[:, 0]
    for axis in range(values.ndim):
        values = spline_coefficients(values, axis)
    return values
