"""Smooth activations as pointwise functions: value, slope and curvature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from edgewise.arrays import Array
from edgewise.theory.activation.gaussian_mean import Function, Grain


@dataclass(frozen=True)
class Pointwise:
    """phi, phi' and phi'' (None where phi has a kink).

    `kinks` are jumps of phi', `creases` jumps of phi''; phi varies on `scale` around them and around zero,
    and Gaussian averages are resolved up to variance `limit`.
    """

    value: Function
    slope: Function
    curvature: Function | None
    kinks: tuple[float, ...] = ()
    creases: tuple[float, ...] = ()
    scale: float = 0.5
    limit: float = np.inf

    @property
    def grain(self) -> Grain:
        corners = {*self.kinks, *self.creases}
        return Grain(tuple(sorted({0.0, *corners})), self.scale, bool(corners))


def _normal_density(x: Array) -> Array:
    return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def _tanh() -> Pointwise:
    return Pointwise(np.tanh, _tanh_slope, lambda x: -2 * np.tanh(x) * _tanh_slope(x))


def _tanh_slope(x: Array) -> Array:
    """1 / cosh^2, written with decaying exponentials: 1 - tanh^2 loses every digit in the tail."""
    t = np.exp(-2 * np.abs(x))
    return np.asarray(4 * t / (1 + t) ** 2)


def _gelu() -> Pointwise:
    return Pointwise(
        lambda x: x * ndtr(x),
        lambda x: ndtr(x) + x * _normal_density(x),
        lambda x: (2 - x**2) * _normal_density(x),
    )


_K, _CUBIC = float(np.sqrt(2 / np.pi)), 0.044715


def _gelu_tanh() -> Pointwise:
    def inner(x: Array) -> Array:
        return np.asarray(_K * (x + _CUBIC * x**3))

    def inner_slope(x: Array) -> Array:
        return np.asarray(_K * (1 + 3 * _CUBIC * x**2))

    def slope(x: Array) -> Array:
        g = inner(x)
        return np.asarray(expit(2 * g) + 0.5 * x * _tanh_slope(g) * inner_slope(x))

    def curvature(x: Array) -> Array:
        g, g1 = inner(x), inner_slope(x)
        bend = -2 * np.tanh(g) * g1**2 + 6 * _K * _CUBIC * x
        return np.asarray(_tanh_slope(g) * (g1 + 0.5 * x * bend))

    return Pointwise(lambda x: x * expit(2 * inner(x)), slope, curvature)


def _swish(b: float) -> Pointwise:
    """x sigma(b x): SiLU at b = 1, quick GELU at b = 1.702."""

    def slope(x: Array) -> Array:
        s, r = expit(b * x), expit(-b * x)
        return np.asarray(s + b * x * s * r)

    def curvature(x: Array) -> Array:
        s, r = expit(b * x), expit(-b * x)
        return np.asarray(b * s * r * (2 + b * x * (r - s)))

    return Pointwise(lambda x: x * expit(b * x), slope, curvature)


def _sigmoid() -> Pointwise:
    return Pointwise(
        expit,
        lambda x: expit(x) * expit(-x),
        lambda x: expit(x) * expit(-x) * (expit(-x) - expit(x)),
    )


def _softplus() -> Pointwise:
    return Pointwise(lambda x: np.logaddexp(0.0, x), expit, lambda x: expit(x) * expit(-x))


SMOOTH: dict[str, Callable[[], Pointwise]] = {
    "tanh": _tanh,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda: _swish(1.702),
    "silu": lambda: _swish(1.0),
    "sigmoid": _sigmoid,
    "softplus": _softplus,
}
