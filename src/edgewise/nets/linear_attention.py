"""Linear attention: the softmax replaced by a product of features, at a cost linear in the number of tokens.

    o_a = phi(q_a) . sum_b phi(k_b) v_b^T / (phi(q_a) . sum_b phi(k_b)) ,    phi(x) = elu(sqrt(s) x) + 1

[Katharopoulos 2020]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.errors import BadInput
from edgewise.nets.kernel_shapes import check, spread_heads

CHUNK = 128  # tokens whose causal weights are formed at a time: memory stays linear in length


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Arguments as in torch's softmax attention; a mask must hide keys for all queries alike, dropout must be 0."""
    check(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    if dropout_p:
        raise BadInput("linear attention never forms its weights, so dropout_p must be 0. Drop out its output instead.")
    key, value = spread_heads(query, key, value) if enable_gqa else (key, value)
    s = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    features, keys = (F.elu(math.sqrt(s) * x) + 1 for x in (query, key))
    if attn_mask is not None:
        keys = keys * _visible(attn_mask, keys)
    values = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the last column sums the weights
    mixed = _causal(features, keys, values) if is_causal else features @ (keys.mT @ values)
    return mixed[..., :-1] / mixed[..., -1:]


def _visible(mask: Tensor, keys: Tensor) -> Tensor:
    """(..., S, 1) of ones and zeros; a mask that differs between queries cannot be kept at linear cost."""
    if mask.dtype != torch.bool or (mask.shape[-2] != 1 and not bool((mask == mask[..., :1, :]).all())):
        raise BadInput(
            "linear attention takes a boolean mask that hides keys for all queries alike (padding), or "
            "is_causal=True; got a mask that differs between queries or is not boolean."
        )
    return mask[..., :1, :].mT.to(keys.dtype)


def _causal(features: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Chunk by chunk: what came before through the running sum phi(k) v^T, the chunk itself through its weights."""
    state = torch.zeros_like(keys[..., :1, :].mT @ values[..., :1, :])
    parts = []
    length = max(features.shape[-2], keys.shape[-2])
    for low in range(0, length, CHUNK):
        q, k, v = (x[..., low : low + CHUNK, :] for x in (features, keys, values))
        weights = (q @ k.mT).tril()
        parts.append(q @ state + weights @ v)
        state = state + k.mT @ v
    return torch.cat(parts, -2)
