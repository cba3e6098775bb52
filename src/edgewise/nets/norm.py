"""The norms a description can name: LayerNorm, RMSNorm, and elementwise tanh (DyT) or erf (Derf)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ElementwiseNorm(nn.Module):
    """weight * phi(slope x) with phi = tanh or erf, in a norm's place [Zhu 2025]."""

    def __init__(self, width: int, kind: str, slope: float) -> None:
        super().__init__()
        self.function = {"tanh": torch.tanh, "erf": torch.erf}[kind]
        self.slope = nn.Parameter(torch.tensor(slope))
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * self.function(self.slope * x)


def norm(kind: str, width: int, slope: float = 1.0) -> nn.Module:
    """A norm with learned gains that start at one."""
    if kind == "layer":
        return nn.LayerNorm(width)
    if kind == "rms":
        return nn.RMSNorm(width)
    return ElementwiseNorm(width, kind, slope)
