"""Attention rows under gradient flow are a replicator equation: coupled through shared keys, decoupled in a limit.

With a frozen value and loss l_i(s_i) per sample [Tarmoun 2025], gradient flow on the prompt moves the rows by

    s_j' = - J(s_j) K_j sum_i K_i^T J(s_i) grad l_i(s_i)                       always
    x'   = - kappa J(x)^2 grad l(x)                    where K_i K_j^T = delta_ij kappa I, which needs d >= N n
    x'   = - J(x) grad l(x)                            natural gradient on the logits: one J, not two

The flow stops at interior points exactly if grad l is constant: KKT points of min l over the simplex. Linearized on the
tangent space it is -kappa J^2 H, with the spectrum of -kappa J H J, the Hessian of l(softmax(z)): stability is the sign
of H alone (congruence), J sets only the speed. Missing entries are of second order: they die like 1/t. With
mu <= H <= L on the tangent space the condition number of J H J there has three lower bounds [Tarmoun 2025]:

    kappa_T(J H J) >= (mu/L) (lambda_1(J) / lambda_{n-1}(J))^2                  by Rayleigh quotients
                   >= (mu/L) [ s_max (1 - s_max) / (s_min (1 - s_min)) ]^2       the corrected theorem
    (mu/L) (s_max / s_min)^2                                                      the original, not a bound

Shapes: rows s (N, n) or one row (n,), gradients alike; keys (N, n, d); Hessians H (..., n, n), small n and dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from edgewise import softmax_jacobian as jacobian
from edgewise.errors import BadInput
from edgewise.laboratory.descent import flow
from edgewise.laboratory.prompt_attention import SQUARED, PromptAttention, row_slope
from edgewise.softmax_jacobian import product, tangent_hessian

Slope = Callable[[Tensor], Tensor]  # row(s) s to the gradient of the loss in s, of the same shape


def coupled(keys: Tensor, slope: Slope) -> Slope:
    """Return the field s_j' of all rows at once, for any keys; O(N n d)."""

    def field(s: Tensor) -> Tensor:
        pull = torch.einsum("ijd,ij->d", keys, product(s, slope(s)))
        return -product(s, keys @ pull)

    return field


def decoupled(slope: Slope, scale: float = 1.0) -> Slope:
    """Return x' = -kappa J(x)^2 grad l(x), each row for itself: replicators of fitness -kappa J grad l."""
    return lambda x: -scale * product(x, product(x, slope(x)))


def natural(slope: Slope) -> Slope:
    """Return the field x' = -J(x) grad l(x): mirror descent with the entropy."""
    return lambda x: -product(x, slope(x))


def follow(
    slope: Slope,
    start: Tensor,
    times: Sequence[float],
    scale: float | Tensor = 1.0,
    squared: bool = True,
    tolerance: float = 1e-10,
) -> Tensor:
    """log x(t) of the decoupled flow (or of the natural one), (times, ..., n), integrated in logits.

    z' = -kappa J(x) grad l or -grad l with x = softmax(z): the simplex is kept exactly and small entries keep
    their digits. scale: kappa, or K K^T (n, n) of the keys of one row, with which it is the flow of the prompt itself.
    """

    def field(z: Tensor) -> Tensor:
        x = torch.softmax(z, -1)
        g = slope(x)
        if not squared:
            return -(g - g.mean(-1, keepdim=True))
        pull = product(x, g)
        return -pull @ scale if isinstance(scale, Tensor) else -scale * pull

    return torch.log_softmax(flow(field, start.log(), times, tolerance), -1)


def prompt_flow(model: PromptAttention, V: Tensor, p: Tensor, times: Sequence[float]) -> Tensor:
    """Rows (times, N, n) of the gradient flow on the prompt itself, p' = -grad_p, to compare with."""
    path = flow(lambda q: -model.gradients(q, V)[0], p, times)
    return torch.stack([model.log_rows(q).exp() for q in path])


