"""Small networks whose landscapes are known, and networks that make caching difficult."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise


class Quadratic(nn.Module):
    """L = offset + (w - m)^T A (w - m) / 2 over one matrix (rows, columns)."""

    def __init__(self, rows: int = 3, columns: int = 4, offset: float = 1.0, shift: float = 0.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        size = rows * columns
        root = torch.randn(size, size, generator=generator, dtype=torch.float64)
        self.register_buffer("A", root @ root.T / size + torch.eye(size, dtype=torch.float64))
        start = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(start)
        self.register_buffer("m", start.clone() - shift)
        self.offset = offset

    def forward(self) -> Tensor:
        w = (self.weight - self.m).flatten()
        return self.offset + w @ self.A @ w / 2


def own(model: nn.Module, _: Any) -> Tensor:
    """The loss of a network that needs no input."""
    return model()


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def images(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, 8, 8, generator=generator), torch.arange(count) % 4


def tokens(count: int = 3, length: int = 10, width: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, length, width, generator=generator), torch.arange(count) % 4


class Pooled(nn.Module):
    """A body of tokens, its mean, and a readout."""

    def __init__(self, body: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.body, self.readout = body, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.body(x).mean(1))


class WritesInPlace(nn.Module):
    """Residual sums written into what a layer gave, as memory-saving code does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x += torch.tanh(self.second(x))
        x += torch.tanh(self.third(x))
        return x


class Branches(nn.Module):
    """Python looks at a value that moves and takes another layer for it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.left, self.right, self.after = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.left if float(self.gate(x).sum()) > 0 else self.right
        return self.after(x) + chosen(x)


class Twice(nn.Module):
    """One layer used at two depths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Conv2d(8, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 4),
    )


def encoder(norm_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
    return Pooled(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))


def library_net(**knobs: Any) -> nn.Module:
    given = {"depth": 3, "width": 16, "heads": 2, "tokens": 10, "norm": "pre", **knobs}
    return edgewise.nets.build(edgewise.transformer(**given), inputs=16, outputs=4, vectors=True, pooled=True)


def seeded(make: Any, *args: Any, **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = make(*args, **kwargs)
    return model
