"""The batch of a step, and a pass of our own with it where the training's own passes cannot be seen.

A model that was compiled before it was watched runs past our hooks. One pass in eager mode, on a few sequences of the
same batch, fills the same buffers; modes, gradients, buffers and random streams are as before afterwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from edgewise.monitor.copies import SEQUENCES, Switch
from edgewise.monitor.deaf import Hooking
from edgewise.probe.isolation import observed, tensors

Call = tuple[tuple[Any, ...], dict[str, Any]]


class BatchMemory(Hooking):
    """What model and criterion were called with at the last two sampled steps, as references; nothing is copied.

    Beside it the random state of the pass, and what autocast made of it, so that the pass can be repeated.
    """

    def __init__(self, switch: Switch, keep_random: bool = True) -> None:
        self.switch, self.keep_random = switch, keep_random
        self.call: Call | None = None
        self.before: Call | None = None
        self.criterion: Call | None = None
        self.criterion_before: Call | None = None
        self.random = torch.empty(0, dtype=torch.uint8)
        self.autocast: str | None = None

    def enter(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        if not torch.compiler.is_compiling() and self.switch.on and torch.is_grad_enabled():
            self.switch.run(self._remember, inputs, named)

    def _remember(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.before, self.call = self.call, (inputs, named)
        if self.keep_random:  # a dossier will want it
            self.random = torch.get_rng_state()
        self.autocast = str(torch.get_autocast_dtype("cpu"))[6:] if torch.is_autocast_enabled("cpu") else None

    def enter_criterion(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG002
        if not torch.compiler.is_compiling() and self.switch.on and torch.is_grad_enabled():
            self.criterion_before, self.criterion = self.criterion, (inputs, named)

    def few(self, *, before: bool = False) -> Call | None:
        """The same call, or that of the sample before, on the first sequences; None where there is none."""
        call = self.before if before else self.call
        if call is None:
            return None
        inputs, named = call
        size = next((t.shape[0] for t in tensors([inputs, list(named.values())]) if t.dim()), 0)
        return tuple(_cut(x, size) for x in inputs), {name: _cut(x, size) for name, x in named.items()}


def _cut(value: Any, size: int) -> Any:
    whole = not isinstance(value, Tensor) or not value.dim() or value.shape[0] != size
    return value if whole else value[:SEQUENCES].detach()


def pass_aside(model: nn.Module, call: Call) -> None:
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
