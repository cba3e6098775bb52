"""By hand: sound, measured series, and captions behind pictures."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ..truth import TOKENS, WORDS, Truth, ids, image
from .entry import entry
from .streams import Block, D, K, SelfAttention, join, mlp, split


@entry(
    "speech in chunks that see their own chunk and all before",
    Truth(3, sees="other", activation="silu", reason=("mask", "sees", "chunk")),
    batch=lambda: torch.randn(2, 32, 20),
)
class StreamingSpeech(nn.Module):
    """Log-mel frames, halved by a convolution; chunks of four frames."""

    class Layer(Block):
        def forward(self, x, mask):
            q, k, v = (split(t) for t in self.attn.qkv(self.ln1(x)).chunk(3, -1))
            x = x + self.attn.proj(join(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))
            return x + self.mlp(self.ln2(x))

    def __init__(self):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv1d(20, D, 3, 2, 1), nn.ReLU())
        self.encoders = nn.ModuleList(self.Layer(SelfAttention(), act=nn.SiLU) for _ in range(3))
        self.after_norm, self.ctc = nn.LayerNorm(D), nn.Linear(D, 29)

    def forward(self, xs):
        x = self.subsample(xs.mT).mT
        t = torch.arange(x.shape[1])
        place = t[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        x = x * math.sqrt(D) + torch.cat([place.sin(), place.cos()], -1)
        mask = t[None, :] < (t[:, None] // 4 + 1) * 4
        for layer in self.encoders:
            x = layer(x, mask)
        return self.ctc(self.after_norm(x)).log_softmax(-1)


@entry(
    "raw sound, filters, positions by a grouped convolution, post-norm",
    Truth(3, sees="full", norm="post", absolute=None, reason=("convol", "position")),
    batch=lambda: torch.randn(2, 320),
)
class RawSound(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.layer_norm = SelfAttention(causal=False), nn.LayerNorm(D)
            self.intermediate_dense, self.output_dense = nn.Linear(D, 64), nn.Linear(64, D)
            self.final_layer_norm, self.dropout = nn.LayerNorm(D), nn.Dropout(0.1)

        def forward(self, hidden_states):
            residual = hidden_states
            hidden_states = residual + self.dropout(self.attention(hidden_states))
            hidden_states = self.layer_norm(hidden_states)
            inner = self.dropout(self.output_dense(F.gelu(self.intermediate_dense(hidden_states))))
            return self.final_layer_norm(hidden_states + inner)

    def __init__(self):
        super().__init__()
        self.extract = nn.Sequential(nn.Conv1d(1, 16, 10, 5), nn.GELU(), nn.Conv1d(16, D, 4, 4), nn.GELU())
        self.pos_conv, self.norm = nn.Conv1d(D, D, 5, padding=2, groups=4), nn.LayerNorm(D)
        self.layers, self.project = nn.ModuleList(self.Layer() for _ in range(3)), nn.Linear(D, 12)

    def forward(self, input_values):
        x = self.extract(input_values[:, None]).mT
        x = self.norm(x + F.gelu(self.pos_conv(x.mT)).mT)
        for layer in self.layers:
            x = layer(x)
        return self.project(x)


@entry(
    "series in patches, batch norm after the sum, scores handed on",
    Truth(
        3, sees="full", norm="post", norm_kind="batch", reason=("batch", "norm", "earlier", "score", "bias")
    ),
    batch=lambda: torch.randn(2, 3, 64),
)
class PatchedSeries(nn.Module):
    """Each variable by itself; the logits of a layer are added to those of the next."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.W_Q, self.W_K, self.W_V, self.to_out = (nn.Linear(D, D) for _ in range(4))
            self.norm_attn, self.norm_ffn, self.ff = nn.BatchNorm1d(D), nn.BatchNorm1d(D), mlp()

        def forward(self, x, prev):
            q, k, v = split(self.W_Q(x)), split(self.W_K(x)), split(self.W_V(x))
            scores = q @ k.transpose(2, 3) * K**-0.5
            scores = scores if prev is None else scores + prev
            x = x + self.to_out(join(scores.softmax(-1) @ v))
            x = self.norm_attn(x.transpose(1, 2)).transpose(1, 2)
            return self.norm_ffn((x + self.ff(x)).transpose(1, 2)).transpose(1, 2), scores

    def __init__(self):
        super().__init__()
        self.W_P, self.W_pos = nn.Linear(8, D), nn.Parameter(torch.randn(15, D) * 0.5)
        self.layers, self.head = nn.ModuleList(self.Layer() for _ in range(3)), nn.Linear(15 * D, 6)

    def forward(self, z):
        x = self.W_P(z.unfold(-1, 8, 4)).flatten(0, 1) + self.W_pos
        scores = None
        for layer in self.layers:
            x, scores = layer(x, scores)
        return self.head(x.flatten(1)).unflatten(0, z.shape[:2])


