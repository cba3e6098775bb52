"""How much a change of W_Q and W_K moves the logits of a head, on a sample of tokens.

    Δz = scale (Δq·k + q·Δk) + scale Δq·Δk ,     E[Δz²] → tr(ΔW_Q C ΔW_Qᵀ K)/d_h + the side of the keys

for independent query and key tokens with C = E[xxᵀ], K = E[kkᵀ]. Here the mean is over true pairs of one sequence
(not masked, at their true distance under rotation), so correlated tokens and rotary positions need no assumption.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from edgewise.optim.query_key import QueryKey, Side
from edgewise.optim.token_sample import TokenRing

Norm = Callable[[Tensor], Tensor]
NUDGE = 1e-2  # of a difference quotient through a norm, relative to its argument


def with_one(x: Tensor) -> Tensor:
    """[x, 1], so that a bias is one more column of the matrix."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def heads_of(x: Tensor, matrix: Tensor) -> Tensor:
    """x (rows, positions, d), matrix (heads, d_h, d + 1) to (rows, heads, positions, d_h)."""
    flat = with_one(x) @ matrix.flatten(0, 1).T
    return flat.unflatten(-1, matrix.shape[:2]).transpose(1, 2)


def change_moments(
    attention: QueryKey, rings: tuple[TokenRing, TokenRing], before: tuple[Tensor, Tensor],
    change: tuple[Tensor, Tensor], norms: tuple[Norm | None, Norm | None],
) -> Tensor:  # fmt: skip
    """(4, heads): sums of u², uw, w² over pairs and their count, where Δz = s u + s² w when the step is scaled by s."""
    sides = (attention.query, attention.key)
    vectors = [_vectors(attention, *parts) for parts in zip(sides, rings, before, change, norms, strict=True)]
    (q, dq), (k, dk) = vectors
    share = attention.share
    k, dk = (t.repeat_interleave(share, 1) if share > 1 else t for t in (k, dk))
    u = (dq @ k.mT + q @ dk.mT) * attention.scale
    w = dq @ dk.mT * attention.scale
    visible = pairs(attention, rings)
    sums = [(part * visible).sum((0, 2, 3)) for part in (u * u, u * w, w * w)]
    return torch.stack([*sums, visible.sum().expand_as(sums[0])])


def pairs(attention: QueryKey, rings: tuple[TokenRing, TokenRing]) -> Tensor:
    """(rows, 1, queries, keys): one where a query may look at a key and both were seen, else zero."""
    filled = [torch.isfinite(ring.tokens).all(-1) for ring in rings]
    allowed = filled[0][:, :, None] & filled[1][:, None, :]
    if attention.causal:
        allowed = allowed & (rings[0].places[:, :, None] >= rings[1].places[:, None, :])
    return allowed[:, None].to(rings[0].tokens.dtype)


def tokens_of(ring: TokenRing, like: Tensor) -> Tensor:
    """The tokens, with zeros where a place is empty or not finite."""
    return torch.nan_to_num(ring.tokens, nan=0.0, posinf=0.0, neginf=0.0).to(like)


def _vectors(
    attention: QueryKey, side: Side, ring: TokenRing, before: Tensor, change: Tensor, norm: Norm | None
) -> tuple[Tensor, Tensor]:
    """Queries or keys and their change, normalized and rotated."""
    both = heads_of(tokens_of(ring, before), torch.cat([before, change]))
    vectors, moved = both.chunk(2, 1)
    if norm is not None:
        vectors, moved = through_norm(norm, vectors, moved, side)
    if attention.rotation is not None:
        vectors, moved = (attention.rotation(t, ring.places) for t in (vectors, moved))
    return vectors, moved


def through_norm(norm: Norm, vectors: Tensor, moved: Tensor, side: Side) -> tuple[Tensor, Tensor]:
    """The norm of the vectors and its derivative along the change, by a central difference."""
    apart = side.norm_of_heads
    one, other = (t if apart else t.transpose(1, 2).flatten(2) for t in (vectors, moved))
    size = one.norm(dim=-1, keepdim=True) / other.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    ε = (NUDGE * size).clamp_max(1e6)  # no change, no slope: the quotient is then zero for any ε
    slope = (norm(one + ε * other) - norm(one - ε * other)) / (2 * ε)
    if apart:
        return norm(one), slope
    back = [t.unflatten(-1, (side.heads, -1)).transpose(1, 2) for t in (norm(one), slope)]
    return back[0], back[1]
