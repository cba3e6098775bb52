"""Observation must not change what a model computes: its output is compared with that of a run without any hook.

Once per model, attention implementation and input shape: another measurement of the same model does not pay again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from edgewise.probe.isolation import call, same, tensors

_SEEN: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


class Unchanged:
    """Made before the hooks are attached: runs the plain forward pass unless this model and shape were compared."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.model, self.batch, self.key = model, batch, _signature(model, batch)
        self.known = self.key in _SEEN.get(model, ())
        if not self.known:
            with torch.no_grad():
                self.plain = call(model, batch)

    def confirmed(self, output: Any) -> bool:
        """True when the observed output is the plain one bit for bit, now or when it was compared before."""
        if self.known:
            return True
        if not same(self.plain, output):
            self.plain = call(self.model, self.batch)  # with a graph: some kernels differ without one
        if not same(self.plain, output):
            return False
        _SEEN.setdefault(self.model, set()).add(self.key)
        return True


def forget() -> None:
    """Compare every model again, as after the first import."""
    _SEEN.clear()


def _signature(model: nn.Module, batch: Any) -> Hashable:
    """What may choose another kernel: the implementation, and shapes, types and devices of model and input."""
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    parameter = next(model.parameters())
    shapes = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors(batch))
    return chosen, parameter.dtype, parameter.device, shapes
