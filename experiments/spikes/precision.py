"""Training arithmetic in fewer digits, simulated: what every linear layer reads, writes and sends back is rounded.

Weights, optimizer and sums stay in float32, as in mixed precision; the gradient of float16 is scaled, and a step whose
gradient is not finite is left out, as torch's GradScaler does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
SCALES = {"float32": 1.0, "bfloat16": 1.0, "float16": 1024.0}


class _Round(torch.autograd.Function):
    """Round to a dtype and back, forward and backward; float16 overflows to infinity and loses what is below 6e-8."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype).to(gradient.dtype), None


def round_linears(model: nn.Module, precision: str) -> nn.Module:
    """The same module, whose linear layers compute in the named precision from now on."""
    dtype = DTYPES[precision]
    if dtype is not None:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.forward = _rounded(layer, dtype)  # type: ignore[method-assign]
    return model


def _rounded(layer: nn.Linear, dtype: torch.dtype) -> Any:
    def forward(x: Tensor) -> Tensor:
        entering, weight = _Round.apply(x, dtype), _Round.apply(layer.weight, dtype)
        out: Tensor = _Round.apply(F.linear(entering, weight, layer.bias), dtype)
        return out

    return forward
