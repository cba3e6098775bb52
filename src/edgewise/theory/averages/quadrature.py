"""Gaussian averages of an activation without a closed form: over one variable by panels, over a pair by a table.

The table holds slope_product and chord on logarithmic lattices, read by cubic splines. Half the sum and half the
difference of u, u' have variances alpha = q (1 + c) / 2 and beta = q (1 - c) / 2. In (log alpha, log beta) the averages
are as smooth as can be: for erf 1 / sqrt((1 + 4 alpha)(1 + 4 beta)); kinked activations, smooth in arccos c, are smooth
there too. For c >= 0 the shared variance is alpha - beta, the private one 2 beta, so on a lattice the smoothed slope
G(x; 2 beta) is computed once per beta and shared. c < 0 exchanges alpha and beta. Each side is stored by (log of the
larger, log ratio), one next to the other.

The tables of the named activations are shipped as factors of low rank (`tools/build_tables.py` makes them): a table
A (I, J) is kept as diag(s) L R with s the largest entry of each row; components whose weight is below 1e-4 are in
single precision. The error is at most 1e-9 of the largest entry of the row.

Shapes: I lattice values of the larger variance, J of the ratio r = beta / alpha, per side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.averages import gaussian_mean
from edgewise.theory.averages.functions import Pointwise
from edgewise.theory.averages.gaussian_mean import REACH, Function, Grain, graded_marks, panel_nodes, smoothed
from edgewise.theory.splines import Quintic, spline_values

STEP = 0.125
SMALLEST_LENGTH, LARGEST_LENGTH = 1e-8, 1e8
SMALLEST_RATIO = 1e-14  # below it even a steep activation at the largest length sees c = 1
_COLUMNS = int(np.ceil(-np.log(SMALLEST_RATIO) / STEP)) + 1
_PADDING = 12  # a spline forgets its edge by a factor 3.7 per node
_EXTRA = 6  # lattice rows below the smallest length, since alpha >= q / 2, and above for the far side


@dataclass(frozen=True)
class PairTable:
    """slope_product and chord of one activation for q between `low` and `high`, any e = 1 - c in [0, 2]."""

    coefficients: Array  # of slope_product
    chord_coefficients: Array
    low: float = SMALLEST_LENGTH
    high: float = LARGEST_LENGTH

    def slope_product(self, q: Array, e: Array) -> Array:
        """E phi' phi' at correlation 1 - e, shapes as q."""
        rest = np.minimum(e, 2.0 - e)
        return self._read(self.coefficients, q * (1 - rest / 2), rest, e, _EXTRA)

    def chord(self, q: Array, e: Array) -> Array:
        """Mean of slope_product over correlations in [1 - e, 1], shapes as q."""
        return self._read(self.chord_coefficients, q, np.minimum(e, 2.0 - e), e, 0)

    def _read(self, coefficients: Array, length: Array, rest: Array, e: Array, extra: int) -> Array:
        row = np.log(length / self.low) / STEP + (extra + _PADDING)
        column = np.log(np.maximum(rest / (2 - rest), SMALLEST_RATIO)) / -STEP + _PADDING
        column = np.where(e > 1, column + (_COLUMNS + 2 * _PADDING), column)
        places = [
            (np.ravel(at) - 1) / (size - 3)
            for at, size in zip((row, column), coefficients.shape, strict=True)
        ]
        return np.asarray(spline_values(coefficients[None], (places[0], places[1]))[0].reshape(np.shape(e)))


def build_table(slope: Function, grain: Grain, largest_length: float = LARGEST_LENGTH) -> PairTable:
    """Return the table of an activation with this derivative."""
    low = SMALLEST_LENGTH
    rows = int(np.ceil(np.log(largest_length / low) / STEP)) + 5  # the last four keep the edge away
    larger = low * np.exp(STEP * np.arange(-_EXTRA, rows + _EXTRA))
    slopes = _slope_coefficients(*_lattice(slope, grain, larger))
    partial = PairTable(slopes, np.empty((0, 0)), low, largest_length)
    near, far = _chord_lattice(partial, rows)  # across c = 0 at fixed q the other side continues
    chords = _coefficients((far[:, _EXTRA:0:-1], near), (near[:, _EXTRA:0:-1], far))
    return PairTable(slopes, chords, low, largest_length)


def _chord_lattice(table: PairTable, rows: int) -> tuple[Array, Array]:
    """(1/e) int_0^e slope_product de' for c >= 0 and c < 0, summed from the small end, each (I, J)."""
    q = table.low * np.exp(STEP * np.arange(rows))[:, None]
    s, weights = panel_nodes(STEP * np.arange(float(_COLUMNS)), order=4)  # s = -log r
    r = np.exp(-s)
    e, measure = 2 * r / (1 + r), weights * 2 * r / (1 + r) ** 2
    near = (table.slope_product(*np.broadcast_arrays(q, e)) * measure).reshape(rows, -1, 4).sum(axis=2)
    far = (table.slope_product(*np.broadcast_arrays(q, 2 - e)) * measure).reshape(rows, -1, 4).sum(axis=2)
    ratio = np.exp(-STEP * np.arange(_COLUMNS))
    separations = 2 * ratio / (1 + ratio)
    tail = table.slope_product(q, np.full_like(q, separations[-1])) * separations[-1]
    upto = np.concatenate([np.cumsum(near[:, ::-1], axis=1)[:, ::-1] + tail, tail], axis=1)
    beyond = np.concatenate([np.zeros_like(tail), np.cumsum(far, axis=1)], axis=1)
    return upto / separations, (upto[:, :1] + beyond) / (2 - separations)


