"""Products and numbers of J(s) = diag(s) - s s^T that need no eigenvalue. Shapes: rows (..., n)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgewise.softmax_jacobian.rows import count, log_rest

SATURATED = 1e-2  # a row whose largest entry leaves less than this to all others


def product(probabilities: Tensor, vectors: Tensor) -> Tensor:
    """J(s) a = s * (a - s.a), for probabilities and vectors (..., n) that broadcast; differentiable, O(n)."""
    return probabilities * (vectors - (probabilities * vectors).sum(-1, keepdim=True))


def helmert(n: int) -> Tensor:
    """An orthonormal basis of {u : sum u = 0}, columns of (n, n - 1)."""
    k = torch.arange(1, n, dtype=torch.float64)
    Q = torch.triu(torch.ones(n, n - 1, dtype=torch.float64))
    Q[torch.arange(1, n), torch.arange(n - 1)] = -k
    return Q / (k * (k + 1)).sqrt()


def tangent_hessian(x: Tensor, hessian: Tensor) -> Tensor:
    """Q^T J H J Q (..., n - 1, n - 1): the Hessian of l(softmax(z)) at a stationary point, off its null direction.

    Dense, for small n: probabilities x (..., n) and the Hessian H of l, (..., n, n).
    """
    J = torch.diag_embed(x) - x[..., :, None] * x[..., None, :]
    Q = helmert(x.shape[-1])
    return (J @ Q).transpose(-1, -2) @ hessian @ (J @ Q)


def entropy(rows: Tensor) -> Tensor:
    """-sum s log s, in nats; exp of it is the effective number of keys."""
    return -(rows.exp() * rows.clamp_min(-1e300)).sum(-1).clamp_max(0.0)


def saturated(rows: Tensor, limit: float = SATURATED) -> Tensor:
    """True where the largest entry leaves less than `limit` to all other keys."""
    return log_rest(rows) < math.log(limit)


def _complements(rows: Tensor) -> Tensor:
    """1 - s_i, the one of the largest entry summed from the others."""
    rest = log_rest(rows).exp()[..., None]
    return (-torch.expm1(rows)).scatter(-1, rows.argmax(-1, keepdim=True), rest)


def trace(rows: Tensor) -> Tensor:
    """tr J = sum s_i (1 - s_i) = 1 - sum s^2."""
    return (rows.exp() * _complements(rows)).sum(-1)


def frobenius(rows: Tensor) -> Tensor:
    """|J|_F, with |J|_F^2 = sum_i s_i^2 (1 - s_i)^2 + sum_{i != j} s_i^2 s_j^2, the last summed as
    sum_i s_i^2 (sum_j s_j^2 - s_i^2); without the cancellation of sum s^2 - 2 sum s^3 + (sum s^2)^2 in a sharp row.
    """
    s = rows.exp()
    square = s.square()
    top = rows.argmax(-1, keepdim=True)
    below = square.scatter(-1, top, 0.0)
    first = square.gather(-1, top)[..., 0]
    rest = below.sum(-1)
    off = 2 * first * rest + (below * (rest[..., None] - below)).sum(-1)
    return ((s * _complements(rows)).square().sum(-1) + off).sqrt()


def log_determinant(rows: Tensor) -> Tensor:
    """log of the product of the n - 1 nonzero eigenvalues, log n + sum log s_i; nan for a single key."""
    keys = count(rows)
    total = torch.where(torch.isneginf(rows), 0.0, rows).sum(-1) + torch.log(keys.double())
    return torch.where(keys > 1, total, math.nan)
