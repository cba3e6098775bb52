"""Activations as pointwise functions: value, slope and curvature, of the smooth names and of a user's callable.

A callable of numpy or torch is tried: its derivatives, its kinks and creases, and up to which variance it is resolved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.theory.averages.gaussian_mean import REACH, Function, Grain, mean

_RESOLVED = 1e-7
_WINDOW, _CELLS = 64.0, 4096  # where corners are looked for


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


def expit(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    # far left the exponential is infinite and the quotient 0, as it should be
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def ndtr(x: Array) -> Array:
    """Return the normal distribution function."""
    from scipy import special  # half a second that reading a shipped table does not need

    return np.asarray(special.ndtr(x))


def _normal_density(x: Array) -> Array:
    return np.asarray(np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi))


def _tanh_slope(x: Array) -> Array:
    """1 / cosh^2, written with decaying exponentials: 1 - tanh^2 loses every digit in the tail."""
    t = np.exp(-2 * np.abs(x))
    return np.asarray(4 * t / (1 + t) ** 2)


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


SMOOTH: dict[str, Pointwise] = {
    "tanh": Pointwise(np.tanh, _tanh_slope, lambda x: -2 * np.tanh(x) * _tanh_slope(x)),
    "gelu": Pointwise(
        lambda x: x * ndtr(x),
        lambda x: ndtr(x) + x * _normal_density(x),
        lambda x: (2 - x**2) * _normal_density(x),
    ),
    "gelu_tanh": _gelu_tanh(),
    "quick_gelu": _swish(1.702),
    "silu": _swish(1.0),
    "sigmoid": Pointwise(
        expit, lambda x: expit(x) * expit(-x), lambda x: expit(x) * expit(-x) * (expit(-x) - expit(x))
    ),
    "softplus": Pointwise(lambda x: np.logaddexp(0.0, x), expit, lambda x: expit(x) * expit(-x)),
}


def from_callable(function: Callable[[Any], Any]) -> Pointwise:
    """Wrap a callable; phi' and phi'' by autograd for torch, by fourth-order central differences for numpy.

    Kinks (jumps of phi') and creases (jumps of phi'') within +-64 are located by bisection; a jump of phi
    itself is rejected, since its slope statistics are infinite.
    """
    is_torch = _takes_torch(function)
    value = (
        _torch_derivative(function, 0)
        if is_torch
        else (lambda x: np.asarray(function(np.asarray(x, dtype=float)), dtype=float))
    )
    probe = np.linspace(-4.0, 4.0, 7)
    values = value(probe)
    elementwise = values.shape == probe.shape and np.allclose(value(probe[2:4]), values[2:4], rtol=1e-6)
    if not elementwise or not np.all(np.isfinite(values)) or np.ptp(values) == 0:
        raise BadInput(
            f"the activation maps {probe} to {values}: expected an elementwise function, finite and not "
            "constant; give a numpy or torch callable of one argument"
        )
    if jumps := _jumps(value, 18):
        raise BadInput(
            f"the activation jumps at x = {jumps[0]:.6g}: expected a continuous function, because chi_1 is "
            "infinite for a jump; use a steep continuous one instead"
        )
    kinks = _jumps(lambda x: (value(x + 1e-7) - value(x - 1e-7)) / 2e-7, 18)
    if is_torch:
        slope, curvature = _torch_derivative(function, 1), _torch_derivative(function, 2)
    else:
        slope, curvature = _differences(value, kinks)
    plain = Pointwise(value, slope, None if kinks else curvature, kinks, _creases(value, kinks))
    return _with_resolution(plain)


def _takes_torch(function: Callable[[Any], Any]) -> bool:
    import torch

    try:
        # a numpy function may accept a plain tensor, but not one that carries a gradient
        values = function(torch.linspace(-1, 1, 3, dtype=torch.float64).requires_grad_())
        return isinstance(values, torch.Tensor) and values.requires_grad
    except (TypeError, AttributeError, RuntimeError, ValueError):
        return False  # a numpy function: its values are checked next


def _torch_derivative(function: Callable[[Any], Any], order: int) -> Function:
    import torch

    def evaluate(x: Array) -> Array:
        t = torch.from_numpy(np.array(x, dtype=float)).requires_grad_(order > 0)
        y = function(t)
        for k in range(order):
            if not y.requires_grad:  # a polynomial of lower degree
                return np.zeros(np.shape(x))
            (y,) = torch.autograd.grad(y.sum(), t, create_graph=k + 1 < order)
        return np.asarray(y.detach().numpy())

    return evaluate


def _differences(value: Function, kinks: tuple[float, ...]) -> tuple[Function, Function]:
    """Fourth-order central differences whose step never reaches across a kink."""

    def step(x: Array, widest: float) -> Array:
        h = widest * np.maximum(1.0, 1e-3 * np.abs(x))
        for kink in kinks:
            h = np.minimum(h, np.maximum(0.45 * np.abs(x - kink), 1e-8))
        return np.asarray(h)

    def slope(x: Array) -> Array:
        h = step(x, 1e-3)
        near, far = value(x + h) - value(x - h), value(x + 2 * h) - value(x - 2 * h)
        return np.asarray((8 * near - far) / (12 * h))

    def curvature(x: Array) -> Array:
        h = step(x, 3e-3)
        near, far = value(x + h) + value(x - h), value(x + 2 * h) + value(x - 2 * h)
        return np.asarray((16 * near - far - 30 * value(x)) / (12 * h**2))

    return slope, curvature


def _creases(value: Function, kinks: tuple[float, ...]) -> tuple[float, ...]:
    """Jumps of the second difference quotient that are not kinks, above its rounding noise."""
    d = 5e-5
    noise = 1e-2 * float(np.max(np.abs(value(np.linspace(-4.0, 4.0, 99)))))
    jumps = _jumps(lambda x: (value(x + d) - 2 * value(x) + value(x - d)) / d**2, 6, noise)
    return tuple(x for x in jumps if all(abs(x - k) > 0.05 for k in kinks))


def _jumps(function: Function, halvings: int, noise: float = 0.0) -> tuple[float, ...]:
    """Return where f jumps: cells of a grid whose change stays when they are halved again and again."""
    edges = np.linspace(-_WINDOW, _WINDOW, _CELLS + 1) + 1e-4 * np.pi  # off the round numbers that kinks like
    with np.errstate(over="ignore", invalid="ignore"):
        values = function(edges)
    scale = float(np.median(np.abs(values))) + float(np.max(np.abs(values[np.abs(edges) < 4])))
    change = np.abs(np.diff(values))
    suspect = change > max(1e-3 * scale, noise)
    left, right, start = edges[:-1][suspect], edges[1:][suspect], change[suspect]
    for _ in range(halvings):
        middle = (left + right) / 2
        low = np.abs(function(middle) - function(left)) >= np.abs(function(right) - function(middle))
        left, right = np.where(low, left, middle), np.where(low, middle, right)
    jumped = np.abs(function(right) - function(left)) > np.maximum(0.1 * start, noise)
    digits = 6 if halvings > 10 else 3
    return tuple(dict.fromkeys(float(np.round(x, digits)) + 0.0 for x in (left[jumped] + right[jumped]) / 2))


def _with_resolution(pointwise: Pointwise) -> Pointwise:
    """Refine the panels until phi is resolved at moderate variance, then find up to which variance it is."""
    for halvings in range(11):
        finer = replace(pointwise, scale=0.5 ** (halvings + 1))
        if all(_is_resolved(finer, q) for q in (1e-2, 1.0)):
            lengths = 10.0 ** np.arange(1, 17)
            resolved = [_is_resolved(finer, float(q)) for q in lengths]
            return (
                finer if all(resolved) else replace(finer, limit=float(lengths[resolved.index(False)] / 10))
            )
    raise BadInput(
        "the activation's slope is not resolved at variance 1 by panels of width 0.0005: expected a finite "
        "function that varies more slowly; rescale it"
    )


def _is_resolved(pointwise: Pointwise, q: float) -> bool:
    """Eight and twelve nodes per panel agree on E phi^2 and E phi'^2, and nothing is left beyond them."""
    return all(_agrees(f, q, pointwise.grain) for f in (pointwise.value, pointwise.slope))


def _agrees(function: Function, q: float, grain: Grain) -> bool:
    edge = REACH * np.array([-1.0, 1.0]) * q**0.5
    with np.errstate(all="ignore"):  # an overflow is the answer no
        coarse, fine = (float(mean(lambda x: function(x) ** 2, q, grain, order)) for order in (8, 12))
        tail = float(np.max(function(edge) ** 2)) * float(np.exp(-(REACH**2) / 2))
    return abs(coarse - fine) <= _RESOLVED * fine and tail <= _RESOLVED * fine
