"""Attention rows of many layers at once, rebuilt from copied projections: what they are, and what they do backwards.

    z = scale q.k,  s = softmax(z),  J = diag(s) - s s^T,  gain = |J V e| / |V e|,  e = dLoss/do

Everything is float32 and batched over layers, sequences and heads. Shapes: logits (R, H, Q, K) with masked keys at
-inf, R = layers x sequences; per row (R, H, Q).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.softmax_jacobian import SATURATED, product

HEAD_STATISTICS = ("entropy", "support", "largest_logit", "softmax_gain", "softmax_condition", "saturated", "output")


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """Per row; not-a-number where a row has less than two keys or was not copied."""

    each: Tensor  # (4, R, H, Q): the four below
    probabilities: Tensor  # (R, H, Q, K)

    @property
    def entropy(self) -> Tensor:
        return self.each[0]

    @property
    def largest_logit(self) -> Tensor:
        return self.each[1]

    @property
    def condition(self) -> Tensor:
        return self.each[2]

    @property
    def saturated(self) -> Tensor:
        return self.each[3]


def row_numbers(logits: Tensor, visible: Tensor | None = None) -> RowNumbers:
    """Entropy, largest logit, log condition number of J (within log 2) and saturation of every row.

    kappa(J) ~ s_max (1 - s_max) / (s_min (1 - s_min)), with 1 - s_max summed from the other entries.
    visible: (Q, K) or like the logits, false where these are -inf; None where every key is seen.
    """
    top, place = logits.max(-1, keepdim=True)
    bottom = (logits if visible is None else logits.masked_fill(~visible, math.inf)).amin(-1)
    below = logits - top  # log of unnormalised entries, the largest at 0
    weights = below.exp()
    others = weights.scatter(-1, place, 0.0).sum(-1)
    top, total, log_total = top[..., 0], 1 + others, torch.log1p(others)
    probabilities = weights / total[..., None]
    finite = below if visible is None else below.masked_fill(~visible, 0.0)
    entropy = log_total - (probabilities * finite).sum(-1)
    low = bottom - top - log_total
    condition = others.log() - 2 * log_total - low - torch.log1p(-low.exp())
    saturated = (others < SATURATED * total).to(logits.dtype)
    each = torch.stack([entropy, torch.maximum(top, -bottom), condition, saturated])
    if visible is not None:
        each = torch.where(visible.sum(-1) > 1, each, math.nan)
    return RowNumbers(each, probabilities)


def softmax_gain(probabilities: Tensor, upstream: Tensor, visible: Tensor | None = None) -> Tensor:
    """|J a| / |a| per row for the true backward signal a = V e on the visible keys; not-a-number without a signal."""
    a = upstream if visible is None else upstream.masked_fill(~visible, 0.0)
    size = torch.linalg.vector_norm(a, dim=-1)
    moved = torch.linalg.vector_norm(product(probabilities, a), dim=-1)
    return torch.where(size > 0, moved / size, math.nan)


def by_head(values: Tensor, layers: int) -> Tensor:
    """(..., R, H, Q) to (..., layers, H, rows)."""
    return values.unflatten(-3, (layers, -1)).transpose(-3, -2).flatten(-2)


def nan_max(values: Tensor) -> Tensor:
    """Largest along the last dimension, not-a-number left out; not-a-number where all are."""
    largest = values.nan_to_num(-math.inf, math.inf, -math.inf).amax(-1)
    return torch.where(largest == -math.inf, math.nan, largest)


def seen_by(positions: Tensor, keys: int, causal: bool) -> Tensor | None:
    """(Q, K): which keys a query sees where attention is causal; positions (Q,) of the queries among the keys."""
    return torch.arange(keys, device=positions.device) <= positions[:, None] if causal else None
