"""The two-matrix perceptron of a block, plain or gated."""

from __future__ import annotations

from torch import Tensor, nn

from edgewise import blocks
from edgewise.nets.activations import activation
from edgewise.nets.matrix import matrix


class MLP(nn.Module):
    """W_2 phi(W_1 x + b), or W_2 (phi(W_1 x + b) * W_linear x) when gated [Shazeer 2020]."""

    def __init__(self, layer: blocks.MLP, width: int) -> None:
        super().__init__()
        self.function = activation(layer.activation)
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
