"""Four small language models and their data: what the mistakes of a list are planted in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, TOKENS, BATCH = 32, 32, 8
ARCHITECTURES = ("encoder", "gpt", "llama", "gpt2")


def text(seed: int, shift: int = 0) -> Iterator[Tensor]:
    """Batches (BATCH, TOKENS + 1): every token follows from the two before it in nine of ten places."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, VOCABULARY, (VOCABULARY, 4), generator=torch.Generator().manual_seed(7 + shift))
    while True:
        x = torch.randint(0, VOCABULARY, (BATCH, TOKENS + 1), generator=generator)
        for t in range(2, TOKENS + 1):
            follows = table[x[:, t - 1], x[:, t - 2] % 4]
            x[:, t] = torch.where(torch.rand(BATCH, generator=generator) < 0.9, follows, x[:, t])
        yield x


class Encoder(nn.Module):
    """torch's encoder with a causal mask."""

    def __init__(self, width: int = 48, depth: int = 3, *, dropout: float = 0.0, mask: bool = True) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        for parameter in self.stack.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.norm, self.readout, self.mask = nn.LayerNorm(width), nn.Linear(width, VOCABULARY), mask

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.mask else None
        hidden = self.table(x) + self.places.weight[: x.shape[1]]
        return self.readout(self.norm(self.stack(hidden, mask=mask, is_causal=self.mask)))


class Attention(nn.Module):
    """Fused projections; rotary if asked."""

    def __init__(self, width: int, rotary: bool, mask: bool, scale: float | None) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.rotary, self.mask, self.scale = rotary, mask, scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.rotary:
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.mask, scale=self.scale)
        return self.out(y.transpose(1, 2).flatten(2))


def rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    turned = torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)
    return turned.to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int, rotary: bool, mask: bool, scale: float | None, dropout: float) -> None:
        super().__init__()
        norm = nn.RMSNorm if rotary else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention = Attention(width, rotary, mask, scale)
        self.up, self.down, self.drop = (
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
            nn.Dropout(dropout),
        )
        self.skip = True

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.attention(self.norm1(x)))
        x = x + y if self.skip else y
        y = self.drop(self.down(F.silu(self.up(self.norm2(x)))))
        return x + y if self.skip else y


class Decoder(nn.Module):
    """A GPT with learned positions, or a Llama with rotary ones."""

    def __init__(
        self,
        rotary: bool,
        width: int = 48,
        depth: int = 3,
        *,
        dropout: float = 0.0,
        mask: bool = True,
        scale: float | None = None,
        places: bool = True,
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, width)
        self.places = None if rotary or not places else nn.Embedding(TOKENS, width)
        rotary = rotary and places
        self.blocks = nn.ModuleList(Block(width, rotary, mask, scale, dropout) for _ in range(depth))
        self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.table(x)
        if self.places is not None:
            hidden = hidden + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.readout(self.norm(hidden))


def network(architecture: str, seed: int = 0, **options: Any) -> nn.Module:
    """One of the four; options: dropout, mask, scale, places (which not every one of them has)."""
    torch.manual_seed(seed)
    if architecture == "encoder":
        return Encoder(**options)
    if architecture in ("gpt", "llama"):
        return Decoder(architecture == "llama", **options)
    import transformers

    p = options.get("dropout", 0.0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=48,
        n_layer=3,
        n_head=4,
        resid_pdrop=p,
        embd_pdrop=p,
        attn_pdrop=p,
    )
    return transformers.GPT2LMHeadModel(config)


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The list of its blocks."""
    return next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 3)