def output_slope(model: PromptAttention, V: Tensor) -> Slope:
    """grad l_i(s_i) = X_i V (V^T X_i^T s_i - y_i) of the squared loss."""
    return row_slope(model, SQUARED, V)


@dataclass(frozen=True)
class Coherence:
    """How far keys are from K_i K_j^T = delta_ij kappa I, seen through the softmax (constants are invisible to it)."""

    scale: float  # kappa, the mean
    deviation: float  # |P (K K^T - kappa I) P| / kappa: the decoupled field is wrong by at most half of it
    largest_entry: float  # largest |cos| of two different centered keys, the usual coherence


def coherence(keys: Tensor) -> Coherence:
    """Of keys (N, n, d), by singular values of the centered keys; with d < N (n - 1) the deviation is at least 1."""
    N, n, d = keys.shape
    centred = (keys - keys.mean(1, keepdim=True)).reshape(-1, d)
    squares = torch.linalg.svdvals(centred).square()
    dimensions = N * (n - 1)  # of the tangent spaces together
    smallest = float(squares[dimensions - 1]) if dimensions <= len(squares) else 0.0
    scale = float(squares.sum()) / dimensions
    deviation = max(float(squares[0]) - scale, scale - smallest) / scale
    rows = keys.reshape(-1, d)
    unit = rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return Coherence(scale, deviation, float((unit @ unit.T).fill_diagonal_(0.0).abs().amax()))


def orthogonal_keys(
    samples: int, tokens: int, scale: float = 1.0, mixing: float = 0.0, seed: int = 0
) -> Tensor:
    """Keys (N, n, N n) with K_i K_j^T = delta_ij scale I, then mixed by a random matrix of relative size `mixing`."""
    size = samples * tokens
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64) / math.sqrt(size)
    return math.sqrt(scale) * (Q + mixing * noise).reshape(samples, tokens, size)


class Standing(Enum):
    """What a point is to the flow."""

    MOVING = "not stationary: the gradient differs on its support"
    STABLE = "stable: the curvature is positive along every direction of its face, and leaving the face costs"
    UNSTABLE = "unstable: some direction lowers the loss"
    MARGINAL = "undecided to second order: some curvature or some gap is zero"


@dataclass(frozen=True, eq=False)
class Stationary:
    """A point judged; eigenvalues are those of J H J on the tangent space of its face, ascending (rates / kappa)."""

    standing: Standing
    support: Tensor  # (n,) bool
    multiplier: float  # lambda: the common value of the gradient on the support
    spread: float  # largest deviation from it, relative to the size of the gradient
    gaps: Tensor  # grad_k - lambda off the support
    eigenvalues: Tensor
    condition: float

    @property
    def interior(self) -> bool:
        return bool(self.support.all())

    @property
    def kkt(self) -> bool:
        """Stationary, and no missing entry would lower the loss."""
        return self.standing is not Standing.MOVING and bool((self.gaps >= 0).all())


def judge_point(x: Tensor, gradient: Tensor, hessian: Tensor, tolerance: float = 1e-8) -> Stationary:
    """Classify one point of the simplex; entries that are exactly zero are missing."""
    _refuse(x, gradient, hessian)
    support = x > 0
    inside, face = gradient[support], x[support]
    multiplier = float((inside * face).sum())
    size = float(gradient.abs().amax()) or 1.0
    spread = float((inside - multiplier).abs().amax()) / size
    eigenvalues = torch.linalg.eigvalsh(tangent_hessian(face, hessian[support][:, support]))
    gaps = gradient[~support] - multiplier
    condition = (
        float(eigenvalues[-1] / eigenvalues[0]) if len(eigenvalues) and eigenvalues[0] > 0 else math.inf
    )
    standing = _standing(spread, eigenvalues, gaps, tolerance, size)
    return Stationary(standing, support, multiplier, spread, gaps, eigenvalues, condition)


