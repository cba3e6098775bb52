"""Networks, data and small helpers of the fifth blind list: everything is made here, nothing is downloaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB, LENGTH = 32, 32
TRAIN, HELD, ROWS = 48, 4, 16
Setup = dict[str, Any]


def told(setup: Setup, words: Sequence[str], places: str = "", consequences: Sequence[str] = ()) -> Setup:
    """Add what is true of the mistake; `a+b` means that both beginnings must occur."""
    setup["truth"] = {
        "words": [word.split("+") for word in words],
        "places": places.split(),
        "consequences": [word.split("+") for word in consequences],
    }
    return setup


def training(
    model: nn.Module,
    batches: list[Any],
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    lr: float = 2e-3,
    **more: Any,
) -> Setup:
    """AdamW on the first batches; the last ones are kept for measuring what a mistake costs."""
    setup: Setup = {"model": model, "batches": batches[:-HELD], "held": batches[-HELD:]}
    if loss is not None:
        setup["loss"] = loss
    if "optimizer" not in more:
        more["optimizer"] = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    return setup | more


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cut(*tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Rows cut into batches."""
    return list(zip(*(t.split(ROWS) for t in tensors), strict=True))


def language(length: int = LENGTH, rows: int = (TRAIN + HELD) * ROWS, seed: int = 1) -> Tensor:
    """Each token has four successors, and the token before it tells which; one in ten is drawn at random."""
    successor = torch.randint(1, VOCAB, (VOCAB, 4), generator=generator(7))
    g = generator(seed)
    text = torch.randint(1, VOCAB, (rows, length), generator=g)
    kept = torch.rand(rows, length, generator=g) < 0.9
    for i in range(2, length):
        text[:, i] = torch.where(kept[:, i], successor[text[:, i - 1], text[:, i - 2] % 4], text[:, i])
    return text


def texts(length: int = LENGTH, seed: int = 1) -> list[Tensor]:
    return list(language(length, seed=seed).split(ROWS))


def sentences(
    classes: int = 4,
    length: int = 24,
    seed: int = 2,
    share: Sequence[float] | None = None,
    rows: int = (TRAIN + HELD) * ROWS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids with padding 0 on the right, mask and label; two to four words of a class decide its label."""
    g = generator(seed)
    weights = torch.tensor(share) if share is not None else torch.ones(classes)
    label = torch.multinomial(weights.float(), rows, replacement=True, generator=g)
    ids = torch.randint(2 + 5 * classes, 2 + 5 * classes + 24, (rows, length), generator=g)
    size = torch.randint(length // 3, length - 2, (rows,), generator=g)
    for _ in range(3):
        place = (torch.rand(rows, generator=g) * size).long()
        word = 2 + 5 * label + torch.randint(5, (rows,), generator=g)
        ids[torch.arange(rows), place] = word
    mask = torch.arange(length)[None] < size[:, None]
    return ids.masked_fill(~mask, 0), mask.long(), label


WORDS = 2 + 5 * 4 + 24


def pictures(
    classes: int = 4, size: int = 16, seed: int = 3, rows: int = (TRAIN + HELD) * ROWS
) -> tuple[Tensor, Tensor]:
    """Gratings of a direction for each class and of any color, in noise: images of 0 to 255, and labels."""
    g = generator(seed)
    label = torch.randint(classes, (rows,), generator=g)
    angle = math.pi * label / classes
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    phase = 6.28 * torch.rand(rows, 1, 1, generator=g)
    wave = torch.sin((x[None] * angle.cos()[:, None, None] + y[None] * angle.sin()[:, None, None]) + phase)
    tint = torch.rand(rows, 3, 1, 1, generator=g)
    noise = torch.randn(rows, 3, size, size, generator=g)
    return (128 + 45 * wave[:, None] * (0.5 + tint) + 25 * noise).clamp(0, 255), label


def normal(images: Tensor) -> Tensor:
    """Pixels of mean 0 and deviation about 1."""
    return (images / 255 - 0.5) / 0.2


def series(length: int = 48, seed: int = 4) -> Tensor:
    """Two waves of random phase and height, and noise."""
    g = generator(seed)
    rows = (TRAIN + HELD) * ROWS
    t = torch.arange(length).float()[None]
    phase, height = 6.28 * torch.rand(rows, 2, generator=g), 0.5 + torch.rand(rows, 2, generator=g)
    clean = sum(
        height[:, i : i + 1] * torch.sin(t * w + phase[:, i : i + 1]) for i, w in enumerate((0.3, 0.8))
    )
    return clean + 0.1 * torch.randn(rows, length, generator=g)


class SelfAttention(nn.Module):
    """Causal attention of nanoGPT."""

    causal = True

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        return x.view(rows, length, self.heads, width // self.heads).transpose(1, 2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.mix(q, k, v).transpose(1, 2).reshape(x.shape))


class Open(SelfAttention):
    """The same without a mask."""

    causal = False


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attention: type[nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """A nanoGPT."""

    def __init__(
        self,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        vocab: int = VOCAB,
        attention: type[nn.Module] = SelfAttention,
        dropout: float = 0.0,
        positions: bool = True,
        plain: bool = False,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Embedding(64, width) if positions else None
        self.blocks = nn.ModuleList(Block(width, heads, attention, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if not plain:
            self.apply(small)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return x if self.places is None else x + self.places(torch.arange(ids.shape[1]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def small(module: nn.Module) -> None:
    """The usual start of a GPT."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.05)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def next_token(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def by_prefix(held: Sequence[Tensor], ends: Sequence[int] = (10, 18, 26)) -> Callable[[nn.Module], float]:
    """The loss of the next token when nothing after it is given: what a generating model meets."""

    def judge(model: nn.Module) -> float:
        rows = torch.cat(held)
        lost = []
        for end in ends:
            logits = model(rows[:, :end])
            logits = getattr(logits, "logits", logits)[:, -1].float()
            lost.append(float(F.cross_entropy(logits, rows[:, end])))
        return sum(lost) / len(lost)

    return judge


class Encoder(nn.Module):
    """A classifier of sentences on `nn.TransformerEncoder`, mean over the real tokens."""

    def __init__(
        self, classes: int = 4, width: int = 64, depth: int = 2, vocab: int = WORDS, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout, batch_first=True, norm_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        return self.norm(self.encoder(x, src_key_padding_mask=mask == 0))

    def pooled(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.hidden(ids, mask) * mask[..., None]
        return x.sum(1) / mask.sum(1, keepdim=True)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.head(self.pooled(ids, mask))


def classified(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    ids, mask, label = batch
    return F.cross_entropy(model(ids, mask), label)


class ViT(nn.Module):
    """A small vision transformer: patches of 4, a class token, learned places."""

    def __init__(self, classes: int = 4, width: int = 64, depth: int = 2, size: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + (size // 4) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, 4, Open) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def features(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images)[:, 0])


def seen(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, label = batch
    return F.cross_entropy(model(images), label)


def plain_step(loss: Callable[[nn.Module, Any], Tensor]) -> Callable[..., Tensor]:
    """The usual loop body."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, k: int) -> Tensor:  # noqa: ARG001
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value

    return step
