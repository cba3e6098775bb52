"""Transformers whose parts are called anything but what they are: unusual names, and names that lie."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, DEPTH, VOCABULARY = 32, 4, 3, 64
UNUSUAL = {
    "query": "alpha",
    "key": "beta",
    "value": "gamma_",
    "output": "delta",
    "inward": "east",
    "outward": "west",
}
LYING = {
    "query": "v_proj",
    "key": "q_proj",
    "value": "k_proj",
    "output": "o_proj",
    "inward": "fc1",
    "outward": "fc2",
}


class Block(nn.Module):
    """Pre-norm attention and an MLP under these names; `fused`: one matrix for q, k, v in this order of rows."""

    def __init__(self, names: dict[str, str], fused: str = "", gated: bool = False) -> None:
        super().__init__()
        self.names, self.fused, self.gated = names, fused, gated
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for role in ("output",) if fused else ("query", "key", "value", "output"):
            self.add_module(names[role], nn.Linear(WIDTH, WIDTH))
        if fused:
            self.zeta = nn.Linear(WIDTH, 3 * WIDTH)
        self.add_module(names["inward"], nn.Linear(WIDTH, 2 * WIDTH))
        if gated:
            self.north = nn.Linear(WIDTH, 2 * WIDTH)
        self.add_module(names["outward"], nn.Linear(2 * WIDTH, WIDTH))

    def part(self, role: str) -> nn.Module:
        return self.get_submodule(self.names[role])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.part("output")(self.mix(self.first(x)))
        z = self.second(x)
        hidden = (
            F.silu(self.north(z)) * self.part("inward")(z) if self.gated else F.gelu(self.part("inward")(z))
        )
        return x + self.part("outward")(hidden)

    def changed(self, x: Tensor) -> Tensor:
        """Queries or keys before they meet: as they are."""
        return x

    def mix(self, z: Tensor) -> Tensor:
        B, n, d = z.shape
        if self.fused == "by head":
            made = self.zeta(z).view(B, n, HEADS, 3, -1).permute(3, 0, 2, 1, 4)
            k, v, q = made[0], made[1], made[2]
        elif self.fused:
            k, q, v = (t.view(B, n, HEADS, -1).transpose(1, 2) for t in self.zeta(z).chunk(3, -1))
        else:
            parts = (self.part(role)(z) for role in ("query", "key", "value"))
            q, k, v = (t.view(B, n, HEADS, -1).transpose(1, 2) for t in parts)
        q, k = self.changed(q), self.changed(k)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, n, d)


class Turning(Block):
    """Rotates queries and keys by position, with nothing in its modules that says so."""

    def changed(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[2])[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
        one, two = x.chunk(2, -1)
        return torch.cat([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1)


class Normalizing(Block):
    """Normalizes queries and keys without a module."""

    def changed(self, x: Tensor) -> Tensor:
        return 3 * F.normalize(x, dim=-1)


class Strange(nn.Module):
    """Ids to logits."""

    def __init__(
        self, names: dict[str, str] = UNUSUAL, fused: str = "", gated: bool = False, kind: type[Block] = Block
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.rooms = nn.ModuleList(kind(names, fused, gated) for _ in range(DEPTH))
        self.last, self.readout = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Any:
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        for room in self.rooms:
            x = room(x)
        return self.readout(self.last(x))
