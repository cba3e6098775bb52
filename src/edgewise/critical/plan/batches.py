"""An input for a plan when none is given: as `measure` makes one up, or random vectors or images for other networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from edgewise.errors import BadInput
from edgewise.probe.batches import default_batch
from edgewise.probe.isolation import observed

SAMPLES, SIDE = 32, 16


def made_up(model: nn.Module, tokens: int | None = None) -> Any:
    """What `default_batch` gives, else normal numbers shaped for the first matrix or filter."""
    generator = torch.Generator().manual_seed(0)
    try:
        return default_batch(model, generator, tokens)
    except BadInput as refusal:
        first = next((m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))), None)
        if first is None:
            raise
        if isinstance(first, nn.Linear):
            shape: tuple[int, ...] = (SAMPLES, first.in_features)
        else:
            shape = (SAMPLES // 4, first.in_channels, *[SIDE] * len(first.kernel_size))
        batch = torch.randn(shape, generator=generator).to(first.weight)
        try:
            with observed(model), torch.no_grad():
                model(batch)
        except (RuntimeError, ValueError, TypeError):
            raise refusal from None
        return batch
