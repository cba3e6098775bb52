"""What is kept of one layer's attention rows: one number per head, over sampled queries.

Shapes: logits (sequences, heads, rows, keys), masked keys at -inf; every statistic (heads,).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgewise import softmax_jacobian as jacobian

Array = NDArray[np.float64]
COARSE = 1e-2  # relative error of an eigenvalue that a statistic over rows can bear


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Means over rows, except where said; nan where no row has two keys."""

    attention_entropy: Array  # nats
    softmax_condition: Array  # median of log kappa(J)
    effective_support: Array  # exp(entropy), keys
    softmax_eigenvalue: Array  # largest of J
    saturated_fraction: Array  # rows whose largest entry leaves less than 1e-2
    largest_logit: Array  # of all rows, in size

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


def row_statistics(logits: Tensor) -> RowStatistics:
    """Rows that attend to nothing (padding) are left out."""
    size = torch.where(torch.isfinite(logits), logits.abs(), 0.0)
    by_head = logits.transpose(0, 1).flatten(1, 2)  # (heads, sequences x rows, keys)
    alive = torch.isfinite(by_head).any(-1)  # (heads, rows)
    safe = torch.where(alive[..., None], by_head, 0.0).double()
    rows = jacobian.checked(torch.log_softmax(safe, -1))
    spectrum = jacobian.extremes_of_rows(rows, COARSE)
    entropy = jacobian.entropy(rows)
    several = alive & (jacobian.count(rows) > 1)
    return RowStatistics(
        _mean(entropy, alive),
        _median(spectrum.condition, several),
        _mean(entropy.exp(), alive),
        _mean(spectrum.largest.exp(), several),
        _mean(jacobian.saturated(rows).double(), several),
        _numpy(size.amax((0, 2, 3)).double()),
    )


def _mean(values: Tensor, kept: Tensor) -> Array:
    total = torch.where(kept, values, 0.0).sum(-1) / kept.sum(-1)
    return _numpy(total)


def _median(values: Tensor, kept: Tensor) -> Array:
    return _numpy(torch.where(kept, values, math.nan).nanmedian(-1).values)


def _numpy(values: Tensor) -> Array:
    return np.asarray(values.cpu().numpy(), dtype=np.float64)
