"""The batch of a step, and a pass of our own with it where the training's own passes cannot be seen.

A model that was compiled before it was watched runs past our hooks. One pass in eager mode, on a few sequences of the
same batch, fills the same buffers; modes, gradients, buffers and random streams are as before afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgewise.monitor.copies import SEQUENCES, Switch
from edgewise.probe.isolation import observed, tensors


class BatchMemory:
    """What the model was last called with at a sampled step, as references; nothing is copied."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.call: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        if not torch.compiler.is_compiling() and self.switch.on and torch.is_grad_enabled():
            self.call = inputs, named

    def few(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The same call on the first sequences; None where there is none."""
        if self.call is None:
            return None
        inputs, named = self.call
        size = next((t.shape[0] for t in tensors([inputs, list(named.values())]) if t.dim()), 0)
        return tuple(_cut(x, size) for x in inputs), {name: _cut(x, size) for name, x in named.items()}


def _cut(value: Any, size: int) -> Any:
    whole = not isinstance(value, Tensor) or not value.dim() or value.shape[0] != size
    return value if whole else value[:SEQUENCES].detach()


def pass_aside(model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Run a bare model forwards and backwards in eager mode, so that its hooks see it.

    Backwards from the model's own loss, or from a fixed random readout where it returns none.
    """
    inputs, named = call
    with observed(model):
        output = model(*inputs, **named)
        loss = getattr(output, "loss", None)
        if not isinstance(loss, Tensor):
            first = next(t for t in tensors(output) if t.is_floating_point())
            drawn = torch.randn(first.shape, generator=torch.Generator().manual_seed(0))
            loss = (first * drawn.to(first)).sum() / first[..., 0].numel()
        leaf = next(p for p in model.parameters() if p.requires_grad)
        torch.autograd.grad(loss, leaf, allow_unused=True)
