"""Networks for the proofs: such as users report that they do not train, and such as train already.

The reports are pytorch#55270 and #86274 (deep torch encoders, layers that are copies), voicebox-pytorch#23 (depth 12
learns, 24 does not), transformers#38987 and open_llama#98 (unscaled or invented initializations), and the plain deep
networks of [Schoenholz 2017], [Xiao 2018] and [Zhang 2019]. Forecast starts are points of papers/forecast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise

Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {"tanh": torch.tanh, "relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def _linear(fan_in: int, fan_out: int, gain: float | None) -> nn.Linear:
    """torch's own start, or normal weights of a gain and no bias."""
    layer = nn.Linear(fan_in, fan_out)
    if gain is not None:
        nn.init.normal_(layer.weight, std=gain / math.sqrt(fan_in))
        nn.init.zeros_(layer.bias)
    return layer


class Plain(nn.Module):
    """x <- phi(W x): no skip, no norm."""

    def __init__(self, depth: int, activation: str, gain: float | None = None, width: int = 48) -> None:
        super().__init__()
        self.phi, self.first = ACTIVATIONS[activation], nn.Linear(64, width)
        self.layers = nn.ModuleList(_linear(width, width, gain) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.phi(self.first(x))
        for layer in self.layers:
            x = self.phi(layer(x))
        return x


class Filters(nn.Module):
    """x <- phi(w * x): 3 x 3 filters on 8 x 8 images."""

    def __init__(self, depth: int, activation: str, channels: int = 16) -> None:
        super().__init__()
        self.phi, self.first = ACTIVATIONS[activation], nn.Conv2d(1, channels, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.phi(self.first(x))
        for layer in self.layers:
            x = self.phi(layer(x))
        return x


class Residual(nn.Module):
    """x <- [norm](x + W_2 phi(W_1 x)): a branch with its norm after the sum, or none."""

    def __init__(self, width: int, activation: str, gain: float | None, norm: bool) -> None:
        super().__init__()
        self.phi = ACTIVATIONS[activation]
        self.up, self.down = _linear(width, width, gain), _linear(width, width, gain)
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.down(self.phi(self.up(x))))


class Normed(nn.Module):
    """x <- phi(norm(W x))."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        self.phi, self.linear, self.norm = ACTIVATIONS[activation], nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.phi(self.norm(self.linear(x)))


class Gated(nn.Module):
    """x <- norm(x + W_o(sigmoid(W_g x) * tanh(W_h x))): a block of no known family."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.alpha, self.beta, self.gamma = (_linear(width, width, gain) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.gamma(torch.sigmoid(self.alpha(x)) * torch.tanh(self.beta(x))))


class Mixer(nn.Module):
    """Token mixing and channel mixing, norms after the sums."""

    def __init__(self, tokens: int, width: int, gain: float | None) -> None:
        super().__init__()
        self.token_in, self.token_out = _linear(tokens, 2 * tokens, gain), _linear(2 * tokens, tokens, gain)
        self.channel_in, self.channel_out = _linear(width, 2 * width, gain), _linear(2 * width, width, gain)
        self.token_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.token_norm(x + self.token_out(F.gelu(self.token_in(x.transpose(1, 2)))).transpose(1, 2))
        return self.channel_norm(x + self.channel_out(F.gelu(self.channel_in(x))))


class Streams(nn.Module):
    """Patches to a stream with positions, blocks, the mean over tokens read out; with labels (loss, logits)."""

    def __init__(self, blocks: nn.Module, width: int) -> None:
        super().__init__()
        self.patch, self.position = nn.Linear(4, width), nn.Parameter(torch.randn(16, width))
        self.blocks, self.readout = blocks, nn.Linear(width, 10)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.readout(self.blocks(self.patch(inputs) + self.position).mean(1))
        return logits if labels is None else (F.cross_entropy(logits, labels), logits)


def _stack(make: Callable[[], nn.Module], depth: int, width: int = 48) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), *(make() for _ in range(depth)))


def _encoder(depth: int, activation: str = "relu", norm_first: bool = False, scale: float = 1.0) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, activation, batch_first=True, norm_first=norm_first)
    made = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(scale)
    return Streams(made, 32)


def _described(**knobs: Any) -> nn.Module:
    """A transformer of edgewise.nets on digits."""
    usual = {"width": 32, "heads": 2, "mlp_width": 64, "tokens": 16, "activation": "gelu"}
    network = edgewise.transformer(**(usual | knobs))
    return edgewise.nets.transformer(network, inputs=4, outputs=10, vectors=True, pooled=True, readout_gain=0.25)


