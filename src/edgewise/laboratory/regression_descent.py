"""Structure-aware gradient descent on softmax regression, each part with a switch [Goel 2026; constants ours].

In whitened variables Ṽ = VΣ^{1/2}, Ã = Σ^{1/2}AΣ^{1/2}, M̃ = MΣ^{1/2} the population problem is the factorization
½‖M̃ − ṼÃᵀ‖². Gradient descent there is preconditioned descent here: V − η ∇_V Σ⁻¹, A − η Σ⁻¹ ∇_A Σ⁻¹.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.laboratory.regression import Objective, Parameters

LOST = 1e60  # entries beyond this are divergence; their products still fit a double


class Method(Protocol):
    """A way down: the points it visits, the start first, without end."""

    def path(self, objective: Objective, start: Parameters) -> Iterator[Parameters]: ...


@dataclass(frozen=True)
class StructureAware:
    """One step, in the scale-invariant form (‖·‖ spectral):

        renormalize   if ‖Ã‖ > ρ:  Ã ← ρÃ/‖Ã‖,  Ṽ ← Ṽ‖Ã‖/ρ                 (the limit's predictor is unchanged)
        balance       Δ = ṼᵀṼ/‖Ṽ‖² − ÃᵀÃ/‖Ã‖²
        Ṽ ← Ṽ − η(G_V/‖Ã‖² + λṼΔ),   Ã ← Ã − η(G_A/‖Ṽ‖² − λÃΔ)

    invariant=False is the first version: Δ = ṼᵀṼ − ÃᵀÃ, no division, η divided by ‖M̃‖. scaled=True is ScaledGD,
    the partner's Gram matrix ÃᵀÃ + ε‖Ã‖²I in place of ‖Ã‖². precondition=False works in the original variables.
    """

    step: float = 0.8
    balancing: float = 0.1
    radius: float | None = 1.0
    precondition: bool = True
    invariant: bool = True
    scaled: bool = False
    damping: float = 1e-6

    def __post_init__(self) -> None:
        if not self.step > 0 or not self.balancing >= 0 or not (self.radius is None or self.radius > 0):
            raise BadInput(
                f"step {self.step} and radius {self.radius} must be positive, balancing {self.balancing} not negative."
            )

    def path(self, objective: Objective, start: Parameters) -> Iterator[Parameters]:
        root = _root(objective.covariance) if self.precondition else np.eye(len(objective.covariance))
        inverse = np.linalg.inv(root)
        size = _norm(objective.correlation @ np.linalg.inv(objective.covariance) @ root)
        v, a = start.value @ root, root @ start.score @ root
        while True:
            v, a = self._renormalized(v, a)
            here = Parameters(v @ inverse, inverse @ a @ inverse)
            yield here
            slope = objective.gradient(here)
            v, a = self._stepped(v, a, slope.value @ inverse, inverse @ slope.score @ inverse, size)

    def _renormalized(self, v: Array, a: Array) -> tuple[Array, Array]:
        size = _norm(a)
        if self.radius is None or size <= self.radius:
            return v, a
        return v * size / self.radius, a * self.radius / size

    def _stepped(self, v: Array, a: Array, slope_v: Array, slope_a: Array, target: float) -> tuple[Array, Array]:
        η, λ = (self.step, self.balancing) if self.invariant else (self.step / target, self.balancing)
        nv, na = (_norm(v), _norm(a)) if self.invariant else (1.0, 1.0)
        if self.scaled:
            ε, d = self.damping, np.eye(len(a))
            slope_v = slope_v @ np.linalg.inv(a.T @ a + ε * _norm(a) ** 2 * d)
            slope_a = slope_a @ np.linalg.inv(v.T @ v + ε * _norm(v) ** 2 * d)
        elif self.invariant:
            slope_v, slope_a = slope_v / na**2, slope_a / nv**2
        unbalance = v.T @ v / nv**2 - a.T @ a / na**2
        return v - η * (slope_v + λ * v @ unbalance), a - η * (slope_a - λ * a @ unbalance)


def spectral_start(objective: Objective, radius: float | None = 1.0) -> Parameters:
    """V, A from one singular value decomposition Ĉ Σ̂^{-1/2} = U S Wᵀ: Ṽ = U S^{1/2} Wᵀ, Ã = W S^{1/2} Wᵀ.

    In the limit VΣAᵀ = M already: what is left is the error of the sample [Goel 2026]. ‖Ã‖ is brought to at most
    `radius`, where the softmax average is still near its limit.
    """
    root = _root(objective.covariance)
    inverse = np.linalg.inv(root)
    u, s, w = np.linalg.svd(objective.correlation @ inverse, full_matrices=False)
    factor = 1.0 if radius is None else min(1.0, radius / max(np.sqrt(s[0]), 1e-300))
    v = (u * np.sqrt(s)) @ w / factor
    a = (w.T * np.sqrt(s)) @ w * factor
    return Parameters(v @ inverse, inverse @ a @ inverse)


@dataclass(frozen=True)
class Descent:
    """What a run recorded: the loss at each recorded step, and the last point."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    end: Parameters

    def first_below(self, loss: float) -> int | None:
        """The first recorded step at or below a loss; None if there is none."""
        return next((t for t, value in zip(self.steps, self.losses, strict=True) if value <= loss), None)

    def rate(self, above: float = 0.0) -> float:
        """The geometric factor per step, exp(slope of log loss), fitted by least squares where loss > above."""
        points = [(t, np.log(value)) for t, value in zip(self.steps, self.losses, strict=True) if value > above]
        if len(points) < 3:
            raise BadInput(f"only {len(points)} recorded losses above {above}; a rate needs three.")
        t, y = np.array(points).T
        return float(np.exp(np.polyfit(t, y, 1)[0]))


def descend(
    objective: Objective, start: Parameters, method: Method, steps: int, *, every: int = 1,
    until: float | None = None, judge: Objective | None = None,
) -> Descent:  # fmt: skip
    """Follow a method; record the loss (of `judge`, e.g. the population, if given) every so many steps.

    Stops at a loss below `until`, and where the parameters have run away: the last loss is then infinite.
    """
    measured, times, losses = judge or objective, [], []
    here = start
    with np.errstate(over="ignore", invalid="ignore"):
        for t, here in enumerate(islice(method.path(objective, start), steps + 1)):
            lost = not all(np.max(np.abs(p)) < LOST for p in here)  # also where they are no numbers
            if t % every and t != steps and not lost:
                continue
            times.append(t)
            losses.append(np.inf if lost else measured.loss(here))
            if lost or (until is not None and losses[-1] <= until):
                break
    return Descent(tuple(times), tuple(losses), here)


def _root(covariance: Array) -> Array:
    """The symmetric square root."""
    sizes, basis = np.linalg.eigh(covariance)
    if sizes[0] <= 1e-14 * sizes[-1]:
        raise BadInput("the sample covariance is singular: use more tokens than dimensions, or fewer dimensions.")
    return np.asarray((basis * np.sqrt(sizes)) @ basis.T)


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, 2))
