"""Layers that are linear in their own weights: at a constant input, W + a D costs one addition and no product."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def linear_in_weights(module: nn.Module) -> bool:
    """Exactly these classes, with forward as torch or transformers wrote it and no hooks of others."""
    if "forward" in vars(module):
        return False
    if type(module) is nn.Embedding:
        return module.max_norm is None
    return type(module) in (nn.Linear, *CONVOLUTIONS) or _is_turned(module)


def applied(module: Any, weight: Tensor, bias: Tensor | None, inputs: Tensor) -> Tensor:
    """The layer's output with other weights; no bias is a bias of zero."""
    if type(module) is nn.Linear:
        return F.linear(inputs, weight, bias)
    if type(module) is nn.Embedding:
        return F.embedding(inputs, weight)
    if _is_turned(module):
        product = inputs @ weight
        return product if bias is None else product + bias
    result: Tensor = module._conv_forward(inputs, weight, bias)
    return result


def _is_turned(module: nn.Module) -> bool:
    """GPT-2's Conv1D: a linear layer with its matrix stored (in, out)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
