"""Whose softmax moments the recursion uses: the exact ones, or a published approximation of them, for comparison."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgewise.errors import BadInput
from edgewise.theory.softmax.closures import large_n, random_energy
from edgewise.theory.softmax.moments import OverlapMoments
from edgewise.theory.softmax.quadrature import SoftmaxMoments
from edgewise.theory.softmax_attention import Moments, exact
from edgewise.theory.state import Array


def _closure(function: Callable[[Array, Array, int], SoftmaxMoments]) -> Moments:
    def moments(variance: Array, correlation: Array, tokens: int) -> OverlapMoments:
        with np.errstate(over="ignore", invalid="ignore"):  # a closure may overflow: that is its result
            found = function(variance, correlation, tokens)
        return OverlapMoments(*(getattr(found, name) for name in OverlapMoments._fields))

    return moments


def _frozen(variance: Array, correlation: Array, tokens: int) -> OverlapMoments:
    """The exact moments forward, and no gradient through the softmax: R2 = T11 = 0."""
    found = exact(variance, correlation, tokens)
    return found._replace(r2=np.zeros_like(found.r2), t11=np.zeros_like(found.t11))


CLOSURES: dict[str, Moments] = {
    "exact": exact, "large_n": _closure(large_n), "random_energy": _closure(random_energy), "frozen": _frozen,
}  # fmt: skip


def closure_named(name: str) -> Moments:
    """The moments of that name, or a refusal."""
    if name not in CLOSURES:
        raise BadInput(f"closure = {name!r} is not possible: expected {', '.join(CLOSURES)}.")
    return CLOSURES[name]
