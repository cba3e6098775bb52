"""Twelve small trainings for the third blind list: the network, its data from seeds, its loss, and its held-out loss."""
# ruff: noqa: E501

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

HELD = 10**6
COSTS = Path(__file__).with_name("blind_three_costs.json")


@dataclass
class Bench:
    """One training: `data(k, rows)` makes a batch, `loss(model, batch)` the loss, `rate` is good for AdamW."""

    model: nn.Module
    data: Callable[..., Any]
    loss: Callable[[nn.Module, Any], Tensor]
    rate: float = 2e-3
    rows: int = 32

    def held(self) -> float:
        """Loss on rows never trained on, without dropout."""
        self.model.eval()
        with torch.no_grad():
            value = float(self.loss(self.model, self.data(HELD, 128)))
        self.model.train()
        return value

    def adamw(self, **rest: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), **{"lr": self.rate, **rest})


def truth(name: str, cause: list, symptom: list) -> dict[str, Any]:  # type: ignore[type-arg]
    known = json.loads(COSTS.read_text()) if COSTS.exists() else {}
    costs = [row["cost"] for key, row in known.items() if key.split(" ")[0] == name and "cost" in row]
    return {"cause": cause, "symptom": symptom, "cost": round(sum(costs) / len(costs), 3) if costs else None}


def source(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 4242)


def entropy(logits: Tensor, target: Tensor, **rest: Any) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), target.flatten(), **rest)


def stack(
    width: int, layers: int, heads: int = 4, dropout: float = 0.0, first: bool = True
) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        width, heads, 2 * width, dropout, activation="gelu", batch_first=True, norm_first=first
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def text(k: int, rows: int, length: int = 20, vocab: int = 32) -> Tensor:
    """Four successors of each word, at 60, 20, 15 and 5 %."""
    draw = source(k)
    odds = torch.tensor([0.6, 0.2, 0.15, 0.05])
    out = torch.randint(0, vocab, (rows, length), generator=draw)
    jump = torch.multinomial(odds, rows * length, True, generator=draw).view(rows, length)
    for t in range(1, length):
        out[:, t] = (7 * out[:, t - 1] + 3 + 5 * jump[:, t]) % vocab
    return out


