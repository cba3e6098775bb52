"""Gaussian averages of activations: everything the length and correlation maps need, vectorized.

For u = sqrt(q) z and a pair (u, u') with variance q and correlation c = 1 - e:

    square  E phi(u)^2        product  E phi(u) phi(u')        chord  (square - product) / (q e)
    slope_square  E phi'^2    slope_product  E phi' phi'       = d product / d(q c)   [Price 1958]

Linear, ReLU, leaky ReLU, squared ReLU, erf and sine are closed forms [Cho & Saul 2009; Williams 1998], in which
c = cos(theta) and K = E phi(u) phi(u'); their chords are written so that nothing is subtracted near c = 1. The rest are
quadrature, through a table where speed matters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgewise.activations import LEAKY_SLOPE, leaky_slope, torch_activation
from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns import knobs
from edgewise.theory.averages.functions import SMOOTH, from_callable
from edgewise.theory.averages.quadrature import Quadrature


class Activation:
    """An activation with its Gaussian averages; every method broadcasts over arrays of q, c and e."""

    def __init__(self, name: str, averages: Any) -> None:
        self.name = name
        self._averages = averages
        self.function: Callable[[Array], Array] = averages.value
        self.derivative: Callable[[Array], Array] = averages.slope
        self.kinks: tuple[float, ...] = tuple(averages.kinks)

    def __repr__(self) -> str:
        return f"Activation({self.name!r})"

    @property
    def is_smooth(self) -> bool:
        """True if phi'' is a function (no kink)."""
        return not self.kinks

    def square(self, q: ArrayLike) -> Array:
        """E phi(sqrt(q) z)^2."""
        return np.asarray(self._averages.square(_length(q)))

    def product(self, q: ArrayLike, c: ArrayLike) -> Array:
        """E phi(u) phi(u') = square - q e chord, at correlation c."""
        length, e = np.broadcast_arrays(_length(q), 1.0 - _correlation(c))
        return np.asarray(self._averages.square(length) - length * e * self._averages.chord(length, e))

    def slope_square(self, q: ArrayLike) -> Array:
        """E phi'(sqrt(q) z)^2."""
        return np.asarray(self._averages.slope_square(_length(q)))

    def slope_product(self, q: ArrayLike, c: ArrayLike) -> Array:
        """E phi'(u) phi'(u') at correlation c."""
        return self.slope_product_apart(q, 1.0 - _correlation(c))

    def slope_product_apart(self, q: ArrayLike, e: ArrayLike) -> Array:
        """E phi'(u) phi'(u') at correlation 1 - e, exact for the smallest e."""
        return np.asarray(self._averages.slope_product(*np.broadcast_arrays(_length(q), _separation(e))))

    def chord(self, q: ArrayLike, e: ArrayLike) -> Array:
        """(square(q) - product(q, 1 - e)) / (q e) without the subtraction; slope_square(q) at e = 0.

        By Price's theorem it is the mean of slope_product over correlations in [1 - e, 1].
        """
        return np.asarray(self._averages.chord(*np.broadcast_arrays(_length(q), _separation(e))))

    def curvature_square(self, q: ArrayLike) -> Array:
        """E phi''(sqrt(q) z)^2, refused where a kink makes it infinite."""
        value = self._averages.curvature_square(_length(q))
        if value is None:
            raise BadInput(
                f"activation {self.name!r} has kinks at {self.kinks}, so E phi''^2 is infinite: "
                "expected a smooth activation; use tanh, erf, gelu, silu, ... for curvature"
            )
        return np.asarray(value)

    def length_slope(self, q: ArrayLike) -> Array:
        """d square / dq = E[phi'^2 + phi phi''] = E[z phi phi'] / sqrt(q)."""
        return np.asarray(self._averages.length_slope(_length(q)))

    def mean(self, q: ArrayLike) -> Array:
        """E phi(sqrt(q) z)."""
        return np.asarray(self._averages.mean(_length(q)))


def _angle(e: Array) -> Array:
    """theta = arccos(1 - e) = 2 arcsin(sqrt(e/2)), accurate however small e is."""
    return np.asarray(2 * np.arcsin(np.sqrt(np.clip(e, 0.0, 2.0) / 2)))


# sin t - t cos t = t^3 sum a_n t^2n and 3 sin t cos t - t (1 + 2 cos^2 t) = t^5 sum b_n t^2n
_CUBIC = [(-1) ** (n + 1) * 2 * n / factorial(2 * n + 1) for n in range(1, 9)]
_QUINTIC = [(-1) ** n * 2 ** (2 * n + 1) * (1 - n) / factorial(2 * n + 1) for n in range(2, 13)]
_SERIES_BELOW = 0.5


def _cubic_over_e(t: Array) -> Array:
    """(sin t - t cos t) / (1 - cos t), by its series where both cancel."""
    x = np.maximum(t, _SERIES_BELOW)
    plain = (np.sin(x) - x * np.cos(x)) / (1 - np.cos(x))
    return np.asarray(np.where(t < _SERIES_BELOW, _series(t, _CUBIC) * t, plain))


def _quintic_over_e(t: Array) -> Array:
    """(3 sin t cos t - t (1 + 2 cos^2 t)) / (1 - cos t), by its series where both cancel."""
    x = np.maximum(t, _SERIES_BELOW)
    plain = (3 * np.sin(x) * np.cos(x) - x * (1 + 2 * np.cos(x) ** 2)) / (1 - np.cos(x))
    return np.asarray(np.where(t < _SERIES_BELOW, _series(t, _QUINTIC) * t**3, plain))


def _series(t: Array, coefficients: list[float]) -> Array:
    """sum a_n t^2n times t^2 / (1 - cos t)."""
    t = np.minimum(t, _SERIES_BELOW)
    return np.asarray(
        np.polynomial.polynomial.polyval(t**2, coefficients) * 2 / np.sinc(t / (2 * np.pi)) ** 2
    )


class Rectifier:
    """x for x > 0 and a x below: linear at a = 1, ReLU at a = 0.

    K = a q c + (1-a)^2 K_ReLU,  K_ReLU = q (sin t + (pi - t) cos t) / (2 pi).
    """

    def __init__(self, negative_slope: float) -> None:
        self.a = negative_slope
        self.kinks = () if negative_slope == 1 else (0.0,)

    def value(self, x: Array) -> Array:
        return np.asarray(np.where(x > 0, x, self.a * x))

    def slope(self, x: Array) -> Array:
        return np.asarray(np.where(x > 0, 1.0, self.a))

    def square(self, q: Array) -> Array:
        return np.asarray((1 + self.a**2) / 2 * q)

    def slope_square(self, q: Array) -> Array:
        return np.full(np.shape(q), (1 + self.a**2) / 2)

    def slope_product(self, q: Array, e: Array) -> Array:
        """Return a + (1-a)^2 (pi - theta) / (2 pi)."""
        return np.asarray(self.a + (1 - self.a) ** 2 * (0.5 - _angle(e) / (2 * np.pi)) + 0 * q)

    def chord(self, q: Array, e: Array) -> Array:
        """Return a + (1-a)^2 (1/2 - (sin t - t cos t) / (2 pi e))."""
        return np.asarray(self.a + (1 - self.a) ** 2 * (0.5 - _cubic_over_e(_angle(e)) / (2 * np.pi)) + 0 * q)

    def curvature_square(self, q: Array) -> Array | None:
        return np.zeros(np.shape(q)) if self.a == 1 else None

    def length_slope(self, q: Array) -> Array:
        return self.slope_square(q)

    def mean(self, q: Array) -> Array:
        return np.asarray((1 - self.a) * np.sqrt(q / (2 * np.pi)))


class SquaredRectifier:
    """max(x, 0)^2: K = q^2 (3 sin t cos t + (pi - t)(1 + 2 cos^2 t)) / (2 pi), slope 4 K_ReLU."""

    kinks = ()

    def value(self, x: Array) -> Array:
        return np.asarray(np.maximum(x, 0.0) ** 2)

    def slope(self, x: Array) -> Array:
        return np.asarray(2 * np.maximum(x, 0.0))

    def square(self, q: Array) -> Array:
        return np.asarray(1.5 * q**2)

    def slope_square(self, q: Array) -> Array:
        return np.asarray(2 * q)

    def slope_product(self, q: Array, e: Array) -> Array:
        t = _angle(e)
        near = np.sin(t) + (np.pi - t) * np.cos(t)
        far = _cubic_over_e(np.pi - t) * (1 + np.cos(t))  # the same bracket, free of cancellation at t = pi
        return np.asarray(2 * q / np.pi * np.where(t < 2.8, near, far))

    def chord(self, q: Array, e: Array) -> Array:
        """q (2 pi (1 + c) - (3 sin t cos t - t (1 + 2 cos^2 t)) / e) / (2 pi)."""
        return np.asarray(q * (2 - e - _quintic_over_e(_angle(e)) / (2 * np.pi)))

    def curvature_square(self, q: Array) -> Array | None:
        return np.full(np.shape(q), 2.0)

    def length_slope(self, q: Array) -> Array:
        return np.asarray(3 * q)

    def mean(self, q: Array) -> Array:
        return np.asarray(q / 2)


class ErrorFunction:
    """erf(x): K = (2/pi) arcsin(2 q c / (1 + 2 q)), slope (4/pi) / sqrt((1+2q)^2 - 4 q^2 c^2)."""

    kinks = ()

    def value(self, x: Array) -> Array:
        from scipy import special

        return np.asarray(special.erf(x))

    def slope(self, x: Array) -> Array:
        return np.asarray(2 / np.sqrt(np.pi) * np.exp(-(x**2)))

    def square(self, q: Array) -> Array:
        """(2/pi) arcsin(2q/(1+2q)) = (2/pi) arctan(2q / sqrt(1+4q))."""
        return np.asarray(2 / np.pi * np.arctan2(2 * q, np.sqrt(1 + 4 * q)))

    def slope_square(self, q: Array) -> Array:
        return np.asarray(4 / np.pi / np.sqrt(1 + 4 * q))

    def slope_product(self, q: Array, e: Array) -> Array:
        return np.asarray(4 / np.pi / np.sqrt(1 + 4 * q + 4 * q**2 * e * (2 - e)))

    def chord(self, q: Array, e: Array) -> Array:
        """arcsin x - arcsin y as the angle between the two directions, its sine factored by x - y = a e."""
        n, k = 1 + 2 * q, 1 - e
        root_x, root_y = np.sqrt(1 + 4 * q), np.sqrt(1 + 4 * q + 4 * q**2 * e * (2 - e))
        # n^2 sin = 2q (root_y - k root_x), by the difference of squares n^2 e (2 - e) where k > 0
        positive = k > 0
        sine = np.where(
            positive, n**2 * e * (2 - e) / np.where(positive, root_y + k * root_x, 1.0), root_y - k * root_x
        )
        angle = np.arctan2(2 * q * sine, root_x * root_y + 4 * q**2 * k)
        qe = q * e
        return np.asarray(
            np.where(qe > 0, 2 / np.pi * angle / np.where(qe > 0, qe, 1.0), self.slope_square(q))
        )

    def curvature_square(self, q: Array) -> Array | None:
        """E (phi'')^2 = (16/pi) E u^2 e^{-2u^2} = (16 q/pi) (1+4q)^{-3/2}."""
        return np.asarray(16 * q / np.pi * (1 + 4 * q) ** -1.5)

    def length_slope(self, q: Array) -> Array:
        return np.asarray(4 / np.pi / ((1 + 2 * q) * np.sqrt(1 + 4 * q)))

    def mean(self, q: Array) -> Array:
        return np.zeros(np.shape(q))


class Sine:
    """sin x: K = (e^{-q e} - e^{-q (2 - e)}) / 2."""

    kinks = ()

    def value(self, x: Array) -> Array:
        return np.asarray(np.sin(x))

    def slope(self, x: Array) -> Array:
        return np.asarray(np.cos(x))

    def square(self, q: Array) -> Array:
        return np.asarray(-np.expm1(-2 * q) / 2)

    def slope_square(self, q: Array) -> Array:
        return np.asarray((1 + np.exp(-2 * q)) / 2)

    def slope_product(self, q: Array, e: Array) -> Array:
        return np.asarray((np.exp(-q * e) + np.exp(-q * (2 - e))) / 2)

    def chord(self, q: Array, e: Array) -> Array:
        """(1 - e^{-qe})(1 + e^{-q(2-e)}) / (2 q e)."""
        qe = q * e
        ratio = np.where(qe > 0, -np.expm1(-qe) / np.where(qe > 0, qe, 1.0), 1.0)
        return np.asarray(ratio * (1 + np.exp(-q * (2 - e))) / 2)

    def curvature_square(self, q: Array) -> Array | None:
        return self.square(q)

    def length_slope(self, q: Array) -> Array:
        return np.asarray(np.exp(-2 * q))

    def mean(self, q: Array) -> Array:
        return np.zeros(np.shape(q))


_CLOSED: dict[str, Callable[[], Any]] = {
    "linear": lambda: Rectifier(1.0),
    "relu": lambda: Rectifier(0.0),
    "leaky_relu": lambda: Rectifier(LEAKY_SLOPE),
    "erf": ErrorFunction,
    "relu2": SquaredRectifier,
    "sin": Sine,
}


def activation(kind: str | Callable[[Any], Any] | Activation) -> Activation:
    """Return the activation of a name ("leaky_relu:0.2" sets the slope) or of a numpy or torch callable; cached."""
    if isinstance(kind, Activation):
        return kind
    return _of_callable(kind) if callable(kind) else _of_name(kind)


@lru_cache(maxsize=16)  # each has tables of some megabytes
def _of_callable(function: Callable[[Any], Any]) -> Activation:
    return Activation(
        getattr(function, "__name__", type(function).__name__), Quadrature(from_callable(function))
    )


@cache
def _of_name(kind: str) -> Activation:
    if kind in _CLOSED:
        return Activation(kind, _CLOSED[kind]())
    if kind in SMOOTH:
        return Activation(kind, Quadrature(SMOOTH[kind], kind))
    if isinstance(kind, str) and kind.startswith("leaky_relu:"):
        return Activation(kind, Rectifier(leaky_slope(kind)))
    if kind in knobs.ACTIVATIONS:  # named, without an entry of its own here: from its torch function
        return Activation(kind, Quadrature(from_callable(torch_activation(kind))))
    raise BadInput(
        f"unknown activation {kind!r}: expected one of {', '.join(knobs.ACTIVATIONS)}, "
        "'leaky_relu:SLOPE', or a numpy or torch callable"
    )


def _length(q: ArrayLike) -> Array:
    length = np.asarray(q, dtype=float)
    if np.any(length < 0):
        raise BadInput(f"variance q = {np.min(length)}: expected q >= 0 (a mean square)")
    return length


def _correlation(c: ArrayLike) -> Array:
    correlation = np.asarray(c, dtype=float)
    if np.any(np.abs(correlation) > 1 + 1e-9):
        raise BadInput(
            f"correlation c = {correlation.flat[np.argmax(np.abs(correlation))]}: expected -1 <= c <= 1"
        )
    return np.asarray(np.clip(correlation, -1.0, 1.0))


def _separation(e: ArrayLike) -> Array:
    separation = np.asarray(e, dtype=float)
    if np.any(separation < 0) or np.any(separation > 2 + 1e-9):
        raise BadInput(
            f"separation e = 1 - c in [{np.min(separation)}, {np.max(separation)}]: expected 0 <= e <= 2"
        )
    return np.asarray(np.minimum(separation, 2.0))
