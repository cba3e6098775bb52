"""What every attention kernel checks and arranges before it computes."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from edgewise.errors import BadInput

FUSED_MULTIPLE = 8  # head sizes that fused kernels take, except those of a CPU in full precision


def check(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, gqa: bool
) -> None:
    """Shapes that would broadcast to something nobody meant are refused by name."""
    if query.shape[-1] != key.shape[-1]:
        raise BadInput(f"query has head size {query.shape[-1]} and key {key.shape[-1]}; they must be equal.")
    if key.shape[:-1] != value.shape[:-1]:
        raise BadInput(f"key {tuple(key.shape)} and value {tuple(value.shape)} differ before the last dimension.")
    if not gqa and query.shape[:-2] != key.shape[:-2]:
        raise BadInput(
            f"query {tuple(query.shape)} and key {tuple(key.shape)} differ in batch or heads; grouped heads need "
            "enable_gqa=True."
        )
    if mask is not None and is_causal:
        raise BadInput("attn_mask and is_causal=True were both given. Put the causal part into the mask.")
    if not 0.0 <= dropout < 1.0:
        raise BadInput(f"dropout_p must be at least 0 and below 1, got {dropout!r}.")


def spread_heads(query: Tensor, *shared: Tensor) -> list[Tensor]:
    """Keys and values repeated for the query heads that share them."""
    heads, groups = query.shape[-3], shared[0].shape[-3]
    if heads % groups:
        raise BadInput(f"{heads} query heads are not a multiple of {groups} key heads.")
    return [x.repeat_interleave(heads // groups, -3) for x in shared]


def fused_columns(size: int, like: Tensor) -> int:
    """The smallest head size from this one on for which torch has a fused kernel."""
    if like.device.type == "cpu" and like.element_size() >= 4:
        return size
    return FUSED_MULTIPLE * math.ceil(size / FUSED_MULTIPLE)


def pad_to(x: Tensor, columns: int) -> Tensor:
    """Zeros to the right, up to this many columns."""
    return F.pad(x, (0, columns - x.shape[-1]))
