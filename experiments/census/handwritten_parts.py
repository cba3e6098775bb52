"""Parts of hand-written transformers: attention, feed-forwards and mixers, in names that say nothing."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, BATCH, TOKENS = 4, 256, 4, 512, 512, 4, 40


def heads_of(x: Tensor, heads: int = HEADS) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return (weights.to(v.dtype) @ v).transpose(1, 2).flatten(2)


def causal(tokens: int) -> Tensor:
    return torch.full((tokens, tokens), float("-inf")).triu(1)


class Mix(nn.Module):
    """Self-attention; `norm` is applied to queries and keys of each head, `bias` is added to the scores."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.qkv, self.back = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.calm = nn.RMSNorm(WIDTH // HEADS) if norm else nn.Identity()

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        q, k, v = (heads_of(part) for part in self.qkv(x).chunk(3, -1))
        return self.back(attend(self.calm(q), self.calm(k), v, bias))


class Feed(nn.Sequential):
    def __init__(self, activation: type[nn.Module] = nn.GELU) -> None:
        super().__init__(nn.Linear(WIDTH, HIDDEN), activation(), nn.Linear(HIDDEN, WIDTH))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.silu(self.a(x)) * self.b(x))


class Add(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class Experts(nn.Module):
    """The two best of four gated feed-forwards for each token, in a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.choose, self.experts = (
            nn.Linear(WIDTH, 4, bias=False),
            nn.ModuleList([Gated() for _ in range(4)]),
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.choose(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            batch, place, rank = (chosen == number).nonzero(as_tuple=True)
            if len(batch):
                out = out.index_put(
                    (batch, place), weights[batch, place, rank, None] * expert(x[batch, place]), True
                )
        return out


class Torch(nn.Module):
    """nn.MultiheadAttention with a mask that the caller passes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.inner(x, x, x, attn_mask=bias, need_weights=False)[0]


class Linear(Mix):
    """Causal linear attention: no softmax, rows do not sum to one."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (heads_of(part) for part in self.qkv(x).chunk(3, -1))
        state = (k[..., :, None] * v[..., None, :]).cumsum(2)
        return self.back((q[..., None, :] @ state).squeeze(-2).transpose(1, 2).flatten(2) / WIDTH)


class Convolution(nn.Module):
    """A causal convolution over four tokens with a gate: mixes tokens without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH)
        self.gate, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: ARG002
        mixed = self.inner(F.pad(x.transpose(1, 2), (3, 0))).transpose(1, 2)
        return self.out(mixed * self.gate(x).sigmoid())
