"""Networks whose answers are known: linear blocks, orthogonal matrices, uniform attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Plain attention; `way` chooses who computes the softmax."""

    def __init__(self, width: int, heads: int, way: str) -> None:
        super().__init__()
        self.heads, self.way = heads, way
        self.num_heads = heads
        self.q_proj, self.k_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.v_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        matrices = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (matrix(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for matrix in matrices)
        if self.way == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            softmax = {"function": F.softmax, "torch": torch.softmax, "method": Tensor.softmax}[self.way]
            mixed = softmax(logits, dim=-1) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))


class Block(nn.Module):
    """x + attention(x), then x + mlp(x): linear but for the softmax, no norms."""

    def __init__(self, width: int, heads: int, way: str) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(width, heads, way), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(
        self, depth: int = 3, width: int = 16, heads: int = 2, way: str = "fused", seed: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(40, width)
            self.blocks = nn.ModuleList(Block(width, heads, way) for _ in range(depth))
            self.head = nn.Linear(width, 40, bias=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        x = self.embedding(ids)
        for block in self.blocks:
            x = self.dropout(block(x))
        logits = self.head(x)
        if labels is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def ids(sequences: int = 2, tokens: int = 10, seed: int = 0) -> Tensor:
    return torch.randint(0, 40, (sequences, tokens), generator=torch.Generator().manual_seed(seed))
