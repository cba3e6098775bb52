"""Where the replicator flow x' = -kappa J(x)^2 grad l(x) stops, whether it stays, and how fast it gets there.

Interior points are stationary exactly where grad l is constant: KKT points of min l over the simplex. Linearized on
the tangent space the flow is -kappa J^2 H, with the spectrum of -kappa J H J, the Hessian of l(softmax(z)): stability
is the sign of H alone (congruence), J sets only the speed. Missing entries are of second order: they die like 1/t.
Shapes: one row x (n,), gradient (n,), Hessian H (n, n); small n, dense matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from edgewise.errors import BadInput
from edgewise.softmax_jacobian import tangent_hessian


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
