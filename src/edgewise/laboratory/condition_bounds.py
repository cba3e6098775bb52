"""The condition number of J H J on the tangent space of the simplex: exact, and three lower bounds [Tarmoun 2025].

    kappa_T(J H J) >= (mu/L) (lambda_1(J) / lambda_{n-1}(J))^2                              by Rayleigh quotients
                   >= (mu/L) [ s_max (1 - s_max) / (s_min (1 - s_min)) ]^2                   the corrected theorem
    (mu/L) (s_max / s_min)^2                                                                  the original, not a bound

where mu <= H <= L on the tangent space. Shapes: rows x (..., n), Hessians H (..., n, n), small n and dense.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise import softmax_jacobian as jacobian


@dataclass(frozen=True, eq=False)
class ConditionBounds:
    """Logarithms, each (...)."""

    exact: Tensor  # log kappa_T(J H J)
    spectral: Tensor  # with the exact eigenvalues of J
    corrected: Tensor  # in closed form
    original: Tensor  # exceeds the exact value for sharp rows

    def violated(self, name: str, slack: float = 1e-6) -> Tensor:
        """True where the lower bound of that name exceeds the exact value."""
        bound: Tensor = getattr(self, name)
        return bound > self.exact + slack


def condition_bounds(log_x: Tensor, hessian: Tensor) -> ConditionBounds:
    """All four at rows log_x (..., n) with Hessians positive on the tangent space.

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
