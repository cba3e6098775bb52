"""Passes that leave no trace: the state keeper with gradients, and calls with whatever a model accepts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from edgewise.models.state import preserved, random_streams

observed = partial(preserved, gradients=True)


def call(model: nn.Module, batch: Any) -> Any:
    """One forward pass with whatever the model accepts: keywords, positions, or one tensor."""
    if hasattr(batch, "keys"):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output, in order; what is neither a container nor a tensor (a cache) is passed over."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)
    elif hasattr(value, "values") and hasattr(value, "keys"):
        for item in value.values():
            yield from tensors(item)


def same(first: Any, second: Any) -> bool:
    """Bit for bit the same tensors (NaN equal to NaN)."""
    pairs = list(tensors(first)), list(tensors(second))
    if [t.shape for t in pairs[0]] != [t.shape for t in pairs[1]]:
        return False
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in zip(*pairs, strict=True))


__all__ = ["call", "observed", "random_streams", "same", "tensors"]
