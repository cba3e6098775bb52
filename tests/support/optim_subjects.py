"""Small models to optimize, and the logits they really compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import edgewise


class Logits(TorchFunctionMode):
    """Every q.k of scaled_dot_product_attention while it is active, after norms and rotation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key = (t.detach() for t in args[:2])
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
            scale = named.get("scale") or query.shape[-1] ** -0.5
            self.seen.append(query @ key.mT * scale)
        return func(*args, **named)


def small(seed: int = 0, **knobs: Any) -> nn.Module:
    """Two causal blocks of the library's own network."""
    torch.manual_seed(seed)
    given = {"depth": 2, "width": 16, "heads": 2, "tokens": 8, "norm": "pre", "causal": True}
    return edgewise.nets.build(edgewise.transformer(**(given | knobs)), inputs=16, outputs=16, vectors=True)


def batch(seed: int = 0, sequences: int = 4, tokens: int = 8, width: int = 16) -> Tensor:
    return torch.randn(sequences, tokens, width, generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.roll(1, 1)).square().mean()


def train(model: nn.Module, optimizer: Any, steps: int, begin: int = 0) -> list[float]:
    """Plain steps on fresh batches; the losses."""
    losses = []
    for t in range(begin, begin + steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch(t))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
