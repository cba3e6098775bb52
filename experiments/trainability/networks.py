"""The networks of `rescue.py` and `totals.py`, in four lists.

forecast   every start whose recorded training on digits under AdamW failed: a final loss of half of chance or more.
           `trained` are those of its first five starts per family that did train.
REPORTED   what users report that does not start to learn: pytorch#55270 (the encoder with Xavier weights beyond 12
           layers), pytorch#86274 and #120396 (its layers are copies), transformer-time-series-prediction#15 (constant
           outputs after adding layers, causal), voicebox-pytorch#23 (24 layers do not learn), transformers#38987
           (matrices left at torch's default), open_llama#98 and mutransformers#4 (initializations put together
           from papers). Not copies of these programs: their blocks, depths and starts at a width of 32.
PLAIN      deep networks of the literature [Schoenholz 2017, Xiao 2018, Zhang 2019], blocks of no common family.
WHOLE      networks that train as they come.

`forecast` is a rule applied to a record, and REPORTED was fixed before any of it was trained; the plan itself was
developed on some networks of the forecast's list and of PLAIN, so that the rate is not that of a held-out test.
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
        self.phi, self.linear, self.norm = (
            ACTIVATIONS[activation],
            nn.Linear(width, width),
            nn.LayerNorm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.phi(self.norm(self.linear(x)))


class Gated(nn.Module):
    """x <- norm(x + W_o(sigmoid(W_g x) * tanh(W_h x))): a block of no common family."""

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


class Causal(nn.Module):
    """An encoder under a causal mask."""

    def __init__(self, encoder: nn.TransformerEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.encoder(x, mask=mask, is_causal=True)  # type: ignore[no-any-return]


def _encoder(
    depth: int, activation: str = "relu", norm_first: bool = False, xavier: bool = False, causal: bool = False
) -> nn.Module:
    """torch's encoder: copies of one layer, or (`xavier`) every matrix drawn anew as nn.Transformer does."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, activation, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    for parameter in encoder.parameters():
        if xavier and parameter.ndim > 1:
            nn.init.xavier_uniform_(parameter)
    return Streams(Causal(encoder) if causal else encoder, 32)


def _described(**knobs: Any) -> nn.Module:
    """A transformer of edgewise.nets on digits."""
    usual = {"width": 32, "heads": 2, "mlp_width": 64, "tokens": 16, "activation": "gelu"}
    network = edgewise.transformer(**(usual | knobs))
    return edgewise.nets.build(network, inputs=4, outputs=10, vectors=True, pooled=True, readout_gain=0.25)


TORCH = {
    "value_gain": 1 / 3,
    "score_gain": 1 / 3,
    "mlp_in_gain": 3**-0.5,
    "mlp_out_gain": 3**-0.5,
}  # nn.Linear's own
LLAMA = {"activation": "silu", "gated": True, "norm_kind": "rms", "rope": True}
Factory = Callable[[], nn.Module]
REPORTED: dict[str, Factory] = {
    "torch encoder, Xavier, 18 layers": lambda: _encoder(18, xavier=True),
    "torch encoder, Xavier, 24 layers": lambda: _encoder(24, xavier=True),
    "torch encoder, Xavier, 32 layers": lambda: _encoder(32, xavier=True),
    "torch encoder, copies, 24 layers": lambda: _encoder(24),
    "torch encoder, copies, gelu, 32 layers": lambda: _encoder(32, "gelu"),
    "torch encoder, copies, causal, 20 layers": lambda: _encoder(20, causal=True),
    "voicebox-like, 24 layers": lambda: _described(
        depth=24, **LLAMA, **TORCH, mlp_linear_gain=3**-0.5, qk_norm=True
    ),
    "BERT-like, matrices at torch's default, 24 layers": lambda: _described(depth=24, norm="post", **TORCH),
    "BERT-like, gains 1, 24 layers": lambda: _described(depth=24, norm="post"),
    "Llama-like, all matrices of std 0.5, 24 layers": lambda: _described(
        depth=24,
        **LLAMA,
        value_gain=8.0,
        score_gain=8.0,
        mlp_in_gain=2.8,
        mlp_linear_gain=2.8,
        mlp_out_gain=4.0,
    ),
}
PLAIN: dict[str, Factory] = {
    "tanh perceptron, 20 layers, torch": lambda: Plain(20, "tanh"),
    "tanh perceptron, 40 layers, torch": lambda: Plain(40, "tanh"),
    "tanh perceptron, 80 layers, torch": lambda: Plain(80, "tanh"),
    "tanh perceptron, 40 layers, gain 2": lambda: Plain(40, "tanh", 2.0),
    "tanh perceptron, 40 layers, gain 4": lambda: Plain(40, "tanh", 4.0),
    "relu perceptron, 20 layers, torch": lambda: Plain(20, "relu"),
    "relu perceptron, 40 layers, torch": lambda: Plain(40, "relu"),
    "relu perceptron, 40 layers, gain 3": lambda: Plain(40, "relu", 3.0),
    "gelu perceptron, 20 layers, torch": lambda: Plain(20, "gelu"),
    "silu perceptron, 20 layers, torch": lambda: Plain(20, "silu"),
    "norm and tanh, no skip, 60 layers": lambda: _stack(lambda: Normed(48, "tanh"), 60),
    "norm and relu, no skip, 60 layers": lambda: _stack(lambda: Normed(48, "relu"), 60),
    "tanh filters, 20 layers, torch": lambda: Filters(20, "tanh"),
    "relu filters, 20 layers, torch": lambda: Filters(20, "relu"),
    "residual relu, no norm, gain 1.4, 40 layers": lambda: _stack(
        lambda: Residual(48, "relu", 1.4, False), 40
    ),
    "residual tanh, no norm, gain 4, 40 layers": lambda: _stack(lambda: Residual(48, "tanh", 4.0, False), 40),
    "post-norm residual relu, gain 1.4, 60 layers": lambda: _stack(
        lambda: Residual(48, "relu", 1.4, True), 60
    ),
    "post-norm residual gelu, gain 2, 60 layers": lambda: _stack(lambda: Residual(48, "gelu", 2.0, True), 60),
    "post-norm gated block, gain 5, 30 layers": lambda: _stack(lambda: Gated(48, 5.0), 30),
    "post-norm mixer, gain 3, 12 layers": lambda: Streams(
        nn.Sequential(*(Mixer(16, 32, 3.0) for _ in range(12))), 32
    ),
}
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