def _lattice(slope: Function, grain: Grain, larger: Array) -> tuple[Array, Array]:
    """E phi' phi' for c >= 0 and for c <= 0, each (I, J)."""
    near, far = np.empty((2, larger.size, _COLUMNS))
    for k in range(1 - _COLUMNS, larger.size):
        i = np.arange(max(0, k), min(larger.size, k + _COLUMNS))
        smaller = larger[0] * float(np.exp(STEP * k))
        near[i, i - k], far[i, i - k] = _diagonal(slope, grain, larger[i], smaller)
    return near, far


def _diagonal(slope: Function, grain: Grain, larger: Array, smaller: float) -> tuple[Array, Array]:
    """E_w G(w) G(+-w) for all points with the same private variance: a sum over one half-line of nodes."""
    private, shared = 2 * smaller, larger - smaller
    positive = shared > 1e-3 * larger  # all but c = 0
    # Nodes on x > 0 that resolve G, and every Gaussian from the shortest shared length to the longest.
    smallest = min(grain.scale, 0.5 * (0.1 * max(private, float(larger[0]))) ** 0.5)
    if grain.kinked:
        smallest = min(smallest, max(0.5 * private**0.5, 1e-7))
    mirrored = tuple(sorted({abs(x) for x in grain.centres} | {-abs(x) for x in grain.centres}))
    largest = REACH * float(larger[-1]) ** 0.5
    marks = graded_marks(mirrored, smallest, largest + max(mirrored))
    x, weights = panel_nodes(np.unique(np.clip(marks, 0.0, largest)))
    right, left = smoothed(slope, x, private, grain), smoothed(slope, -x, private, grain)
    deviation = np.sqrt(shared[positive, None])
    density = np.exp(-((x / deviation) ** 2) / 2) / (np.sqrt(2 * np.pi) * deviation) * weights
    near = np.full(larger.size, smoothed(slope, np.zeros(1), private, grain)[0] ** 2)  # c = 0: G(0)^2
    far = near.copy()
    near[positive], far[positive] = density @ (right**2 + left**2), 2 * density @ (right * left)
    return near, far


def _slope_coefficients(near: Array, far: Array) -> Array:
    """Across c = 0 alpha and beta change roles: point (i, -j) of one side is (i + j, j) of the other."""
    rows = len(near) - _EXTRA

    def beyond(other: Array) -> Array:
        return np.stack([other[j : rows + j, j] for j in range(_EXTRA, 0, -1)], axis=1)

    return _coefficients((beyond(far), near[:rows]), (beyond(near), far[:rows]))


