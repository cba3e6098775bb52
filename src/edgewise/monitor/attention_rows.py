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

    entropy: Tensor
    largest_logit: Tensor
    condition: Tensor
    saturated: Tensor
    probabilities: Tensor  # (R, H, Q, K)


def row_numbers(logits: Tensor) -> RowNumbers:
    """Entropy, largest logit, log condition number of J (within log 2) and saturation of every row.

    kappa(J) ~ s_max (1 - s_max) / (s_min (1 - s_min)), with 1 - s_max summed from the other entries.
    """
    visible = logits > -math.inf
    several = visible.sum(-1) > 1
    top = torch.where(several, logits.amax(-1), 0.0)[..., None]
    below = torch.where(visible, logits, -math.inf) - top  # log of unnormalised entries, the largest at 0
    weights = below.exp()
    first = below == 0
    others = torch.where(first, 0.0, weights).sum(-1) + (first.sum(-1) - 1)
    total, log_total = 1 + others, torch.log1p(others)
    probabilities = weights / total[..., None]
    finite = torch.where(visible, below, 0.0)
    entropy = log_total - (probabilities * finite).sum(-1)
    low = finite.amin(-1) - log_total
    condition = others.log() - 2 * log_total - low - torch.log1p(-low.exp())
    size = torch.where(visible, logits.abs(), 0.0).amax(-1)
    saturated = (others < SATURATED * total).to(logits.dtype)
    entropy, size, condition, saturated = (
        torch.where(several, value, math.nan) for value in (entropy, size, condition, saturated)
    )
    return RowNumbers(entropy, size, condition, saturated, probabilities)


def softmax_gain(probabilities: Tensor, upstream: Tensor, visible: Tensor) -> Tensor:
    """|J a| / |a| per row for the true backward signal a = V e on the visible keys; not-a-number without a signal."""
    a = torch.where(visible, upstream, 0.0)
    size = torch.linalg.vector_norm(a, dim=-1)
    moved = torch.linalg.vector_norm(product(probabilities, a), dim=-1)
    return torch.where(size > 0, moved / size, math.nan)


def by_head(values: Tensor, layers: int) -> Tensor:
    """(R, H, Q) to (layers, H, rows)."""
    return values.unflatten(0, (layers, -1)).transpose(1, 2).flatten(2)


def nan_max(values: Tensor) -> Tensor:
    """Largest along the last dimension, not-a-number left out; not-a-number where all are."""
    largest = torch.where(values.isnan(), -math.inf, values).amax(-1)
    return torch.where(largest == -math.inf, math.nan, largest)


def masked(logits: Tensor, positions: Tensor, causal: bool) -> Tensor:
    """Keys after the query at -inf where attention is causal; positions (Q,) of the queries among the keys."""
    if not causal:
        return logits
    later = torch.arange(logits.shape[-1], device=logits.device) > positions[:, None]
    return logits.masked_fill(later, -math.inf)
