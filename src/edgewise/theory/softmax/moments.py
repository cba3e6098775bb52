"""Moments of a softmax over Gaussian scores, exact at finite n, for arrays of states.

Up to v = 256, rho >= -0.05 and a million tokens the values come from a shipped table, within 1e-4 relative of
the converged quadrature (tests/theory/softmax/test_moments.py); any other state goes to the quadrature itself.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput, SearchBudget
from edgewise.theory.softmax.integrals import SoftmaxMoments, quadrature_moments
from edgewise.theory.softmax.table import LARGEST_TOKENS, LARGEST_VARIANCE, LOWEST_CORRELATION, TokenSplines

Names = tuple[str, ...]
SECONDS = 0.15  # about, for one state by quadrature: 0.03 to 0.3
ROUNDING = 1e-9  # a correlation this little above 1 is the caller's rounding, not an error


class OverlapMoments(NamedTuple):
    """The five moments the simplex recursion needs, each of the shape of its arguments."""

    s2: Array
    s11: Array
    chord: Array
    r2: Array
    t11: Array


def exact_moments(
    variance: Array, correlation: Array, tokens: int, budget: SearchBudget | None = None
) -> OverlapMoments:
    """Return the moments at this very length."""
    return moment_table(tokens).overlaps(variance, correlation, budget)


@lru_cache(maxsize=64)
def moment_table(tokens: int) -> MomentTable:
    """The moments for one number of tokens n >= 1, cached."""
    if not tokens >= 1 or int(tokens) != tokens:
        raise BadInput(f"tokens must be a whole number >= 1, got {tokens}: pass the number of keys of a row")
    return MomentTable(int(tokens))


class MomentTable:
    """Moments for one number of tokens as functions of variance v and correlation rho, which broadcast."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._splines = TokenSplines(tokens)

    def overlaps(
        self, variance: ArrayLike, correlation: ArrayLike, budget: SearchBudget | None = None
    ) -> OverlapMoments:
        """Return s2, s11, chord, r2, t11: what the recursions need; some 10 ms for 40,000 points."""
        return OverlapMoments(**self._evaluate(variance, correlation, OverlapMoments._fields, budget))

    def moments(self, variance: ArrayLike, correlation: ArrayLike) -> SoftmaxMoments:
        """All ten moments."""
        names = tuple(field.name for field in fields(SoftmaxMoments))
        return SoftmaxMoments(**self._evaluate(variance, correlation, names))

    def entropy(self, variance: ArrayLike, budget: SearchBudget | None = None) -> Array:
        """Return the expected row entropy E[-sum s log s]."""
        return self._evaluate(variance, 1.0, ("entropy",), budget)["entropy"]

    def _evaluate(
        self,
        variance: ArrayLike,
        correlation: ArrayLike,
        names: Names,
        budget: SearchBudget | None = None,
    ) -> dict[str, Array]:
        v, rho = _checked(variance, correlation)
        shape, v, rho = v.shape, v.ravel(), rho.ravel()
        inside = (v <= LARGEST_VARIANCE) & (rho >= LOWEST_CORRELATION) & (2 <= self.tokens <= LARGEST_TOKENS)
        if inside.all():
            values = self._from_table(v, rho, names)
        else:
            values = {name: np.empty(v.shape) for name in names}
            self._fill(values, inside, self._from_table(v[inside], rho[inside], names))
            if (
                budget is not None
            ):  # also for states that are remembered: a search must end at the same step again
                budget.spend(SECONDS * np.count_nonzero(~inside))
            self._fill(values, ~inside, self._from_quadrature(v[~inside], rho[~inside], names))
        return {name: values[name].reshape(shape) for name in names}

    def _from_table(self, v: Array, rho: Array, names: Names) -> dict[str, Array]:
        if not v.size:
            return dict.fromkeys(names, v)
        if names == ("entropy",):
            return self._splines.entropy(v)
        few = names == OverlapMoments._fields
        return self._splines.overlaps(v, rho) if few else self._splines.everything(v, rho)

    def _from_quadrature(self, v: Array, rho: Array, names: Names) -> dict[str, Array]:
        states = [_one_state(float(a), float(b), self.tokens) for a, b in zip(v, rho, strict=True)]
        return {name: np.array([getattr(state, name) for state in states]) for name in names}

    @staticmethod
    def _fill(values: dict[str, Array], where: NDArray[np.bool_], part: dict[str, Array]) -> None:
        for name, value in values.items():
            value[where] = part[name]


@lru_cache(maxsize=65536)
def _one_state(variance: float, correlation: float, tokens: int) -> SoftmaxMoments:
    return quadrature_moments(variance, correlation, tokens)


def _checked(variance: ArrayLike, correlation: ArrayLike) -> tuple[Array, Array]:
    v, rho = np.broadcast_arrays(np.asarray(variance, np.float64), np.asarray(correlation, np.float64))
    for name, value, good, expected in (
        ("variance", v, np.isfinite(v) & (v >= 0), "finite and >= 0"),
        ("correlation", rho, (rho >= -1) & (rho <= 1 + ROUNDING), "in [-1, 1]"),
    ):
        if not good.all():
            bad = value[~good].flat[0]
            raise BadInput(
                f"the softmax logit {name} must be {expected}, got {bad} in {np.count_nonzero(~good)} of "
                f"{good.size} states: check the norms and overlaps, v = sA^2 q (q - p) and rho = p/q"
            )
    return v, np.minimum(rho, 1.0)
