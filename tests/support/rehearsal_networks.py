"""Small networks with batches that they can learn, for rehearsals."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise

SYMBOLS, TOKENS = 12, 16


class Quadratic(nn.Module):
    """sum_i c_i x_i^2 / 2 with the largest c given, whatever the batch."""

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.linspace(1.0, 2.0, 8))
        self.register_buffer("c", curvature * torch.linspace(0.2, 1.0, 8))

    def forward(self, _: Tensor) -> Tensor:
        return (self.c * self.x.square()).sum() / 2


def quadratic_batches() -> list[Tensor]:
    return [torch.zeros(1) for _ in range(26)]


def small(seed: int = 0, **knobs: Any) -> nn.Module:
    """Two blocks of width 16."""
    torch.manual_seed(seed)
    sizes = {"depth": 2, "width": 16, "heads": 2, "mlp_width": 32, "tokens": TOKENS, "causal": True} | knobs
    return edgewise.nets.build(edgewise.transformer(**sizes), inputs=SYMBOLS, outputs=SYMBOLS)


def batches(count: int = 26, seed: int = 0, size: int = 8) -> list[Tensor]:
    """Sequences in which a symbol is followed by one of two others."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(count):
        x = torch.zeros(size, TOKENS + 1, dtype=torch.long)
        x[:, 0] = torch.randint(SYMBOLS, (size,), generator=generator)
        for t in range(TOKENS):
            x[:, t + 1] = (5 * x[:, t] + 1 + torch.randint(2, (size,), generator=generator)) % SYMBOLS
        rows.append(x)
    return rows


def text_loss(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.reshape(-1, SYMBOLS), batch[:, 1:].reshape(-1))
