"""Gaussian averages of activations: everything the length and correlation maps need, vectorised.

For u = sqrt(q) z and a pair (u, u') with variance q and correlation c = 1 - e:

    square  E phi(u)^2        product  E phi(u) phi(u')        chord  (square - product) / (q e)
    slope_square  E phi'^2    slope_product  E phi' phi'       = d product / d(q c)   [Price 1958]

Linear, ReLU, leaky ReLU, squared ReLU, erf and sine are closed forms; the rest are quadrature, through a
table where speed matters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgewise.activations import LEAKY_SLOPE, leaky_slope, torch_activation
from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.nouns import knobs
from edgewise.theory.averages.closed_forms import ErrorFunction, Rectifier, Sine, SquaredRectifier
from edgewise.theory.averages.functions import SMOOTH, from_callable
from edgewise.theory.averages.quadrature import Quadrature

_CLOSED: dict[str, Callable[[], Any]] = {
    "linear": lambda: Rectifier(1.0),
    "relu": lambda: Rectifier(0.0),
    "leaky_relu": lambda: Rectifier(LEAKY_SLOPE),
    "erf": ErrorFunction,
    "relu2": SquaredRectifier,
    "sin": Sine,
}


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
        """Whether phi'' is a function (no kink)."""
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


def activation(kind: str | Callable[[Any], Any] | Activation) -> Activation:
    """The activation of a name ("leaky_relu:0.2" sets the slope) or of a numpy or torch callable; cached."""
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
        return Activation(kind, Quadrature(SMOOTH[kind](), kind))
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
