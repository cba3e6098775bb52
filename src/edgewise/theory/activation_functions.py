"""Activations as pointwise functions: value, slope and curvature, and what can be found out about a callable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

from edgewise.errors import BadInput
from edgewise.theory.gaussian_mean import Array, Function


@dataclass(frozen=True)
class Pointwise:
    """phi, phi' and phi'' (None where phi has a kink), with the kinks and the scale on which phi varies."""

    value: Function
    slope: Function
    curvature: Function | None
    kinks: tuple[float, ...] = ()

    @property
    def centres(self) -> tuple[float, ...]:
        return tuple(sorted({0.0, *self.kinks}))


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


# A user's callable ------------------------------------------------------------------------------------------


def from_callable(function: Callable[[Any], Any]) -> Pointwise:
    """Wrap a numpy or torch callable; phi' by autograd for torch, by central differences for numpy.

    Kinks (jumps of phi') within +-64 are located by bisection; a jump of phi itself is refused, since
    its slope statistics are infinite.
    """
    torch_function = _takes_torch(function)
    value = _torch_derivative(function, 0) if torch_function else _numpy_value(function)
    _check_shape(value)
    if found := _jumps(value):
        raise BadInput(
            f"the activation jumps at x = {found[0]:.6g}: expected a continuous function, because chi_1 is "
            "infinite for a jump; use a steep continuous one instead"
        )
    d = 1e-7
    kinks = _jumps(lambda x: (value(x + d) - value(x - d)) / (2 * d))
    if torch_function:
        slope, curvature = _torch_derivative(function, 1), _torch_derivative(function, 2)
    else:
        slope, curvature = _differences(value, kinks)
    return Pointwise(value, slope, None if kinks else curvature, kinks)


def _takes_torch(function: Callable[[Any], Any]) -> bool:
    import torch

    try:
        return isinstance(function(torch.linspace(-1, 1, 3, dtype=torch.float64)), torch.Tensor)
    except (TypeError, AttributeError, RuntimeError, ValueError):
        return False  # a numpy function: it is asked for its values below, and refused there if it has none


def _torch_derivative(function: Callable[[Any], Any], order: int) -> Function:
    import torch

    def evaluate(x: Array) -> Array:
        t = torch.from_numpy(np.ascontiguousarray(x, dtype=float)).requires_grad_(order > 0)
        y = function(t)
        for k in range(order):
            if not y.requires_grad:  # a polynomial of lower degree
                return np.zeros(np.shape(x))
            (y,) = torch.autograd.grad(y.sum(), t, create_graph=k + 1 < order)
        return np.asarray(y.detach().numpy())

    return evaluate


def _numpy_value(function: Callable[[Any], Any]) -> Function:
    return lambda x: np.asarray(function(np.asarray(x, dtype=float)), dtype=float)


def _differences(value: Function, kinks: tuple[float, ...]) -> tuple[Function, Function]:
    """Fourth-order central differences whose step never reaches across a kink."""

    def step(x: Array, widest: float) -> Array:
        h = widest * np.maximum(1.0, 1e-3 * np.abs(x))
        for kink in kinks:
            h = np.minimum(h, np.maximum(0.45 * np.abs(x - kink), 1e-8))
        return np.asarray(h)

    def slope(x: Array) -> Array:
        h = step(x, 1e-3)
        return np.asarray((8 * (value(x + h) - value(x - h)) - value(x + 2 * h) + value(x - 2 * h)) / (12 * h))

    def curvature(x: Array) -> Array:
        h = step(x, 3e-3)
        near, far = value(x + h) + value(x - h), value(x + 2 * h) + value(x - 2 * h)
        return np.asarray((16 * near - far - 30 * value(x)) / (12 * h**2))

    return slope, curvature


def _check_shape(value: Function) -> None:
    probe = np.linspace(-4.0, 4.0, 7)
    seen = value(probe)
    if seen.shape != probe.shape or not np.all(np.isfinite(seen)):
        raise BadInput(
            f"the activation maps an array of shape {probe.shape} to shape {seen.shape} with values {seen}: "
            "expected an elementwise function that is finite everywhere; give a numpy or torch callable"
        )


def _jumps(function: Function) -> tuple[float, ...]:
    """Where f jumps: intervals of a grid whose change stays when they are bisected to 1e-7."""
    edges = np.linspace(-64.0, 64.0, 4097) + 1e-4 * np.pi  # off the round numbers at which people put kinks
    left, right = edges[:-1], edges[1:]
    values = function(edges)
    scale = float(np.max(np.abs(values))) + 1e-300
    change = np.abs(np.diff(values))
    suspect = change > 1e-4 * scale
    left, right, change = left[suspect], right[suspect], change[suspect]
    start = change.copy()
    for _ in range(18):
        middle = (left + right) / 2
        low = np.abs(function(middle) - function(left)) >= np.abs(function(right) - function(middle))
        left, right = np.where(low, left, middle), np.where(low, middle, right)
    kept = np.abs(function(right) - function(left)) > np.maximum(0.02 * start, 1e-6 * scale)
    return tuple(float(np.round(x, 6)) for x in (left[kept] + right[kept]) / 2)
