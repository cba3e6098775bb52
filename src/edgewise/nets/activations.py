"""Activations of the knobs as torch functions; "leaky_relu:0.2" sets the slope."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

Function = Callable[[Tensor], Tensor]
LEAKY_SLOPE = 0.01

_FUNCTIONS: dict[str, Function] = {
    "linear": lambda x: x,
    "relu": F.relu,
    "leaky_relu": partial(F.leaky_relu, negative_slope=LEAKY_SLOPE),
    "erf": torch.erf,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "relu2": lambda x: F.relu(x).square(),
    "softplus": F.softplus,
    "sin": torch.sin,
}


def activation(kind: str | Function) -> Function:
    """The function of a name, or the callable itself (it must take a tensor)."""
    if callable(kind):
        return kind
    name, _, slope = kind.partition(":")
    return partial(F.leaky_relu, negative_slope=float(slope)) if slope else _FUNCTIONS[name]
