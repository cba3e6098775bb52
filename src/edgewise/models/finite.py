"""Weights and batches that hold no numbers are refused by name: read on, they look like a stream that explodes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.models.inputs import tensors


def refuse_infinite(model: nn.Module, batch: Any = None) -> None:
    """NaN or infinity among the weights, or NaN or +infinity in the batch (masks may hold -infinity)."""
    whole = ((name, p) for name, p in model.named_parameters() if not (p.is_meta or hasattr(p, "to_local")))
    names = [name for name, p in whole if p.is_floating_point() and not _is_finite(p.detach())]
    if names:
        more = f" and {len(names) - 1} more parameters" if len(names) > 1 else ""
        kind = type(model).__name__
        raise BadInput(
            f"{names[0]}{more} of this {kind} hold NaN or infinity. Load or draw the weights again."
        )
    for values in tensors(batch):
        if (
            values.is_floating_point()
            and not values.is_meta
            and bool((values.isnan() | values.isposinf()).any())
        ):
            shape = "x".join(map(str, values.shape))
            raise BadInput(
                f"the batch holds NaN or infinity, in a tensor of {shape} values. Expected finite inputs."
            )


def _is_finite(values: torch.Tensor) -> bool:
    """A sum is a number only where all of its terms are, and costs a third; where it overflows, one by one."""
    return math.isfinite(values.sum(dtype=torch.float32)) or bool(values.isfinite().all())
