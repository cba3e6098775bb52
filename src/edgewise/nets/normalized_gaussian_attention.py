"""Gaussian attention with rows that sum to one: softmax with a key-norm bias.

    o_a = sum_b w_ab v_b ,    w_ab = exp(-s |q_a - k_b|^2 / 2) / sum_c exp(-s |q_a - k_c|^2 / 2)

|q_a|^2 cancels in the ratio. Beside `gaussian_attention` it separates the effect of the distance from that of the
missing normaliser.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.nets.gaussian_attention import centred, half_square, squares
from edgewise.nets.kernel_shapes import check, fused_columns, pad_to, spread_heads


def normalized_gaussian_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Weights exp(-scale |q - k|^2 / 2), normalised over keys; arguments as in torch's softmax attention."""
    check(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    key, value = spread_heads(query, key, value) if enable_gqa else (key, value)
    s = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    query, key = centred(query, key)
    ones = torch.ones_like(query[..., :1]).expand(*query.shape[:-1], squares(query.dtype))
    q, k = torch.cat([query, ones], -1), torch.cat([key, -half_square(key)], -1)  # q.k is -|q - k|^2/2 + |q|^2/2
    columns = fused_columns(max(q.shape[-1], value.shape[-1]), query)
    q, k, v = (pad_to(x, columns) for x in (q, k, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=s)
    return mixed[..., : value.shape[-1]]