def _coefficients(*sides: tuple[Array, Array]) -> Array:
    """Spline coefficients of the sides next to each other, each (columns beyond c = 0, its own columns)."""
    from scipy.ndimage import spline_filter

    tables = (np.concatenate(side, axis=1) for side in sides)
    padded = (_padded(_padded(table, _PADDING).T, _PADDING - _EXTRA).T for table in tables)
    return np.concatenate([spline_filter(table, order=3) for table in padded], axis=1)


def _padded(values: Array, before: int) -> Array:
    """Continue both ends of axis 0 by the polynomial through the last five rows; a mirror would bend them."""
    inverse = np.linalg.inv(np.vander(np.arange(-4.0, 1.0), 5))

    def ahead(count: int) -> Array:
        return np.asarray(np.vander(np.arange(1.0, count + 1), 5) @ inverse)  # (count, 5)

    return np.concatenate([(ahead(before) @ values[4::-1])[::-1], values, ahead(_PADDING) @ values[-5:]])


TABLES_FILE = Path(__file__).with_name("averages.npz")


def product(parts: dict[str, Array]) -> Array:
    """Return the table again."""
    rest = parts["single_left"].astype(np.float64) @ parts["single_right"].astype(np.float64)
    return parts["scale"][:, None] * (parts["double_left"] @ parts["double_right"] + rest)


def shipped_table(name: str) -> PairTable | None:
    """Return the pair averages of a named activation; None if none are shipped."""
    if not (stored := _stored(name)):
        return None
    tables = [
        product({key.split(".")[1]: value for key, value in stored.items() if key.startswith(f"{which}.")})
        for which in ("slope", "chord")
    ]
    return PairTable(tables[0], tables[1])


def shipped_splines(name: str) -> tuple[Quintic, Quintic] | None:
    """log E phi^2 and log E phi'^2 of a named activation against log q; None if none are shipped."""
    if not (stored := _stored(name)):
        return None
    low, high = float(np.log(SMALLEST_LENGTH)), float(np.log(LARGEST_LENGTH))
    return Quintic(low, high, stored["square"]), Quintic(low, high, stored["slope_square"])


@lru_cache(maxsize=4)
def _stored(name: str) -> dict[str, Array]:
    with np.load(
        TABLES_FILE
    ) as file:  # the first bytes of all numbers, then the second: they compress better
        parts = {key: np.moveaxis(file[key], 0, -1) for key in file.files if key.startswith(f"{name}/")}
    whole = {key: np.ascontiguousarray(each).view(f"<f{each.shape[-1]}") for key, each in parts.items()}
    return {key.partition("/")[2]: each[..., 0] for key, each in whole.items()}


Pair = Callable[[Array, Array], Array]
LOG_STEP = 0.05  # of the splines over log q