def _standing(spread: float, eigenvalues: Tensor, gaps: Tensor, tolerance: float, size: float) -> Standing:
    if spread > tolerance:
        return Standing.MOVING
    scale = float(eigenvalues.abs().amax()) if len(eigenvalues) else 1.0
    signs = torch.cat([eigenvalues / (scale or 1.0), gaps / size])
    if bool((signs < -tolerance).any()):
        return Standing.UNSTABLE
    return Standing.STABLE if bool((signs > tolerance).all()) else Standing.MARGINAL


def missing_entries(x: Tensor, gradient: Tensor, time: float, scale: float = 1.0) -> Tensor:
    """x_k(t) = |S| / (kappa n (grad_k - lambda) t) for the missing entries of a KKT point, others as they are.

    Needs a loss that is strictly convex on the face S. Under the natural gradient they die like exp(-gap t).
    """
    support = x > 0
    multiplier = float((gradient[support] * x[support]).sum())
    gaps = gradient - multiplier
    if bool((gaps[~support] <= 0).any()) or time <= 0:
        raise BadInput(
            "the law needs a KKT point (a larger gradient on every missing entry) and a positive time."
        )
    return torch.where(support, x, int(support.sum()) / (scale * len(x) * gaps * time))


def _refuse(x: Tensor, gradient: Tensor, hessian: Tensor) -> None:
    if x.ndim != 1 or gradient.shape != x.shape or hessian.shape != (len(x), len(x)):
        shapes = ", ".join(str(tuple(t.shape)) for t in (x, gradient, hessian))
        raise BadInput(f"point, gradient and Hessian have shapes {shapes}; expected (n,), (n,), (n, n).")
    if bool((x < 0).any()) or abs(float(x.sum()) - 1) > 1e-9:
        numbers = f"sum {float(x.sum()):.9g} and smallest entry {float(x.min()):.3g}"
        raise BadInput(f"the point must lie on the simplex (probabilities), got {numbers}.")


@dataclass(frozen=True, eq=False)
class ConditionBounds:
    """Logarithms, each (...)."""

    exact: Tensor  # log kappa_T(J H J)
    spectral: Tensor  # with the exact eigenvalues of J
    corrected: Tensor  # in closed form
    original: Tensor  # exceeds the exact value for sharp rows

    def violated(self, name: str, slack: float = 1e-6) -> Tensor:
        """Return at which points the lower bound of that name exceeds the exact value."""
        bound: Tensor = getattr(self, name)
        return bound > self.exact + slack


def condition_bounds(log_x: Tensor, hessian: Tensor) -> ConditionBounds:
    """Return all four at rows log_x (..., n) with Hessians positive on the tangent space.

    The exact value is the square of the condition number of R Q^T J Q, R^T R = Q^T H Q: half the digits are lost of
    what the product itself would lose.
    """
    x = log_x.exp()
    n = x.shape[-1]
    Q = jacobian.helmert(n)
    inner = Q.T @ hessian @ Q
    R = torch.linalg.cholesky(inner).transpose(-1, -2)
    J = torch.diag_embed(x) - x[..., :, None] * x[..., None, :]
    singular = torch.linalg.svdvals(R @ (Q.T @ J @ Q))
    curvature = torch.linalg.eigvalsh(inner)
    share = (curvature[..., 0] / curvature[..., -1]).log()
    rows = jacobian.checked(log_x)
    return ConditionBounds(
        exact=2 * (singular[..., 0].log() - singular[..., -1].log()),
        spectral=share + 2 * jacobian.extremes_of_rows(rows).condition,
        corrected=share + 2 * jacobian.condition_estimate(rows),
        original=share + 2 * (rows.amax(-1) - rows.amin(-1)),
    )


def random_cases(count: int, n: int, sharpness: float, curvature: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows softmax(sharpness N(0,1)) and Hessians A^T A + I with A ~ curvature N(0,1): at least 1."""
    generator = torch.Generator().manual_seed(seed)
    z = sharpness * torch.randn(count, n, generator=generator, dtype=torch.float64)
    A = curvature * torch.randn(count, n, n, generator=generator, dtype=torch.float64)
    return torch.log_softmax(z, -1), A.transpose(-1, -2) @ A + torch.eye(n, dtype=torch.float64)
