"""Activations whose Gaussian averages are elementary: linear, (leaky) ReLU, squared ReLU, erf, sine.

Throughout u, u' have variance q and correlation c = 1 - e = cos(theta); K denotes E phi(u) phi(u').
Sources: arc-cosine kernels [Cho & Saul 2009]; arcsine kernel [Williams 1998]; the chords are written here
so that nothing is subtracted near c = 1.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from edgewise.arrays import Array


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
        """a + (1-a)^2 (pi - theta) / (2 pi)."""
        return np.asarray(self.a + (1 - self.a) ** 2 * (0.5 - _angle(e) / (2 * np.pi)) + 0 * q)

    def chord(self, q: Array, e: Array) -> Array:
        """a + (1-a)^2 (1/2 - (sin t - t cos t) / (2 pi e))."""
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
