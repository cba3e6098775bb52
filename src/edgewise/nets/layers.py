"""The parts of a block that have parameters, apart from attention: random matrices, norms, MLPs."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from edgewise import blocks
from edgewise.activations import torch_activation


def matrix(fan_in: int, fan_out: int, gain: float, bias: float | None = None) -> nn.Linear:
    """A linear map with entries iid N(0, gain^2 / fan_in), weight (fan_out, fan_in).

    bias: the standard deviation of its bias; None for no bias.
    """
    layer = nn.Linear(fan_in, fan_out, bias=bias is not None)
    with torch.no_grad():
        layer.weight.normal_(std=gain / math.sqrt(fan_in))
        if bias is not None:
            layer.bias.normal_(std=bias)
    return layer


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


class MLP(nn.Module):
    """W_2 phi(W_1 x + b), or W_2 (phi(W_1 x + b) * W_linear x) when gated [Shazeer 2020]."""

    def __init__(self, layer: blocks.MLP, width: int) -> None:
        super().__init__()
        self.function = torch_activation(layer.activation)
        inward = matrix(width, layer.width, layer.in_gain, bias=layer.bias)
        if layer.gated:
            self.gate_proj, self.up_proj = inward, matrix(width, layer.width, layer.linear_gain)
        else:
            self.up_proj = inward
        self.gated = layer.gated
        self.down_proj = matrix(layer.width, width, layer.out_gain)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            return self.down_proj(self.function(self.gate_proj(x)) * self.up_proj(x))
        return self.down_proj(self.function(self.up_proj(x)))
