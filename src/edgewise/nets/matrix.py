"""A random matrix with a gain: entries iid N(0, gain^2 / fan_in)."""

from __future__ import annotations

import math

import torch
from torch import nn


def matrix(fan_in: int, fan_out: int, gain: float, bias: float | None = None) -> nn.Linear:
    """A linear map (fan_out, fan_in); `bias` is the standard deviation of its bias, None for no bias."""
    layer = nn.Linear(fan_in, fan_out, bias=bias is not None)
    with torch.no_grad():
        layer.weight.normal_(std=gain / math.sqrt(fan_in))
        if bias is not None:
            layer.bias.normal_(std=bias)
    return layer
