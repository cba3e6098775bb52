"""Random perceptrons at finite width, and circles of inputs to send through them.

Shapes: B inputs, N units per layer, L layers; preactivations of all layers are (L + 1, B, N), the start first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.activations import torch_activation
from edgewise.errors import BadInput
from edgewise.nets.layers import matrix
from edgewise.nouns.perceptron import Perceptron


class RandomPerceptron(nn.Module):
    """h^l = W^l phi(h^(l-1)) + b^l with weights N(0, sw2 / fan_in) and biases N(0, sb2)  [Poole 2016, eq. 1].

    Without `inputs` the start h^0 (B, width) is given. With it, data x (B, inputs) enter as h^0 = W x + b. With
    `outputs` the network ends in a readout W phi(h^L) of weight variance 1 / width.
    """

    def __init__(
        self, perceptron: Perceptron, *, inputs: int | None = None, outputs: int | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        gain, bias = math.sqrt(perceptron.weight_variance), math.sqrt(perceptron.bias_variance)
        self.perceptron, self.phi = perceptron, torch_activation(perceptron.activation)
        n = perceptron.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.entrance = matrix(inputs, n, gain, bias) if inputs else nn.Identity()
            self.layers = nn.ModuleList(matrix(n, n, gain, bias) for _ in range(perceptron.depth))
            self.readout = matrix(n, outputs, 1.0) if outputs else None

    def preactivations(self, start: Tensor) -> Tensor:
        """h of every layer, (L + 1, B, N)."""
        h = [self.entrance(start)]
        for layer in self.layers:
            h.append(layer(self.phi(h[-1])))
        return torch.stack(h)

    def forward(self, start: Tensor) -> Tensor:
        h = self.entrance(start)
        for layer in self.layers:
            h = layer(self.phi(h))
        return h if self.readout is None else self.readout(self.phi(h))


def circle(angles: Sequence[float] | Tensor, width: int, length: float = 1.0, seed: int = 0) -> Tensor:
    """Inputs sqrt(N q)(u0 cos t + u1 sin t) on a random plane circle (B, N): mean square q, overlap q cos(t - t').

    Two of them at angles 0 and arccos(c) are a pair of correlation c. Differentiable in the angles.
    """
    if width < 2 or length < 0:
        raise BadInput(
            f"a circle of width {width} and length {length}: expected a width >= 2 and a length >= 0"
        )
    t = torch.as_tensor(angles, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    plane = torch.linalg.qr(torch.randn(width, 2, generator=generator, dtype=torch.float64))[0]
    return math.sqrt(width * length) * torch.stack([torch.cos(t), torch.sin(t)], dim=-1) @ plane.T


def circle_derivatives(
    network: RandomPerceptron, angles: Sequence[float] | Tensor, length: float, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Position h, velocity dh/dt and acceleration d2h/dt2 of a circle at every layer, each (L + 1, B, N).

    Exact, by differentiating twice in forward mode: a finely folded curve needs no finely sampled angles.
    """
    t = torch.as_tensor(angles, dtype=torch.float64)
    width, ones = network.perceptron.width, torch.ones_like(t)

    def position(t: Tensor) -> Tensor:
        return network.preactivations(circle(t, width, length, seed))

    def moving(t: Tensor) -> Any:
        return torch.func.jvp(position, (t,), (ones,))

    with torch.no_grad():
        twice: Any = torch.func.jvp(moving, (t,), (ones,))
    (h, v), (_, a) = twice
    return h, v, a
