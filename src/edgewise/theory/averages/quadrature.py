"""Gaussian averages of an activation without a closed form: over one variable by panels, over a pair by a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.averages import gaussian_mean
from edgewise.theory.averages.functions import Pointwise
from edgewise.theory.averages.gaussian_mean import Function
from edgewise.theory.averages.tables import (
    LARGEST_LENGTH,
    SMALLEST_LENGTH,
    PairTable,
    build_table,
    shipped_splines,
    shipped_table,
)
from edgewise.theory.splines import Quintic

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
        return self._read(self._log_square, lambda x: self.value(x) ** 2, q)

    def slope_square(self, q: Array) -> Array:
        return self._read(self._log_slope_square, lambda x: self.slope(x) ** 2, q)

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
    def _log_square(self) -> Quintic | None:
        return self._log_splines[0]

    @cached_property
    def _log_slope_square(self) -> Quintic | None:
        return self._log_splines[1]

    @cached_property
    def _log_splines(self) -> tuple[Quintic | None, Quintic | None]:
        return (shipped_splines(self.name) if self.name else None) or self.fit_splines()

    def fit_splines(self) -> tuple[Quintic | None, Quintic | None]:
        """log E phi^2 and log E phi'^2 against log q."""
        return self._log_spline(lambda x: self.value(x) ** 2), self._log_spline(lambda x: self.slope(x) ** 2)

    def _log_spline(self, function: Function) -> Quintic | None:
        """Good to some 1e-10; None where the average vanishes (a step has no slope)."""
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
        """The table of the pair averages, from nothing: seconds."""
        return build_table(self.slope, self.pointwise.grain, self._largest)

    def _pair(self, q: Array, e: Array, read: Pair, direct: Pair, far: Pair) -> Array:
        """The table inside its range; its limits outside where they hold; else directly; nan where q or e is."""
        low, high = self.table.low, self.table.high
        if np.all((q >= low) & (q <= high) & (e == e)):
            return read(q, e)
        self._refuse_above_limit(q)
        known = np.isfinite(q) & np.isfinite(e)
        finite, e = np.where(known, q, 1.0), np.where(known, e, 0.0)
        result = read(np.clip(finite, low, high), e)
        below, above = finite < low, finite > high
        if np.any(above) and self._linear_far_out:
            # S(q) = S_inf + A / sqrt(q), from the last rows of the table: exact up to 1/q
            fall = read(np.full_like(finite, high / 4), e) - read(np.full_like(finite, high), e)
            result = np.where(above, result + fall * (np.sqrt(high / np.maximum(finite, high)) - 1), result)
            above = np.zeros_like(above)
        if np.any(above) and self._saturates:
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
        """Whether the averages of phi' no longer change below the table (phi'(0) is not zero)."""
        ends = self.slope_square(self.table.low * np.array([1.0, 1e-4]))
        return bool(abs(ends[1] / ends[0] - 1) < 1e-6)

    @cached_property
    def _linear_far_out(self) -> bool:
        """Whether phi' tends to constants on both sides, not both zero: then phi looks like a leaky ReLU."""
        if self.pointwise.limit < 1e4 * LARGEST_LENGTH:
            return False
        ends = self.slope_square(self.table.high * np.array([1.0, 1e4]))
        return bool(abs(ends[1] / ends[0] - 1) < 1e-2)

    @cached_property
    def _saturates(self) -> bool:
        """Whether phi' is integrable: then E phi'^2 falls as 1/sqrt(q) far out."""
        if self.pointwise.limit < 1e4 * LARGEST_LENGTH:
            return False
        ends = self.slope_square(self.table.high * np.array([1.0, 1e4]))
        return bool(abs(100 * ends[1] / ends[0] - 1) < 1e-2)

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
        flat = [
            self._one_chord(float(v), float(s), self._far_slope_product) for v, s in zip(q, e, strict=True)
        ]
        return np.asarray(flat)

    def slope_product_directly(self, q: Array, e: Array) -> Array:
        """One pair quadrature per point: exact and slow."""
        flat = [self._one_pair(float(v), float(s)) for v, s in zip(np.ravel(q), np.ravel(e), strict=True)]
        return np.asarray(flat).reshape(np.shape(q))

    def chord_directly(self, q: Array, e: Array) -> Array:
        """One integral of pair quadratures per point: exact and very slow."""
        pairs = zip(np.ravel(q), np.ravel(e), strict=True)
        flat = [self._one_chord(float(v), float(s), self.slope_product_directly) for v, s in pairs]
        return np.asarray(flat).reshape(np.shape(q))

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