def sentences(k: int, rows: int, length: int = 14, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Filler and, twice, the word of the class; in 8 % of rows the label is another one."""
    draw = source(k)
    label = torch.randint(0, classes, (rows,), generator=draw)
    words = torch.randint(10, 40, (rows, length), generator=draw)
    for _ in range(2):
        words[torch.arange(rows), torch.randint(3, length, (rows,), generator=draw)] = 1 + label
    other = torch.randint(0, classes, (rows,), generator=draw)
    return words, torch.where(torch.rand(rows, generator=draw) < 0.08, other, label)


def stripes(k: int, rows: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    """Images of stripes of one of four angles in noise, standardized."""
    draw = source(k)
    label = torch.randint(0, classes, (rows,), generator=draw)
    angle = (label * math.pi / classes)[:, None, None, None]
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    phase = 6.28 * torch.rand(rows, 1, 1, 1, generator=draw)
    wave = torch.sin(0.9 * (x * angle.cos() + y * angle.sin()) + phase)
    return wave + 0.9 * torch.randn(rows, 3, 16, 16, generator=draw), label


def waves(k: int, rows: int, length: int = 36) -> Tensor:
    draw = source(k)
    t = torch.arange(length)
    speed = 0.3 + 0.3 * torch.rand(rows, 1, generator=draw)
    fast = torch.sin(t * speed + 6.28 * torch.rand(rows, 1, generator=draw))
    return fast + 0.1 * torch.randn(rows, length, generator=draw)


class Causal(nn.Module):
    def __init__(self, width: int = 32, layers: int = 3, **rest: Any) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(32, width), nn.Parameter(0.02 * torch.randn(20, width))
        self.encode, self.norm = stack(width, layers, **rest), nn.LayerNorm(width)
        self.head = nn.Linear(width, 32)

    def forward(self, words: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        x = self.encode(self.embed(words) + self.place[: words.shape[1]], mask, is_causal=True)
        return self.head(self.norm(x))


def gpt() -> Bench:
    return Bench(Causal(), text, lambda m, x: entropy(m(x)[:, :-1], x[:, 1:]), rows=16)


def llama() -> Bench:
    model = hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32,
        )
    )  # fmt: skip
    return Bench(model, text, lambda m, x: m(input_ids=x, labels=x).loss, rows=16, rate=3e-3)


class Words(nn.Module):
    def __init__(self, classes: int = 4, dropout: float = 0.0, pool: bool = True) -> None:
        super().__init__()
        self.embed, self.encode, self.pool = nn.Embedding(40, 32), stack(32, 2, dropout=dropout), pool
        self.head = nn.Linear(32, classes)

    def states(self, words: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.encode(self.embed(words), src_key_padding_mask=padding)
        if padding is None:
            return x.mean(1)
        kept = (~padding).float()[..., None]
        return (x * kept).sum(1) / kept.sum(1)

    def forward(self, words: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.head(self.states(words, padding))


def words() -> Bench:
    return Bench(Words(), sentences, lambda m, b: F.cross_entropy(m(*b[:-1]), b[-1]))


def bert() -> Bench:
    model = hf.BertForSequenceClassification(
        hf.BertConfig(
            vocab_size=40, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=32, num_labels=4, hidden_dropout_prob=0.05, attention_probs_dropout_prob=0.05,
        )
    )  # fmt: skip
    return Bench(model, sentences, lambda m, b: F.cross_entropy(m(input_ids=b[0]).logits, b[1]))


def vit() -> Bench:
    model = hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
            num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip
    return Bench(model, stripes, lambda m, b: F.cross_entropy(m(pixel_values=b[0]).logits, b[1]))


def t5() -> Bench:
    model = hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, dropout_rate=0.0,
            decoder_start_token_id=63, pad_token_id=63, tie_word_embeddings=False,
        )
    )  # fmt: skip

    def data(k: int, rows: int) -> dict[str, Tensor]:
        draw = source(k)
        key = torch.randint(0, 12, (rows,), generator=draw)
        ask = torch.randint(40, 60, (rows, 6), generator=draw)
        ask[torch.arange(rows), torch.randint(0, 6, (rows,), generator=draw)] = key
        return {"input_ids": ask, "labels": 12 + (key[:, None] * 11 + torch.arange(4) * 5) % 28}

    return Bench(model, data, lambda m, b: m(**b).loss, rate=4e-3)


class Mixer(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.inlet, self.head = nn.Linear(48, width), nn.Linear(width, 4)
        self.tokens = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(3)
        )
        self.channels = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 80), nn.GELU(), nn.Linear(80, width))
            for _ in range(3)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))

    def forward(self, image: Tensor) -> Tensor:
        cut = image.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(1, 2).flatten(2)
        x = self.inlet(cut)
        for mix, think, norm in zip(self.tokens, self.channels, self.norms, strict=False):
            x = x + mix(norm(x).mT).mT
            x = x + think(x)
        return self.head(self.norms[-1](x).mean(1))


def mixer() -> Bench:
    return Bench(Mixer(), stripes, lambda m, b: F.cross_entropy(m(b[0]), b[1]), rate=1e-3)


class Experts(nn.Module):
    def __init__(self, width: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.router, self.temperature = nn.Linear(width, 4), temperature
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(4)
        )
        self.logits = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.logits = self.router(x)
        share = (self.logits / self.temperature).softmax(-1)
        return (torch.stack([e(x) for e in self.experts], -1) * share[..., None, :]).sum(-1)


class Sparse(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(32, width), nn.Parameter(0.02 * torch.randn(20, width))
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, 2, batch_first=True) for _ in range(2))
        self.mlps = nn.ModuleList(Experts(width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.head = nn.Linear(width, 32)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words) + self.place[: words.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        for n in range(2):
            y = self.norms[2 * n](x)
            x = x + self.attend[n](y, y, y, attn_mask=mask, need_weights=False)[0]
            x = x + self.mlps[n](self.norms[2 * n + 1](x))
        return self.head(self.norms[4](x))


def moe() -> Bench:
    return Bench(Sparse(), text, lambda m, x: entropy(m(x)[:, :-1], x[:, 1:]), rows=16, rate=4e-3)


class Sound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(1, 24, 16, 8), nn.GELU(), nn.Conv1d(24, 32, 4, 2))
        self.encode, self.head = stack(32, 2), nn.Linear(32, 4)

    def forward(self, sound: Tensor) -> Tensor:
        return self.head(self.encode(self.front(sound[:, None]).mT).mean(1))


def tones(k: int, rows: int) -> tuple[Tensor, Tensor]:
    draw = source(k)
    label = torch.randint(0, 4, (rows,), generator=draw)
    pitch = 0.15 + 0.2 * label[:, None] + 0.05 * torch.rand(rows, 1, generator=draw)
    sound = torch.sin(pitch * torch.arange(192) + 6.28 * torch.rand(rows, 1, generator=draw))
    return sound + 0.8 * torch.randn(rows, 192, generator=draw), label


def sound() -> Bench:
    return Bench(Sound(), tones, lambda m, b: F.cross_entropy(m(b[0]), b[1]))


class Forecast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet, self.place = nn.Linear(4, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        self.encode, self.head = stack(32, 2, first=False), nn.Linear(256, 4)

    def forward(self, past: Tensor) -> Tensor:
        return self.head(self.encode(self.inlet(past.reshape(-1, 8, 4)) + self.place).flatten(1))


def series() -> Bench:
    return Bench(Forecast(), waves, lambda m, x: F.mse_loss(m(x[:, :32]), x[:, 32:]), rate=1e-3)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Words(classes=32), nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 32))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, words: Tensor, bag: Tensor) -> Tensor:
        one, two = F.normalize(self.one(words), dim=-1), F.normalize(self.two(bag), dim=-1)
        return self.logit_scale.exp() * one @ two.mT


def pairs(k: int, rows: int) -> tuple[Tensor, Tensor]:
    """Sentences, and a noisy count of the words of each."""
    words = torch.randint(0, 40, (rows, 6), generator=source(k))
    bag = F.one_hot(words, 40).sum(1).float()
    return words, bag + 0.3 * torch.randn(rows, 40, generator=source(k + 1))


def both_ways(scores: Tensor) -> Tensor:
    own = torch.arange(len(scores))
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.mT, own)) / 2


def towers() -> Bench:
    return Bench(Towers(), pairs, lambda m, b: both_ways(m(*b)), rate=1e-3)


BENCHES: dict[str, Callable[[], Bench]] = {
    make.__name__: make for make in (gpt, llama, words, bert, vit, t5, mixer, moe, sound, series, towers)
}


def bench(architecture: str) -> Bench:
    torch.manual_seed(7)
    return BENCHES[architecture]()


def run(
    own: Bench,
    optimizer: torch.optim.Optimizer,
    *,
    feed: Callable[[int], Any] | None = None,
    loss: Callable[[nn.Module, Any, int], Tensor] | None = None,
    before: Callable[[int], None] | None = None,
    gradients: Callable[[int], None] | None = None,
    after: Callable[[int], None] | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """A loop in the usual order, with places for what a user adds: before it, between backward and step, after it."""

    def step(k: int) -> Tensor:
        if before is not None:
            before(k)
        batch = feed(k) if feed is not None else own.data(k, own.rows)
        optimizer.zero_grad()
        value = own.loss(own.model, batch) if loss is None else loss(own.model, batch, k)
        value.backward()
        if gradients is not None:
            gradients(k)
        optimizer.step()
        if after is not None:
            after(k)
        return value.detach()

    return {"model": own.model, "step": step, "steps": 300, "held": own.held, **rest}
