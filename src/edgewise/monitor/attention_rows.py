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

from edgewise.softmax_jacobian import SATURATED

HEAD_STATISTICS = (
    "entropy",
    "support",
    "largest_logit",
    "softmax_gain",
    "softmax_condition",
    "saturated",
    "output",
)


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """Per row; not-a-number where a row has less than two keys or was not copied."""

    each: Tensor  # (6, R, H, Q): entropy, support, saturation, gain, log condition number, largest logit
    probabilities: Tensor  # (R, H, Q, K)

    @property
    def gain(self) -> Tensor:
        """Where `softmax_gain` writes to."""
        return self.each[3]


def row_numbers(logits: Tensor, visible: Tensor | None = None) -> RowNumbers:
    """Entropy, largest logit, log condition number of J (within log 2) and saturation of every row; no gain yet.

    kappa(J) ~ s_max (1 - s_max) / (s_min (1 - s_min)), with 1 - s_max summed from the other entries.
    logits: written over. visible: (Q, K) or like the logits, false where these are -inf; None where every key is seen.
    """
    each = logits.new_empty(6, *logits.shape[:-1])
    entropy, support, saturated, _, condition, largest = each.unbind()
    top, place = logits.max(-1, keepdim=True)
    bottom = (logits if visible is None else logits.masked_fill(~visible, math.inf)).amin(-1)
    below = logits.sub_(top)  # log of unnormalised entries, the largest at 0
    weights = below.exp()
    others = weights.scatter(-1, place, 0.0).sum(-1)
    top, total, log_total = top[..., 0], 1 + others, torch.log1p(others)
    probabilities = weights.div_(total[..., None])
    finite = below if visible is None else below.masked_fill_(~visible, 0.0)
    torch.sub(log_total, finite.mul_(probabilities).sum(-1), out=entropy)
    torch.exp(entropy, out=support)
    torch.maximum(top, -bottom, out=largest)
    low = bottom.sub_(top).sub_(log_total)
    torch.log(others, out=condition).sub_(log_total, alpha=2).sub_(low).sub_(low.exp().neg_().log1p_())
    torch.lt(others, total.mul_(SATURATED), out=saturated)
    if visible is not None:
        each.masked_fill_(visible.sum(-1) < 2, math.nan)
    return RowNumbers(each, probabilities)


def softmax_gain(probabilities: Tensor, upstream: Tensor, visible: Tensor | None, out: Tensor) -> Tensor:
    """|J a| / |a| per row for the true backward signal a = V e on the visible keys; not-a-number (0/0) without one.

    upstream: a, written over.
    """
    a = upstream if visible is None else upstream.masked_fill_(~visible, 0.0)
    size = torch.linalg.vector_norm(a, dim=-1)
    a.sub_((probabilities * a).sum(-1, keepdim=True)).mul_(probabilities)
    return torch.div(torch.linalg.vector_norm(a, dim=-1), size, out=out)


def by_head(values: Tensor, layers: int) -> Tensor:
    """(..., R, H, Q) to (..., layers, H, rows)."""
    return values.unflatten(-3, (layers, -1)).transpose(-3, -2).flatten(-2)


def nan_mean(values: Tensor) -> Tensor:
    """Mean along the last dimension, not-a-number left out; torch's own takes half as many calls again."""
    return values.nansum(-1).div_((values == values).sum(-1))


def nan_max(values: Tensor) -> Tensor:
    """Largest along the last dimension, not-a-number left out; not-a-number where all are."""
    largest = values.nan_to_num(-math.inf, math.inf, -math.inf).amax(-1)
    return largest.masked_fill_(largest == -math.inf, math.nan)


def seen_by(positions: Tensor, keys: int, causal: bool) -> Tensor | None:
    """(Q, K): which keys a query sees where attention is causal; positions (Q,) of the queries among the keys."""
    return torch.arange(keys, device=positions.device) <= positions[:, None] if causal else None
