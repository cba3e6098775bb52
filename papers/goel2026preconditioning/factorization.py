"""The population problem of softmax regression as a factorization: its regularized loss and stationary points.

In whitened variables (`regression`) the population loss is L = ½‖M̃ − ṼÃᵀ‖². The regularized loss adds what keeps
the two factors of one size [Goel 2026; the constant is ours]:

    Q = ½‖M̃ − ṼÃᵀ‖² + (λ/4)‖ṼᵀṼ − ÃᵀÃ‖² ,
    ∇_Ṽ Q = EÃ + λṼΔ ,   ∇_Ã Q = EᵀṼ − λÃΔ ,   E = ṼÃᵀ − M̃ ,   Δ = ṼᵀṼ − ÃᵀÃ

Its stationary points are balanced (Δ = 0) and take some of the singular triples of M̃: with M̃ = U S Wᵀ and a set
of them, Ṽ = U_set S_set^{1/2} R, Ã = W_set S_set^{1/2} R for any rotation R. All but the full set are strict
saddles, the lowest of which has Q = ½ σ_min(M̃)².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.laboratory.regression import Parameters, SoftmaxRegression, covariance_root

STATIONARY = 1e-8  # gradients below this share of ‖M̃‖^{3/2}, the size they have at an ordinary point
FLAT = 1e-7  # curvatures below this share of ‖M̃‖ are rounding


@dataclass(frozen=True, eq=False)
class Factorization:
    """The whitened target M̃ (m, d) with m ≤ d, and the weight λ of the regularizer; λ = 0 is L itself."""

    target: Array
    balancing: float = 0.1

    def __post_init__(self) -> None:
        target = np.asarray(self.target, float)
        if target.ndim != 2 or not np.isfinite(target).all():
            raise BadInput(f"target has shape {target.shape}; expected a finite matrix (outputs, width).")
        if not self.balancing >= 0:
            raise BadInput(f"balancing is {self.balancing}; expected zero or more.")
        object.__setattr__(self, "target", target)

    @classmethod
    def of(cls, problem: SoftmaxRegression, balancing: float = 0.1) -> Factorization:
        """M̃ = MΣ^{1/2}."""
        return cls(problem.target @ covariance_root(problem.covariance), balancing)

    def value(self, at: Parameters) -> float:
        """Q at the whitened factors (Ṽ, Ã)."""
        error, unbalance = self._error(at), self._unbalance(at)
        return float(0.5 * np.sum(error**2) + 0.25 * self.balancing * np.sum(unbalance**2))

    def gradient(self, at: Parameters) -> Parameters:
        error, unbalance = self._error(at), self.balancing * self._unbalance(at)
        return Parameters(error @ at.score + at.value @ unbalance, error.T @ at.value - at.score @ unbalance)

    def curvatures(self, at: Parameters) -> Array:
        """Eigenvalues of the Hessian, ascending; its columns are exact directional derivatives of the gradient."""
        size = at.value.size + at.score.size
        columns = [flat(self._along(at, unflat(unit, at))) for unit in np.eye(size)]
        hessian = np.array(columns)
        return np.asarray(np.linalg.eigvalsh((hessian + hessian.T) / 2))

    def lowest_saddle(self) -> float:
        """½ σ_min(M̃)²: below this value of Q every stationary point is a global minimum."""
        return 0.5 * float(np.linalg.svd(self.target, compute_uv=False)[-1]) ** 2

    def stationary(self, triples: Sequence[int], rotation: Array | None = None) -> Parameters:
        """The stationary point made of these singular triples of M̃, from 0; none of them is the origin."""
        u, s, w = np.linalg.svd(self.target, full_matrices=False)
        if any(not 0 <= k < len(s) for k in triples):
            raise BadInput(f"triples {list(triples)} are not all among 0 to {len(s) - 1}.")
        kept = np.isin(np.arange(len(s)), triples) * np.sqrt(s)
        inner = np.eye(self.target.shape[1])[: len(s)] if rotation is None else rotation[: len(s)]
        return Parameters((u * kept) @ inner, (w.T * kept) @ inner)

    def kind(self, at: Parameters) -> str:
        """What a point is: `moving`, `global minimum`, `strict saddle`, or `spurious` (none of these)."""
        size = float(np.linalg.norm(self.target, 2))
        if np.linalg.norm(flat(self.gradient(at))) > STATIONARY * size**1.5:
            return "moving"
        if self.value(at) < 1e-6 * self.lowest_saddle():
            return "global minimum"
        return "strict saddle" if self.curvatures(at)[0] < -FLAT * size else "spurious"

    def _error(self, at: Parameters) -> Array:
        return at.value @ at.score.T - self.target

    def _unbalance(self, at: Parameters) -> Array:
        return at.value.T @ at.value - at.score.T @ at.score

    def _along(self, at: Parameters, way: Parameters) -> Parameters:
        """The derivative of the gradient along a direction."""
        (v, a), (x, y), λ = at, way, self.balancing
        error, turned = self._error(at), x @ a.T + v @ y.T
        unbalance, changed = self._unbalance(at), x.T @ v + v.T @ x - y.T @ a - a.T @ y
        return Parameters(
            turned @ a + error @ y + λ * (x @ unbalance + v @ changed),
            turned.T @ v + error.T @ x - λ * (y @ unbalance + a @ changed),
        )


def whitened(problem: SoftmaxRegression, at: Parameters) -> Parameters:
    """Ṽ = VΣ^{1/2}, Ã = Σ^{1/2}AΣ^{1/2}."""
    root = covariance_root(problem.covariance)
    return Parameters(at.value @ root, root @ at.score @ root)


def flat(at: Parameters) -> Array:
    """Both factors as one vector."""
    return np.concatenate([at.value.ravel(), at.score.ravel()])


def unflat(vector: Array, like: Parameters) -> Parameters:
    """The inverse of `flat`."""
    value, score = np.split(vector, [like.value.size])
    return Parameters(value.reshape(like.value.shape), score.reshape(like.score.shape))


def nearest_stationary(problem: Factorization, start: Parameters, steps: int = 60) -> Parameters:
    """A stationary point near the start, whatever its kind: damped Gauss-Newton on ½‖∇Q‖².

    Descent would slide off saddles; squares of the gradient have them as minima.
    """
    here, damping = flat(start), 1.0
    for _ in range(steps):
        at = unflat(here, start)
        slope = flat(problem.gradient(at))
        hessian = np.array([flat(problem._along(at, unflat(unit, at))) for unit in np.eye(len(here))])
        square = hessian @ hessian
        damping = max(
            damping, np.finfo(float).eps * np.trace(square)
        )  # flat directions leave it singular otherwise
        while True:
            trial = here - np.linalg.solve(square + damping * np.eye(len(here)), hessian @ slope)
            if np.linalg.norm(flat(problem.gradient(unflat(trial, start)))) < np.linalg.norm(slope):
                break
            damping *= 4
            if damping > 1e12:
                return at
        here, damping = trial, damping / 5
    return unflat(here, start)