Factory = Callable[[], nn.Module]
BROKEN: dict[str, Factory] = {
    "tanh perceptron, 20 layers, torch": lambda: Plain(20, "tanh"),
    "tanh perceptron, 40 layers, torch": lambda: Plain(40, "tanh"),
    "tanh perceptron, 80 layers, torch": lambda: Plain(80, "tanh"),
    "tanh perceptron, 40 layers, gain 0.5": lambda: Plain(40, "tanh", 0.5),
    "tanh perceptron, 40 layers, gain 2": lambda: Plain(40, "tanh", 2.0),
    "tanh perceptron, 40 layers, gain 4": lambda: Plain(40, "tanh", 4.0),
    "tanh perceptron, 100 layers, gain 1": lambda: Plain(100, "tanh", 1.0),
    "relu perceptron, 20 layers, torch": lambda: Plain(20, "relu"),
    "relu perceptron, 40 layers, torch": lambda: Plain(40, "relu"),
    "relu perceptron, 40 layers, gain 1": lambda: Plain(40, "relu", 1.0),
    "relu perceptron, 40 layers, gain 3": lambda: Plain(40, "relu", 3.0),
    "gelu perceptron, 20 layers, torch": lambda: Plain(20, "gelu"),
    "silu perceptron, 20 layers, torch": lambda: Plain(20, "silu"),
    "tanh filters, 20 layers, torch": lambda: Filters(20, "tanh"),
    "tanh filters, 40 layers, torch": lambda: Filters(40, "tanh"),
    "relu filters, 20 layers, torch": lambda: Filters(20, "relu"),
    "relu filters, 40 layers, torch": lambda: Filters(40, "relu"),
    "norm and tanh, no skip, 60 layers": lambda: _stack(lambda: Normed(48, "tanh"), 60),
    "norm and relu, no skip, 60 layers": lambda: _stack(lambda: Normed(48, "relu"), 60),
    "residual relu, no norm, gain 1.4, 40 layers": lambda: _stack(lambda: Residual(48, "relu", 1.4, False), 40),
    "residual relu, no norm, gain 1, 80 layers": lambda: _stack(lambda: Residual(48, "relu", 1.0, False), 80),
    "residual tanh, no norm, gain 4, 40 layers": lambda: _stack(lambda: Residual(48, "tanh", 4.0, False), 40),
    "post-norm residual relu, gain 1.4, 60 layers": lambda: _stack(lambda: Residual(48, "relu", 1.4, True), 60),
    "post-norm residual tanh, gain 3, 40 layers": lambda: _stack(lambda: Residual(48, "tanh", 3.0, True), 40),
    "post-norm residual gelu, gain 2, 60 layers": lambda: _stack(lambda: Residual(48, "gelu", 2.0, True), 60),
    "post-norm gated block, gain 3, 40 layers": lambda: _stack(lambda: Gated(48, 3.0), 40),
    "post-norm gated block, gain 5, 30 layers": lambda: _stack(lambda: Gated(48, 5.0), 30),
    "post-norm mixer, gain 2, 20 layers":
        lambda: Streams(nn.Sequential(*(Mixer(16, 32, 2.0) for _ in range(20))), 32),
    "post-norm mixer, gain 3, 12 layers":
        lambda: Streams(nn.Sequential(*(Mixer(16, 32, 3.0) for _ in range(12))), 32),
    "torch encoder, 32 layers, copies": lambda: _encoder(32),
    "torch encoder, 32 layers, gelu, copies": lambda: _encoder(32, "gelu"),
    "torch encoder, 16 layers, weights times 2": lambda: _encoder(16, scale=2.0),
    "post-norm transformer, 24 layers, gains 1": lambda: _described(depth=24, norm="post"),
    "post-norm transformer, 12 layers, gains 2":
        lambda: _described(depth=12, norm="post", value_gain=2.0, mlp_out_gain=2.0),
    "post-norm transformer, 12 layers, sharp":
        lambda: _described(depth=12, norm="post", score_gain=6.0, value_gain=2.0, mlp_in_gain=2.0),
    "paper's block, 12 layers, ordered":
        lambda: _described(depth=12, activation="tanh", attention_skip=0.6, attention_branch=0.8, mlp_skip=0.8,
                           mlp_branch=0.6),
    "paper's block, 18 layers, chaotic":
        lambda: _described(depth=18, activation="tanh", attention_skip=0.95, attention_branch=0.31, mlp_skip=0.6,
                           mlp_branch=0.8, mlp_in_gain=5.0),
}  # fmt: skip
WHOLE: dict[str, Factory] = {
    "tanh perceptron, 3 layers, torch": lambda: Plain(3, "tanh"),
    "relu perceptron, 6 layers, gain 1.4": lambda: Plain(6, "relu", 1.4),
    "tanh filters, 4 layers, torch": lambda: Filters(4, "tanh"),
    "post-norm residual relu, torch, 8 layers": lambda: _stack(lambda: Residual(48, "relu", None, True), 8),
    "residual gelu, no norm, torch, 8 layers": lambda: _stack(lambda: Residual(48, "gelu", None, False), 8),
    "torch encoder, 4 layers, copies": lambda: _encoder(4),
    "torch encoder, pre-norm, 8 layers, copies": lambda: _encoder(8, norm_first=True),
    "pre-norm transformer, 8 layers, gains 1": lambda: _described(depth=8),
}
