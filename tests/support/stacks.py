"""Small modules with a repeated stack, as users write them: what the plans of this room are tested on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def perceptron(depth: int, width: int, activation: type[nn.Module] = nn.Tanh, inputs: int = 20) -> nn.Module:
    """Linear layers and activations side by side in one Sequential."""
    hidden = [part for _ in range(depth) for part in (nn.Linear(width, width), activation())]
    return nn.Sequential(nn.Linear(inputs, width), activation(), *hidden, nn.Linear(width, 10))


class Convolutions(nn.Module):
    """Filters in a ModuleList, tanh in forward."""

    def __init__(self, depth: int, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class MixerBlock(nn.Module):
    """Token mixing and channel mixing [Tolstikhin 2021], pre-norm or post-norm; weights times `scale`."""

    def __init__(self, tokens: int, width: int, scale: float = 1.0, post: bool = False) -> None:
        super().__init__()
        self.post = post
        self.token_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token_in, self.token_out = nn.Linear(tokens, 2 * tokens), nn.Linear(2 * tokens, tokens)
        self.channel_in, self.channel_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        with torch.no_grad():
            for layer in (self.token_in, self.token_out, self.channel_in, self.channel_out):
                layer.weight.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        if self.post:
            x = self.token_norm(x + self.tokens(x))
            return self.channel_norm(x + self.channels(x))
        x = x + self.tokens(self.token_norm(x))
        return x + self.channels(self.channel_norm(x))

    def tokens(self, x: Tensor) -> Tensor:
        return self.token_out(F.gelu(self.token_in(x.transpose(1, 2)))).transpose(1, 2)

    def channels(self, x: Tensor) -> Tensor:
        return self.channel_out(F.gelu(self.channel_in(x)))


def mixer(depth: int, tokens: int, width: int, scale: float = 1.0, post: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, width), *(MixerBlock(tokens, width, scale, post) for _ in range(depth))
    )


class Unseen(nn.Module):
    """A gated block that no adapter knows: x + W_o (sigmoid(W_g n) * tanh(W_h n)), under names that say nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.n = nn.RMSNorm(width)
        self.alpha, self.beta, self.gamma = (nn.Linear(width, width) for _ in range(3))
        nn.init.normal_(self.gamma.weight, std=3 / width**0.5)
        nn.init.normal_(self.beta.weight, std=4 / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.n(x)
        return x + self.gamma(torch.sigmoid(self.alpha(y)) * torch.tanh(self.beta(y)))


class NormedPerceptron(nn.Module):
    """Linear, LayerNorm, tanh, no skip: the norm undoes the gain of the matrix, its own gain does not."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        parts = (nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh()) for _ in range(depth))
        self.layers = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def encoder(depth: int, width: int, norm_first: bool = False) -> nn.TransformerEncoder:
    """torch's own, whose layers are copies of one."""
    layer = nn.TransformerEncoderLayer(
        width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
