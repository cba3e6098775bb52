"""Curvature of prompt attention without a matrix: Hessian products, and the largest eigenvalue.

Shapes as in prompt_attention.py; directions (dp, dV) have the shapes of (p, V). Each product costs O(N n d).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgewise.laboratory.prompt_attention import PromptAttention
from edgewise.softmax_jacobian import product


def hessian_product(model: PromptAttention, p: Tensor, V: Tensor, dp: Tensor, dV: Tensor) -> tuple[Tensor, Tensor]:
    """The exact Hessian of the loss applied to (dp, dV): the derivative of both gradients along it.

    d grad_p = sum_i K_i^T ( dJ a + J da ),  dJ a = ds (a - s.a) - s (ds.a),  a = X V r,  da = X (dV r + V dr)
    d grad_V = dPhi^T r + Phi^T dr
    """
    s, phi, r = _state(model, p, V)
    ds, dphi = _moved_rows(model, s, dp)
    dr = phi @ dV + dphi @ V
    a = torch.einsum("ijd,id->ij", model.tokens, r @ V.T)
    da = torch.einsum("ijd,id->ij", model.tokens, r @ dV.T + dr @ V.T)
    centred = a - (s * a).sum(-1, keepdim=True)
    moved = ds * centred - s * (ds * a).sum(-1, keepdim=True) + product(s, da)
    return torch.einsum("ijd,ij->d", model.keys, moved), dphi.T @ r + phi.T @ dr


def _state(model: PromptAttention, p: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s = model.log_rows(p).exp()
    phi = torch.einsum("ijd,ij->id", model.tokens, s)
    return s, phi, phi @ V - model.targets


def _moved_rows(model: PromptAttention, s: Tensor, dp: Tensor) -> tuple[Tensor, Tensor]:
    """ds = J(s) K dp and dphi = X^T ds."""
    ds = product(s, model.keys @ dp)
    return ds, torch.einsum("ijd,ij->id", model.tokens, ds)


def largest_curvature(model: PromptAttention, theta: Tensor, steps: int = 100, seed: int = 0) -> float:
    """|lambda|_max of the Hessian at theta by power iteration on its products."""

    def apply(vector: Tensor) -> Tensor:
        return model.join(*hessian_product(model, *model.split(theta), *model.split(vector)))

    return power_iteration(apply, len(theta), steps, seed)


def power_iteration(apply: Callable[[Tensor], Tensor], size: int, steps: int = 100, seed: int = 0) -> float:
    """The eigenvalue of largest size of a symmetric map of (size,) vectors; from below."""
    vector = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    value = 0.0
    for _ in range(steps):
        vector = vector / vector.norm()
        image = apply(vector)
        before, value = value, float(image.norm())
        if value == 0 or abs(value - before) <= 1e-12 * value:
            break
        vector = image
    return value