class Quadrature:
    """Averages of a pointwise activation; q and e come broadcast to one shape; q = inf or nan gives nan.

    name: of an activation whose tables are shipped; without one they are computed when first needed.
    """

    def __init__(self, pointwise: Pointwise, name: str = "") -> None:
        self.pointwise, self.name = pointwise, name
        self.value, self.slope = pointwise.value, pointwise.slope
        self.kinks = pointwise.kinks

    # Averages over one variable

    def square(self, q: Array) -> Array:
        return self._read(self._log_splines[0], lambda x: self.value(x) ** 2, q)

    def slope_square(self, q: Array) -> Array:
        return self._read(self._log_splines[1], lambda x: self.slope(x) ** 2, q)

    def _read(self, spline: Quintic | None, function: Function, q: Array) -> Array:
        """From a spline of the logarithm of the average against log q; directly outside its range."""
        inside = (q >= SMALLEST_LENGTH) & (q <= self._largest)
        if spline is None or not np.any(inside):
            return self._mean(function, q)
        result = np.asarray(np.exp(spline(np.log(np.where(inside, q, 1e-3)))))
        if not np.all(inside):
            result[~inside] = self._mean(function, q[~inside])
        return result

    def mean(self, q: Array) -> Array:
        return self._mean(self.value, q)

    def curvature_square(self, q: Array) -> Array | None:
        curvature = self.pointwise.curvature
        return None if curvature is None else self._mean(lambda x: curvature(x) ** 2, q)

    def length_slope(self, q: Array) -> Array:
        curvature = self.pointwise.curvature
        if curvature is not None:
            return self._mean(lambda x: self.slope(x) ** 2 + self.value(x) * curvature(x), q)
        q = np.maximum(q, 1e-12)  # E[u phi phi'] / q is 0/0 at q = 0
        return np.asarray(self._mean(lambda x: x * self.value(x) * self.slope(x), q) / q)

    def _mean(self, function: Function, q: Array) -> Array:
        self._refuse_above_limit(q)
        finite = np.isfinite(q)
        return np.where(
            finite, gaussian_mean.mean(function, np.where(finite, q, 1.0), self.pointwise.grain), np.nan
        )

    def _refuse_above_limit(self, q: Array) -> None:
        if np.any(q > self.pointwise.limit):
            raise BadInput(
                f"variance q = {np.max(q):.3g}: the averages of this activation are resolved only up to "
                f"q = {self.pointwise.limit:.3g}, since it oscillates or grows too fast; use a smaller q"
            )

    @cached_property
    def _largest(self) -> float:
        return min(LARGEST_LENGTH, self.pointwise.limit)

    @cached_property
    def _log_splines(self) -> tuple[Quintic | None, Quintic | None]:
        return (shipped_splines(self.name) if self.name else None) or self.fit_splines()

    def fit_splines(self) -> tuple[Quintic | None, Quintic | None]:
        """log E phi^2 and log E phi'^2 against log q."""
        return self._log_spline(lambda x: self.value(x) ** 2), self._log_spline(lambda x: self.slope(x) ** 2)

    def _log_spline(self, function: Function) -> Quintic | None:
        """Good to some 1e-10; None if the average vanishes (a step has no slope)."""
        low, high = np.log(SMALLEST_LENGTH), np.log(self._largest)
        nodes = np.linspace(low, high, int((high - low) / LOG_STEP) + 2)
        values = self._mean(function, np.exp(nodes) * (1 - 1e-15))
        return Quintic.through(low, high, np.log(values)) if np.all(values > 0) else None

    # Averages over a pair

    def slope_product(self, q: Array, e: Array) -> Array:
        return self._pair(
            q, e, self.table.slope_product, self.slope_product_directly, self._far_slope_product
        )

    def chord(self, q: Array, e: Array) -> Array:
        return self._pair(q, e, self.table.chord, self.chord_directly, self._far_chord)

    @cached_property
    def table(self) -> PairTable:
        return (shipped_table(self.name) if self.name else None) or self.build_table()

    def build_table(self) -> PairTable:
        """Return the table of the pair averages, from nothing: seconds."""
        return build_table(self.slope, self.pointwise.grain, self._largest)

    def _pair(self, q: Array, e: Array, read: Pair, direct: Pair, far: Pair) -> Array:
        """Return the table inside its range; its limits outside if they hold; else directly; nan where q or e is."""
        low, high = self.table.low, self.table.high
        if np.all((q >= low) & (q <= high) & (e == e)):
            return read(q, e)
        self._refuse_above_limit(q)
        known = np.isfinite(q) & np.isfinite(e)
        finite, e = np.where(known, q, 1.0), np.where(known, e, 0.0)
        result = read(np.clip(finite, low, high), e)
        below, above = finite < low, finite > high
        if np.any(above) and abs(self._far_growth - 1) < 1e-2:
            # S(q) = S_inf + A / sqrt(q), from the last rows of the table: exact up to 1/q
            fall = read(np.full_like(finite, high / 4), e) - read(np.full_like(finite, high), e)
            result = np.where(above, result + fall * (np.sqrt(high / np.maximum(finite, high)) - 1), result)
            above = np.zeros_like(above)
        if np.any(above) and abs(100 * self._far_growth - 1) < 1e-2:
            result = np.array(result)
            result[above] = far(finite[above], e[above])
            above = np.zeros_like(above)
        slow = above | (below & (not self._flat_at_zero))
        if np.any(slow):
            result = np.array(result)
            result[slow] = direct(finite[slow], e[slow])
        return np.where(known, result, np.nan)

    @cached_property
    def _flat_at_zero(self) -> bool:
        """Return whether the averages of phi' no longer change below the table (phi'(0) is not zero)."""
        ends = self.slope_square(self.table.low * np.array([1.0, 1e-4]))
        return bool(abs(ends[1] / ends[0] - 1) < 1e-6)

    @cached_property
    def _far_growth(self) -> float:
        """E phi'^2 far beyond the table over that at its end: 1 if phi' tends to constants on both sides, not both zero
        (phi looks like a leaky ReLU), 1/100 if phi' is integrable (it falls as 1/sqrt(q)); nan if not resolved so far.
        """
        if self.pointwise.limit < 1e4 * LARGEST_LENGTH:
            return math.nan
        ends = self.slope_square(self.table.high * np.array([1.0, 1e4]))
        return float(ends[1] / ends[0])

    def _far_slope_product(self, q: Array, e: Array) -> Array:
        """E phi'(u) phi'(u') of a saturating phi beyond the table, up to 1/high.

        phi' is a peak beside the Gaussian, whose density on it is exp(-(a - b)^2 / 2s) / (2 pi q sqrt(e (2 - e)))
        with s = q e (2 - e): a function of s over sqrt(q), read off the table's last row at the same s.
        """
        high, rest = self.table.high, np.minimum(e, 2 - e)
        spread = rest * (2 - rest)
        inside = np.minimum(q * spread / high, 1.0)
        at = inside / (1 + np.sqrt(1 - inside))  # at (2 - at) = inside
        share = np.sqrt(high / q) / np.sqrt(np.maximum(q * spread / high, 1.0))
        return np.asarray(
            share * self.table.slope_product(np.full_like(q, high), np.where(e <= 1, at, 2 - at))
        )

    def _far_chord(self, q: Array, e: Array) -> Array:
        """Its mean over [0, e], point by point."""
        return np.asarray(np.vectorize(self._one_chord, [float], excluded={2})(q, e, self._far_slope_product))

    def slope_product_directly(self, q: Array, e: Array) -> Array:
        """One pair quadrature per point: exact and slow."""
        return np.asarray(np.vectorize(self._one_pair, [float])(q, e))

    def chord_directly(self, q: Array, e: Array) -> Array:
        """One integral of pair quadratures per point: exact and very slow."""
        return np.asarray(
            np.vectorize(self._one_chord, [float], excluded={2})(q, e, self.slope_product_directly)
        )

    def _one_pair(self, q: float, e: float) -> float:
        sign = 1.0 if e <= 1 else -1.0
        return gaussian_mean.pair_mean(self.slope, q, min(e, 2 - e), sign, self.pointwise.grain)

    def _one_chord(self, q: float, e: float, slope_product: Pair) -> float:
        if e == 0:
            return float(slope_product(np.array([q]), np.zeros(1))[0])
        # In half-angles kinked activations are smooth; steep ones vary within 1/sqrt(q) of both ends.
        near = 0.5 ** np.arange(4.0 + max(0.0, np.log2(max(q, 1.0)) / 2))
        marks = np.concatenate([[0.0], near * np.pi / 4, np.pi / 2 - near * np.pi / 4, [np.pi / 2]])
        t, weights = gaussian_mean.panel_nodes(np.unique(np.minimum(marks, np.arcsin(np.sqrt(e / 2)))))
        values = slope_product(np.full_like(t, q), 2 * np.sin(t) ** 2)
        return float(np.sum(weights * values * 4 * np.sin(t) * np.cos(t)) / e)
