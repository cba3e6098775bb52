"""The state of two inputs of a random perceptron, and the orbits made of it.

Shapes: L layers after the input, A angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from edgewise.arrays import Array
from edgewise.errors import BadInput


class PerceptronState(NamedTuple):
    """Length q of two inputs and their separation e = 1 - c: the difference is carried, so rounding decides nothing."""

    length: Array
    separation: Array


def start_state(length: ArrayLike, correlation: ArrayLike) -> PerceptronState:
    """Return two inputs of equal length and this correlation; arrays broadcast."""
    q, c = np.asarray(length, dtype=float), np.asarray(correlation, dtype=float)
    if np.any(q < 0) or np.any(np.abs(c) > 1) or not np.all(np.isfinite(q)):
        raise BadInput(f"start q0 = {q}, c0 = {c}: expected a finite length q0 >= 0 and -1 <= c0 <= 1")
    return PerceptronState(*(np.array(x) for x in np.broadcast_arrays(q, 1.0 - c)))


@dataclass(frozen=True)
class PerceptronOrbit:
    """Per layer, input first: length q, separation 1 - c and |g_l|^2 / |g_L|^2, each (depth + 1, ...)."""

    length: Array
    separation: Array
    gradient: Array

    @property
    def correlation(self) -> Array:
        return np.asarray(1.0 - self.separation)


@dataclass(frozen=True)
class CircleOrbit:
    """A circle per layer, input first. Curvature is infinite after a kinked activation."""

    angles: Array  # (A,)
    width: int
    length: Array  # (L+1,) q
    separation: Array  # (L+1, A): 1 - autocorrelation
    metric: Array  # (L+1,) g, squared speed per neuron
    curvature: Array  # (L+1,) squared curvature k, per neuron

    @property
    def autocorrelation(self) -> Array:
        return np.asarray(1.0 - self.separation)

    @property
    def euclidean_length(self) -> Array:
        """2 pi sqrt(N g), shape (L+1,)."""
        return np.asarray(2 * np.pi * np.sqrt(self.width * self.metric))

    @property
    def grassmannian_length(self) -> Array:
        """Length of the curve of tangent directions, 2 pi sqrt(g k): 2 pi for a plane circle. Shape (L+1,)."""
        return np.asarray(2 * np.pi * np.sqrt(self.metric * self.curvature))
