"""The token-permutation symmetric (simplex) state, its gradient, and one step of a map with its pullback.

Every field is a float64 array over a grid of networks, so that one call serves a phase diagram.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgewise.arrays import Array


class Simplex(NamedTuple):
    """q = x_a.x_a/d and D = q - p with p = x_a.x_b/d: the difference is carried, so rounding decides nothing."""

    norm: Array
    difference: Array

    @property
    def cross(self) -> Array:
        """p, the overlap of two different tokens."""
        return self.norm - self.difference

    @property
    def separation(self) -> Array:
        """1 - c, the cosine's distance from one; 0 where the signal has vanished."""
        alive = np.asarray(self.norm) > 0
        return np.where(alive, self.difference / np.where(alive, self.norm, 1.0), 0.0)

    def scaled(self, factor: Array | float) -> Simplex:
        return Simplex(self.norm * factor, self.difference * factor)

    def plus(self, other: Simplex) -> Simplex:
        return Simplex(self.norm + other.norm, self.difference + other.difference)


class Gradient(NamedTuple):
    """gq = g_a.g_a and gp = g_a.g_b of the gradient at a site."""

    own: Array
    cross: Array

    def scaled(self, own: Array | float, cross: Array | float | None = None) -> Gradient:
        return Gradient(self.own * own, self.cross * (own if cross is None else cross))

    def plus(self, other: Gradient) -> Gradient:
        return Gradient(self.own + other.own, self.cross + other.cross)


Pullback = Callable[[Gradient], Gradient]
WeightGradients = Callable[[Gradient], Mapping[str, Array]]


@dataclass(frozen=True)
class Step:
    """A map applied to a state: the new state, how gradients come back, and statistics of what happened inside."""

    state: Simplex
    pull: Pullback
    statistics: Callable[[], Mapping[str, Array]] = dict  # computed on demand: a phase diagram needs none
    weights: WeightGradients | None = None


def ratio(product: Array | float, factor: Array | float) -> Array:
    """product / factor, 0 where the factor is 0 (and so the product)."""
    safe = np.where(np.asarray(factor) > 0, factor, 1.0)
    return np.where(np.asarray(factor) > 0, product / safe, 0.0)


def chain(first: Pullback, *later: Pullback) -> Pullback:
    """The pullback of maps applied one after another, first map first."""

    def pull(gradient: Gradient) -> Gradient:
        for back in reversed((first, *later)):
            gradient = back(gradient)
        return gradient

    return pull
