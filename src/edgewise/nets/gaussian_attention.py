"""Gaussian-kernel attention with the memory of fused softmax attention, as a drop-in for torch's own.

    o_a = sum_b G_ab v_b ,    G_ab = exp(-s |q_a - k_b|^2 / 2) ,    s = scale (1/sqrt(d) unless given)      [Song 2024]

The rows of G are not normalised; s is one over the squared bandwidth. The null key: one more key whose logit is
s |q|^2 / 2 for every query and whose value is zero turns G into a softmax, because every other logit lies below it:

    softmax(q' k'^T s) = G_ab / (1 + sum_c G_ac) for the real keys and 1 / (1 + sum_c G_ac) for the null key.

A column of ones on the null key reads that last number, and the ratio is G v exactly.
Shapes as torch has them: query (..., L, d), key (..., S, d), value (..., S, d_v), mask broadcast to (..., L, S).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.nets.kernel_shapes import check, pad_to, round_up, spread_heads

SQUARES = 2  # columns in which a squared norm is kept, coarse and rest: bfloat16 alone would lose it


def gaussian_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """sum_b exp(-scale |q - k_b|^2 / 2) v_b; arguments as in `torch.nn.functional.scaled_dot_product_attention`.

    A query whose keys are all masked gives zero. Dropout falls on the weights G. For second derivatives choose the
    MATH backend of `torch.nn.attention.sdpa_kernel`: the fused kernels have none.
    """
    check(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    key, value = spread_heads(query, key, value) if enable_gqa else (key, value)
    s = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    query, key = centred(query, key)
    q, k = _queries(query), _keys(key)
    mask = None if attn_mask is None else _mask_with_null(attn_mask)
    if is_causal:  # a query in front of all others sees the null key alone, and moves the diagonal by one
        q = F.pad(q, (0, 0, 1, 0))
    columns = round_up(max(q.shape[-1], value.shape[-1] + 1))
    q, k = pad_to(q, columns), pad_to(k, columns)
    null = F.pad(value.new_ones(*value.shape[:-2], 1, 1), (0, 0, 0, value.shape[-2]))  # 1 for the null key alone
    values = torch.cat([F.pad(value, (0, 0, 1, 0)), null], -1)

    def attend(v: Tensor, drop: float) -> Tensor:
        v = pad_to(v, columns)
        return F.scaled_dot_product_attention(q, k, v, mask, drop, is_causal, scale=s)

    mixed = attend(values, dropout_p)
    share = mixed[..., value.shape[-1], None]
    if dropout_p > 0:  # it may have fallen on the null key: its share is read without dropout
        share = attend(null, 0.0)[..., :1]
    result = mixed[..., : value.shape[-1]] / share
    return result[..., 1:, :] if is_causal else result


def centred(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Both moved by the mean key: distances stay, and a large common mean no longer eats the digits."""
    mean = key.detach().mean(-2, keepdim=True)
    return query - mean, key - mean


def distance_keys(key: Tensor) -> Tensor:
    """Keys with -|k|^2/2 appended, in two columns: their product with (q, 1, 1) is -|q - k|^2/2 + |q|^2/2."""
    return torch.cat([key, -_half_square(key)], -1)


def _queries(query: Tensor) -> Tensor:
    """(q, 1, 1, |q|^2/2): the last two columns meet the null key only."""
    ones = torch.ones_like(query[..., :1]).expand(*query.shape[:-1], SQUARES)
    return torch.cat([query, ones, _half_square(query)], -1)


def _keys(key: Tensor) -> Tensor:
    """The null key (0, 0, 0, 1, 1) first, then (k, -|k|^2/2, 0, 0)."""
    keys = F.pad(distance_keys(key), (0, SQUARES, 1, 0))
    null = F.pad(key.new_ones(SQUARES), (key.shape[-1] + SQUARES, 0))
    first = F.pad(torch.ones_like(keys[..., 1:, :1]), (0, 0, 1, 0))
    return torch.where(first > 0, keys, null)


def _half_square(x: Tensor) -> Tensor:
    """|x|^2/2 as a coarse part and the rest, each in the precision of x."""
    wide = torch.promote_types(x.dtype, torch.float32)
    half = x.to(wide).square().sum(-1, keepdim=True) / 2
    coarse = half.to(x.dtype)
    return torch.cat([coarse, (half - coarse.to(wide)).to(x.dtype)], -1)


def _mask_with_null(mask: Tensor) -> Tensor:
    """The null key is visible in every row."""
    return F.pad(mask, (1, 0), value=True if mask.dtype == torch.bool else 0.0)
