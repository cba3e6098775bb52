"""By hand: diffusion."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import WORDS, Truth, ids
from .entry import entry
from .streams import D, SelfAttention, join, mlp, split


def time_features(t, dim=D):
    angle = t[:, None] * torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
    return torch.cat([angle.cos(), angle.sin()], -1)


@entry(
    "diffusion with one modulation for all blocks and a table in each",
    Truth(
        3,
        sees="full",
        attention_branch=None,
        mlp_branch=None,
        reason=("condition", "gate", "input", "modulat"),
        keep=("*scale_shift_table",),
    ),
    batch=lambda: (torch.randn(2, 4, 8, 8), torch.tensor([17.0, 403.0])),
)
class SingleModulation(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.mlp = (
                SelfAttention(causal=False),
                nn.Sequential(nn.Linear(D, 64), nn.GELU("tanh"), nn.Linear(64, D)),
            )
            self.scale_shift_table = nn.Parameter(torch.randn(6, D) / D**0.5)

        def forward(self, x, t):
            shift1, scale1, gate1, shift2, scale2, gate2 = (self.scale_shift_table + t).unbind(1)
            norm = lambda y: F.layer_norm(y, (D,), eps=1e-6)  # noqa: E731
            x = x + gate1[:, None] * self.attn(norm(x) * (1 + scale1[:, None]) + shift1[:, None])
            return x + gate2[:, None] * self.mlp(norm(x) * (1 + scale2[:, None]) + shift2[:, None])

    def __init__(self):
        super().__init__()
        self.x_embedder, self.pos_embed = nn.Conv2d(4, D, 2, 2), nn.Parameter(torch.randn(16, D) * 0.3)
        self.t_embedder = nn.Sequential(nn.Linear(D, D), nn.SiLU(), nn.Linear(D, D))
        self.t_block = nn.Sequential(nn.SiLU(), nn.Linear(D, 6 * D))
        self.blocks, self.final = nn.ModuleList(self.Layer() for _ in range(3)), nn.Linear(D, 16)

    def forward(self, x, t):
        x = self.x_embedder(x).flatten(2).mT + self.pos_embed
        t = self.t_block(self.t_embedder(time_features(t))).view(len(x), 6, D)
        for block in self.blocks:
            x = block(x, t)
        return F.fold(self.final(x).mT, 8, 2, stride=2)


class Joint(nn.Module):
    """Words and picture have weights and streams of their own, and one softmax over both."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = (nn.ModuleList(nn.Linear(D, n * D) for _ in range(2)) for n in (3, 1))
        self.ff, self.norm1, self.norm2 = (
            nn.ModuleList(f() for _ in range(2)) for f in (mlp, self.norm, self.norm)
        )

    @staticmethod
    def norm():
        return nn.LayerNorm(D)

    def forward(self, *streams):
        parts = [f(n(x)).chunk(3, -1) for f, n, x in zip(self.qkv, self.norm1, streams, strict=True)]
        q, k, v = (split(torch.cat(t, 1)) for t in zip(*parts, strict=True))
        y = join(F.scaled_dot_product_attention(q, k, v)).split([x.shape[1] for x in streams], 1)
        streams = [x + f(t) for x, f, t in zip(streams, self.out, y, strict=True)]
        return [x + f(n(x)) for x, f, n in zip(streams, self.ff, self.norm2, strict=True)]


@entry(
    "two streams with one attention over both",
    Truth(3, sees=None, positions=None, reason=("stream", "joint", "other tokens", "another", "cross")),
    batch=lambda: {"latent": torch.randn(2, 12, 8), "prompt": ids()[:, :6]},
)
class TwoStreams(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.words, self.leave = nn.Linear(8, D), nn.Embedding(WORDS, D), nn.Linear(D, 8)
        self.pos1, self.pos2 = nn.Parameter(torch.randn(12, D)), nn.Parameter(torch.randn(6, D))
        self.joint_blocks = nn.ModuleList(Joint() for _ in range(3))

    def forward(self, latent, prompt):
        x, c = self.enter(latent) + self.pos1, self.words(prompt) + self.pos2
        for block in self.joint_blocks:
            x, c = block(x, c)
        return self.leave(x), c
