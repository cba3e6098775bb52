"""Softmax regression: one attention layer that must learn a linear map, with finite data and in the limit.

    ŷ_i = V C_i ,   C_i = Σ_j σ_j(x_iᵀ A x_j) x_j ,   L_n = 1/(2n) Σ_i ‖y_i − ŷ_i‖²           [Goel 2026]

with x_j ~ N(0, Σ) in R^d and y_j = M x_j + noise in R^m. Tilting a Gaussian moves its mean to Σ Aᵀ x_i, so that for
n → ∞ the layer is linear in x and quartic in (V, A): L = ½ ‖(M − VΣAᵀ) Σ^{1/2}‖² + m noise²/2.

Structure-aware gradient descent on it has a switch for each part [Goel 2026; constants ours]. In whitened variables
Ṽ = VΣ^{1/2}, Ã = Σ^{1/2}AΣ^{1/2}, M̃ = MΣ^{1/2} the population problem is the factorization ½‖M̃ − ṼÃᵀ‖². Gradient
descent there is preconditioned descent here: V − η ∇_V Σ⁻¹, A − η Σ⁻¹ ∇_A Σ⁻¹.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput

LOST = 1e60  # entries beyond this are divergence; their products still fit a double


class Parameters(NamedTuple):
    """The layer: `value` V (outputs, width) and `score` A (width, width)."""

    value: Array
    score: Array


class Objective(Protocol):
    """What descent needs: the covariance Σ it may precondition with, E[y xᵀ], loss and gradient."""

    @property
    def covariance(self) -> Array: ...

    @property
    def correlation(self) -> Array: ...

    def loss(self, at: Parameters) -> float: ...

    def gradient(self, at: Parameters) -> Parameters: ...


@dataclass(frozen=True, eq=False)
class SoftmaxRegression:
    """A problem: covariance Σ (d, d) of the tokens, target map M (m, d), standard deviation of the noise."""

    covariance: Array
    target: Array
    noise: float = 0.0

    def __post_init__(self) -> None:
        covariance, target = np.asarray(self.covariance, float), np.asarray(self.target, float)
        d = covariance.shape[0]
        if covariance.shape != (d, d) or target.ndim != 2 or target.shape[1] != d:
            raise BadInput(
                f"covariance {covariance.shape} and target {target.shape} do not fit: expected (d, d) and (m, d)."
            )
        if not np.allclose(covariance, covariance.T) or np.linalg.eigvalsh(covariance)[0] <= 0:
            raise BadInput(
                "the covariance must be symmetric with positive eigenvalues; add a small multiple of 1."
            )
        if not self.noise >= 0:
            raise BadInput(f"noise is {self.noise}; expected a standard deviation, zero or more.")

    def population(self) -> Population:
        """Return the limit of infinitely many tokens, in closed form."""
        return Population(self.covariance, self.target, self.noise)

    def sample(self, tokens: int, seed: int) -> FiniteSample:
        """Draw n tokens and their targets."""
        if tokens < 2:
            raise BadInput(f"{tokens} tokens are not a sample; expected 2 or more.")
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((tokens, len(self.covariance))) @ np.linalg.cholesky(self.covariance).T
        noise = self.noise * rng.standard_normal((tokens, len(self.target)))
        return FiniteSample(x, x @ self.target.T + noise)


@dataclass(frozen=True, eq=False)
class Population:
    """L(V, A) = ½ ‖(M − VΣAᵀ) Σ^{1/2}‖² + m noise²/2 and its gradients E Σ A Σ, Σ Eᵀ V Σ with E = VΣAᵀ − M."""

    covariance: Array
    target: Array
    noise: float = 0.0

    @property
    def correlation(self) -> Array:
        """E[y xᵀ] = M Σ."""
        return self.target @ self.covariance

    @property
    def floor(self) -> float:
        """The smallest loss there is: the noise alone."""
        return 0.5 * len(self.target) * self.noise**2

    def excess(self, at: Parameters) -> float:
        """Return the loss above the noise, without the cancellation of subtracting it."""
        error = self._error(at)
        return 0.5 * float(np.sum((error @ self.covariance) * error))

    def loss(self, at: Parameters) -> float:
        return self.excess(at) + self.floor

    def gradient(self, at: Parameters) -> Parameters:
        error, sigma = self._error(at), self.covariance
        return Parameters(error @ sigma @ at.score @ sigma, sigma @ error.T @ at.value @ sigma)

    def _error(self, at: Parameters) -> Array:
        return at.value @ self.covariance @ at.score.T - self.target


@dataclass(frozen=True, eq=False)
class FiniteSample:
    """Finite data: `inputs` X (n, d), `targets` Y (n, m); gradients by hand in O(n² d), the Jacobian never formed.

    S = softmax rows, C = S X, R = C Vᵀ − Y, D = R V, Z = S∘(D Xᵀ − rowsum(S∘D Xᵀ)):
    ∇_V = Rᵀ C/n,  ∇_A = Xᵀ Z X/n.
    """

    inputs: Array
    targets: Array

    @property
    def covariance(self) -> Array:
        """Σ̂ = Xᵀ X/n."""
        return self.inputs.T @ self.inputs / len(self.inputs)

    @property
    def correlation(self) -> Array:
        """Yᵀ X/n."""
        return self.targets.T @ self.inputs / len(self.inputs)

    def predict(self, at: Parameters) -> Array:
        """ŷ (n, m)."""
        return self._attend(at, self.inputs)[1] @ at.value.T

    def loss(self, at: Parameters) -> float:
        return 0.5 * float(np.sum((self.predict(at) - self.targets) ** 2)) / len(self.inputs)

    def gradient(self, at: Parameters, queries: NDArray[np.int64] | None = None) -> Parameters:
        """Exact, or of the loss of a few query tokens (their numbers) that attend to all: the SGD of the paper."""
        x = self.inputs if queries is None else self.inputs[queries]
        y = self.targets if queries is None else self.targets[queries]
        rows, mean = self._attend(at, x)
        residual = mean @ at.value.T - y
        direction = residual @ at.value  # D; rowsum(S∘D Xᵀ) = rowsum(D∘C)
        z = direction @ self.inputs.T - np.sum(direction * mean, axis=1, keepdims=True)
        z *= rows
        return Parameters(residual.T @ mean / len(x), x.T @ (z @ self.inputs) / len(x))

    def _attend(self, at: Parameters, queries: Array) -> tuple[Array, Array]:
        rows = queries @ at.score @ self.inputs.T
        rows -= rows.max(axis=1, keepdims=True)
        np.exp(rows, out=rows)  # in place: an n × n copy costs as much as the products
        rows /= rows.sum(axis=1, keepdims=True)
        return rows, rows @ self.inputs


def random_problem(
    width: int,
    outputs: int,
    covariance_condition: float,
    target_condition: float,
    seed: int,
    noise: float = 0.0,
) -> SoftmaxRegression:
    """Σ with log-spaced eigenvalues and det Σ = 1, M with log-spaced singular values from 1 down, random bases."""
    if min(covariance_condition, target_condition) < 1 or min(width, outputs) < 1:
        raise BadInput(
            f"sizes ({width}, {outputs}) must be at least 1, condition numbers ({covariance_condition}, "
            f"{target_condition}) too."
        )
    rng = np.random.default_rng(seed)
    sizes = np.logspace(0.5, -0.5, width, base=covariance_condition) if width > 1 else np.ones(1)
    basis = _rotation(rng, width)
    left, right, rank = _rotation(rng, outputs), _rotation(rng, width), min(width, outputs)
    singular = np.logspace(0.0, -1.0, rank, base=target_condition) if rank > 1 else np.ones(1)
    return SoftmaxRegression(
        (basis * sizes) @ basis.T, (left[:, :rank] * singular) @ right[:, :rank].T, noise
    )


def gaussian_start(problem: SoftmaxRegression, deviation: float, seed: int) -> Parameters:
    """V and A with independent N(0, deviation²) entries."""
    m, d = problem.target.shape
    rng = np.random.default_rng(seed)
    return Parameters(deviation * rng.standard_normal((m, d)), deviation * rng.standard_normal((d, d)))


def _rotation(rng: np.random.Generator, size: int) -> Array:
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


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
        root = (
            covariance_root(objective.covariance) if self.precondition else np.eye(len(objective.covariance))
        )
        inverse = np.linalg.inv(root)
        size = _norm(objective.correlation @ np.linalg.inv(objective.covariance) @ root)
        v, a = start.value @ root, root @ start.score @ root
        while True:
            norm = _norm(a)
            if self.radius is not None and norm > self.radius:
                v, a = v * norm / self.radius, a * self.radius / norm
            here = Parameters(v @ inverse, inverse @ a @ inverse)
            yield here
            slope = objective.gradient(here)
            v, a = self._stepped(v, a, slope.value @ inverse, inverse @ slope.score @ inverse, size)

    def _stepped(
        self, v: Array, a: Array, slope_v: Array, slope_a: Array, target: float
    ) -> tuple[Array, Array]:
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
    root = covariance_root(objective.covariance)
    inverse = np.linalg.inv(root)
    u, s, w = np.linalg.svd(objective.correlation @ inverse, full_matrices=False)
    factor = 1.0 if radius is None else min(1.0, radius / max(np.sqrt(s[0]), 1e-300))
    v = (u * np.sqrt(s)) @ w / factor
    a = (w.T * np.sqrt(s)) @ w * factor
    return Parameters(v @ inverse, inverse @ a @ inverse)


@dataclass(frozen=True)
class RegressionRun:
    """What a run recorded: the loss at each recorded step, and the last point."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    end: Parameters

    def first_below(self, loss: float) -> int | None:
        """Return the first recorded step at or below a loss; None if there is none."""
        return next((t for t, value in zip(self.steps, self.losses, strict=True) if value <= loss), None)

    def rate(self, above: float = 0.0) -> float:
        """Return the geometric factor per step, exp(slope of log loss), fitted by least squares where loss > above."""
        points = [
            (t, np.log(value)) for t, value in zip(self.steps, self.losses, strict=True) if value > above
        ]
        if len(points) < 3:
            raise BadInput(f"only {len(points)} recorded losses above {above}; a rate needs three.")
        t, y = np.array(points).T
        return float(np.exp(np.polyfit(t, y, 1)[0]))