@entry(
    "series halved between the layers",
    Truth(
        3,
        sees="full",
        norm="post",
        activation="relu",
        skip=None,
        absolute=True,
        reason=("convol", "pool", "length", "differ", "other tokens"),
    ),
    batch=lambda: {"x_enc": torch.randn(2, 32, 5), "x_mark": torch.rand(2, 32, 3)},
)
class Distilled(nn.Module):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm1, self.norm2 = (
                SelfAttention(causal=False),
                nn.LayerNorm(D),
                nn.LayerNorm(D),
            )
            self.conv1, self.conv2 = nn.Conv1d(D, 64, 1), nn.Conv1d(64, D, 1)

        def forward(self, x):
            x = y = self.norm1(x + self.attention(x))
            y = self.conv2(F.relu(self.conv1(y.transpose(-1, 1)))).transpose(-1, 1)
            return self.norm2(x + y)

    class Halve(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.norm = nn.Conv1d(D, D, 3, padding=1, padding_mode="circular"), nn.BatchNorm1d(D)

        def forward(self, x):
            return F.max_pool1d(F.elu(self.norm(self.down(x.mT))), 3, 2, 1).mT

    def __init__(self):
        super().__init__()
        self.value, self.mark = nn.Conv1d(5, D, 3, padding=1, bias=False), nn.Linear(3, D)
        self.position = nn.Parameter(torch.randn(32, D))
        self.attn_layers = nn.ModuleList(self.Layer() for _ in range(3))
        self.conv_layers, self.out = nn.ModuleList(self.Halve() for _ in range(2)), nn.Linear(D, 5)

    def forward(self, x_enc, x_mark):
        x = self.value(x_enc.mT).mT + self.mark(x_mark) + self.position
        for attend, halve in zip(self.attn_layers, self.conv_layers, strict=False):
            x = halve(attend(x))
        return self.out(self.attn_layers[-1](x))


@entry(
    "captions behind a picture that all of them see",
    Truth(3, sees="prefix", reason=("prefix", "mask", "sees", "picture")),
    batch=lambda: {"image": image(), "text": ids()[:, :8]},
)
class Captions(nn.Module):
    def __init__(self):
        super().__init__()
        self.see, self.read, self.kind = nn.Conv2d(3, D, 8, 8), nn.Embedding(WORDS, D), nn.Embedding(2, D)
        self.pos, self.out = nn.Embedding(TOKENS + 8, D), nn.Linear(D, WORDS)
        self.layers = nn.ModuleList(StreamingSpeech.Layer(SelfAttention()) for _ in range(3))

    def forward(self, image, text):
        x = torch.cat(
            [self.see(image).flatten(2).mT + self.kind.weight[0], self.read(text) + self.kind.weight[1]], 1
        )
        n, x = x.shape[1], x + self.pos.weight
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        mask[:, :TOKENS] = True
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(x[:, TOKENS:])
