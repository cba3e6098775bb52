"""The published classifier: 2 layers, width 64, 2 heads, feed-forward 128, learned positions, mean over tokens.

Sizes as on the poster [Song 2024], the rest as in the code base it builds on: pre-norm, GELU. No dropout here: at most
two epochs are trained, but for `text_long`. The kernel is an attribute, so that the same weights can go on with another
one.
Shapes: B examples, n tokens; ids (B, n) with 0 = padding, or vectors (B, n, features).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewise import nets

KERNELS: dict[str, Callable[..., Tensor]] = {
    "softmax": nets.softmax_attention,
    "gaussian": nets.gaussian_attention,
    "normalized_gaussian": nets.normalized_gaussian_attention,
    "linear": nets.linear_attention,
}
WIDTH, HEADS, FEED_FORWARD, LAYERS = 64, 2, 128, 2


class Attention(nn.Module):
    """Multi-head attention with separate matrices, so that `query` and `key` can be named."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.kernel = heads, "softmax"
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        parts = (self.query, self.key, self.value)
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = KERNELS[self.kernel](q, k, v, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, feed_forward), nn.GELU(), nn.Linear(feed_forward, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.first(x), mask)
        return x + self.mlp(self.second(x))


class Encoder(nn.Module):
    """`model(inputs, labels)` gives (loss, logits); `inputs` are ids unless vectors=True."""

    def __init__(self, inputs: int, tokens: int, outputs: int = 2, vectors: bool = False) -> None:
        super().__init__()
        self.vectors = vectors
        self.embed = nn.Linear(inputs, WIDTH) if vectors else nn.Embedding(inputs, WIDTH, padding_idx=0)
        self.positions = nn.Parameter(0.1 * torch.randn(tokens, WIDTH))
        self.layers = nn.ModuleList(Layer(WIDTH, HEADS, FEED_FORWARD) for _ in range(LAYERS))
        self.readout = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, outputs))

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(inputs) + self.positions[: inputs.shape[1]]
        shown = None if self.vectors else inputs != 0
        mask = None if shown is None else shown[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        x = self.readout[0](x)
        pooled = x.mean(1) if shown is None else (x * shown[..., None]).sum(1) / shown.sum(1, keepdim=True)
        logits = self.readout[1](pooled)
        return F.cross_entropy(logits, labels), logits


def use(model: Encoder, kernel: str) -> Encoder:
    """The same weights with another kernel from now on."""
    for layer in model.layers:
        layer.attention.kernel = kernel
    return model
