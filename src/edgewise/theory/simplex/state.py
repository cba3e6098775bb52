"""The state of tokens that are all alike (a simplex), its gradient, and the record of one step with its pullback.

Every field is a float64 array over a grid of networks, so that one call serves a phase diagram.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import SearchBudget
from edgewise.theory.softmax.moments import OverlapMoments, exact_moments


class SimplexState(NamedTuple):
    """q = x_a.x_a/d and D = q - p with p = x_a.x_b/d: the difference is carried, so rounding decides nothing."""

    norm: Array
    difference: Array

    @property
    def cross(self) -> Array:
        """p, the overlap of two different tokens."""
        return self.norm - self.difference

    @property
    def separation(self) -> Array:
        """1 - c, the cosine's distance from one; 0 if the signal has vanished."""
        alive = np.asarray(self.norm) > 0
        return np.where(alive, self.difference / np.where(alive, self.norm, 1.0), 0.0)

    def scaled(self, factor: Array | float) -> SimplexState:
        return SimplexState(self.norm * factor, self.difference * factor)

    def plus(self, other: SimplexState) -> SimplexState:
        return SimplexState(self.norm + other.norm, self.difference + other.difference)


class Gradient(NamedTuple):
    """gq = g_a.g_a and gp = g_a.g_b of the gradient at a site."""

    own: Array
    cross: Array

    def scaled(self, own: Array | float, cross: Array | float | None = None) -> Gradient:
        return Gradient(self.own * own, self.cross * (own if cross is None else cross))

    def plus(self, other: Gradient) -> Gradient:
        return Gradient(self.own + other.own, self.cross + other.cross)


Moments = Callable[[Array, Array, int, SearchBudget | None], OverlapMoments]
Pullback = Callable[[Gradient], Gradient]
WeightGradients = Callable[[Gradient], Mapping[str, Array]]


@dataclass(frozen=True)
class Setting:
    """What every layer needs besides its gains."""

    tokens: int
    width: int
    moments: Moments = exact_moments  # for comparison a closure may take its place
    budget: SearchBudget | None = None


@dataclass(frozen=True)
class SimplexStep:
    """A map applied to a state: the new state, how gradients come back, and statistics of what happened inside."""

    state: SimplexState
    pull: Pullback
    statistics: Callable[[], Mapping[str, Array]] = dict  # computed on demand: a phase diagram needs none
    weights: WeightGradients | None = None


def ratio(product: Array | float, factor: Array | float) -> Array:
    """Return product / factor, and 0 if the factor is 0 (and so the product)."""
    safe = np.where(np.asarray(factor) > 0, factor, 1.0)
    return np.where(np.asarray(factor) > 0, product / safe, 0.0)


def chain(first: Pullback, *later: Pullback) -> Pullback:
    """Return the pullback of maps applied one after another, first map first."""

    def pull(gradient: Gradient) -> Gradient:
        for back in reversed((first, *later)):
            gradient = back(gradient)
        return gradient

    return pull