def descend(
    objective: Objective,
    start: Parameters,
    method: Method,
    steps: int,
    *,
    every: int = 1,
    until: float | None = None,
    judge: Objective | None = None,
) -> RegressionRun:
    """Follow a method; record the loss (of `judge`, e.g. the population, if given) every so many steps.

    Stops at a loss below `until`, and where the parameters have run away: the last loss is then infinite.
    """
    measured, times, losses = judge or objective, [], []
    here = start
    with np.errstate(over="ignore", invalid="ignore"):
        for t, here in enumerate(islice(method.path(objective, start), steps + 1)):
            lost = not all(np.max(np.abs(p)) < LOST for p in here)  # also if they are not numbers
            if t % every and t != steps and not lost:
                continue
            times.append(t)
            losses.append(np.inf if lost else measured.loss(here))
            if lost or (until is not None and losses[-1] <= until):
                break
    return RegressionRun(tuple(times), tuple(losses), here)


def covariance_root(covariance: Array) -> Array:
    """Return the symmetric square root."""
    sizes, basis = np.linalg.eigh(covariance)
    if sizes[0] <= 1e-14 * sizes[-1]:
        raise BadInput(
            "the sample covariance is singular: use more tokens than dimensions, or fewer dimensions."
        )
    return np.asarray((basis * np.sqrt(sizes)) @ basis.T)


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, 2))
