"""Models of the recorded screens: an encoder whose layers are copies, and one that no theory describes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def copies() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)


def short() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


class ConvolutionBlock(nn.Module):
    """A gated convolution over tokens, which is not attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.mix = nn.Linear(width, width), nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        mixture = self.mix(x.transpose(1, 2)).transpose(1, 2)
        return x + torch.sigmoid(self.gate(x)) * torch.tanh(mixture)


class Convolutions(nn.Module):
    def __init__(self, width: int = 32, depth: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.layers = nn.ModuleList(ConvolutionBlock(width) for _ in range(depth))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return x


def unknown() -> nn.Module:
    return Convolutions()
