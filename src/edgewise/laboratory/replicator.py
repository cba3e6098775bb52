"""Attention rows under gradient flow are a replicator equation: coupled through shared keys, decoupled in a limit.

With a frozen value and loss l_i(s_i) per sample [Tarmoun 2025], gradient flow on the prompt moves the rows by

    s_j' = - J(s_j) K_j sum_i K_i^T J(s_i) grad l_i(s_i)                       always
    x'   = - kappa J(x)^2 grad l(x)                    where K_i K_j^T = delta_ij kappa I, which needs d >= N n
    x'   = - J(x) grad l(x)                            natural gradient on the logits: one J, not two

Shapes: rows s (N, n) or one row (n,), gradients alike; keys (N, n, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.laboratory.descent import flow
from edgewise.laboratory.prompt_attention import PromptAttention
from edgewise.softmax_jacobian import product

Slope = Callable[[Tensor], Tensor]  # row(s) s to the gradient of the loss in s, of the same shape


def coupled(keys: Tensor, slope: Slope) -> Slope:
    """The field s_j' of all rows at once, for any keys; O(N n d)."""

    def field(s: Tensor) -> Tensor:
        pull = torch.einsum("ijd,ij->d", keys, product(s, slope(s)))
        return -product(s, keys @ pull)

    return field


def decoupled(slope: Slope, scale: float = 1.0) -> Slope:
    """The field x' = -kappa J(x)^2 grad l(x), each row for itself: replicators of fitness -kappa J(x) grad l(x)."""
    return lambda x: -scale * product(x, product(x, slope(x)))


def natural(slope: Slope) -> Slope:
    """The field x' = -J(x) grad l(x): mirror descent with the entropy."""
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

    def slope(s: Tensor) -> Tensor:
        r = torch.einsum("ijd,ij->id", model.tokens, s) @ V - model.targets
        return torch.einsum("ijd,id->ij", model.tokens, r @ V.T)

    return slope


@dataclass(frozen=True)
class Coherence:
    """How far keys are from K_i K_j^T = delta_ij kappa I, seen through the softmax (constants are invisible to it)."""

    scale: float  # kappa, the mean
    deviation: (
        float  # |P (K K^T - kappa I) P| / kappa: the decoupled field is wrong by at most half this share
    )
    largest_entry: float  # largest |cos| of two different centred keys, the usual coherence


def coherence(keys: Tensor) -> Coherence:
    """Of keys (N, n, d), by the singular values of the centred keys; with d < N (n - 1) the deviation is at least 1."""
    N, n, d = keys.shape
    centred = (keys - keys.mean(1, keepdim=True)).reshape(-1, d)
    squares = torch.linalg.svdvals(centred).square()
    dimensions = N * (n - 1)  # of the tangent spaces together
    smallest = float(squares[dimensions - 1]) if dimensions <= len(squares) else 0.0
    scale = float(squares.sum()) / dimensions
    deviation = max(float(squares[0]) - scale, scale - smallest) / scale
    return Coherence(scale, deviation, _largest_cosine(keys))


def _largest_cosine(keys: Tensor) -> float:
    rows = keys.reshape(-1, keys.shape[-1])
    unit = rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return float((unit @ unit.T).fill_diagonal_(0.0).abs().amax())


def orthogonal_keys(
    samples: int, tokens: int, scale: float = 1.0, mixing: float = 0.0, seed: int = 0
) -> Tensor:
    """Keys (N, n, N n) with K_i K_j^T = delta_ij scale I, then mixed by a random matrix of relative size `mixing`."""
    size = samples * tokens
    generator = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    noise = torch.randn(size, size, generator=generator, dtype=torch.float64) / math.sqrt(size)
    return math.sqrt(scale) * (Q + mixing * noise).reshape(samples, tokens, size)
