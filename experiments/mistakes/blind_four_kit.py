"""Five small networks with data of their own for the fourth blind list, and the usual loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from experiments.preflight.blind_five_kit import (
    GPT,
    VOCAB,
    Encoder,
    SelfAttention,
    ViT,
    generator,
    language,
    normal,
    pictures,
    sentences,
)

ARCHITECTURES = ("gpt", "llama", "encoder", "vit", "translator")
BATCHES, ROWS, LENGTH = 324, 16, 24
Batch = tuple[tuple[Tensor, ...], Tensor]
Case = dict[str, Any]


class Translator(nn.Module):
    """Encoder and decoder of torch."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, width), nn.Embedding(VOCAB, width)
        self.places = nn.Parameter(0.5 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        other = nn.TransformerDecoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(other, 1)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.source(source) + self.places[: source.shape[1]])
        x = self.target(target) + self.places[: target.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.decoder(x, memory, tgt_mask=mask))


def _llama(depth: int, dropout: float) -> nn.Module:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=48,
            intermediate_size=128,
            num_hidden_layers=depth,
            num_attention_heads=4,
            num_key_value_heads=2,
            attention_dropout=dropout,
            initializer_range=0.05,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


class Bench:
    """A model, its data and its loss; batch k is always the same and never comes twice in a run."""

    def __init__(
        self,
        architecture: str,
        depth: int = 2,
        dropout: float = 0.0,
        attention: type[nn.Module] = SelfAttention,
        tied: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.architecture = architecture
        rows = BATCHES * ROWS
        if architecture in ("gpt", "llama"):
            ids = language(LENGTH + 1, rows)
            self.data: tuple[Tensor, ...] = (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
            self.classes = VOCAB
        elif architecture == "encoder":
            ids, mask, label = sentences(classes=4, length=20, rows=rows)
            self.data, self.classes = (ids, mask, label), 4
        elif architecture == "vit":
            images, label = pictures(classes=8, rows=rows)
            self.data, self.classes = (normal(images), label), 8
        else:
            source = language(10, rows)
            other = torch.randperm(VOCAB - 3, generator=generator(14)) + 3
            target = other[source % (VOCAB - 3)]
            start = torch.cat([torch.ones_like(target[:, :1]), target[:, :-1]], dim=1)
            self.data, self.classes = (source, start, target), VOCAB
        self.model: nn.Module = {
            "gpt": lambda: GPT(width=48, depth=depth, dropout=dropout, attention=attention),
            "llama": lambda: _llama(depth, dropout),
            "encoder": lambda: Encoder(width=48, depth=depth, dropout=dropout),
            "vit": lambda: ViT(classes=8, width=48, depth=depth),
            "translator": Translator,
        }[architecture]()
        if tied:
            self.model.head.weight = self.model.tokens.weight
        self.rate = {"vit": 1e-3, "encoder": 1e-3}.get(architecture, 2e-3)

    @property
    def blocks(self) -> nn.ModuleList:
        if self.architecture == "llama":
            return self.model.model.layers
        return self.model.encoder.layers if hasattr(self.model, "encoder") else self.model.blocks

    @property
    def head(self) -> nn.Linear:
        return self.model.lm_head if self.architecture == "llama" else self.model.head

    def batch(self, k: int) -> Batch:
        """Inputs and target of one step."""
        start = (k % BATCHES) * ROWS
        *inputs, target = (t[start : start + ROWS] for t in self.data)
        return tuple(inputs), target

    def scores(self, inputs: tuple[Tensor, ...], model: nn.Module | None = None) -> Tensor:
        out = (model or self.model)(*inputs)
        return getattr(out, "logits", out)

    def loss(self, inputs: tuple[Tensor, ...], target: Tensor, model: nn.Module | None = None) -> Tensor:
        scores = self.scores(inputs, model).float()
        return F.cross_entropy(scores.flatten(0, -2), target.flatten())

    def adam(self, **more: Any) -> torch.optim.Optimizer:
        options = {"lr": self.rate} | more
        return torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], **options)

    def held(self) -> list[Batch]:
        """Batches that no run of 300 steps trains on."""
        return [self.batch(k) for k in range(BATCHES - 16, BATCHES)]


def usual(
    bench: Bench,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    data: Callable[[int], Batch] | None = None,
    loss: Callable[[tuple[Tensor, ...], Tensor], Tensor] | None = None,
    clip: float | None = 1.0,
    before: Callable[[int], None] | None = None,
    after: Callable[[int], None] | None = None,
    **more: Any,
) -> Case:
    """zero_grad, forward, backward, clip, step; with what a case changes."""
    chosen = optimizer if optimizer is not None else bench.adam()
    data, loss = data or bench.batch, loss or bench.loss

    def step(k: int) -> Tensor:
        if before is not None:
            before(k)
        inputs, target = data(k)
        chosen.zero_grad()
        value = loss(inputs, target)
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(bench.model.parameters(), clip)
        chosen.step()
        if after is not None:
            after(k)
        return value.detach()

    return {"model": bench.model, "step": step, "bench": bench} | more


def told(case: Case, cause: str, symptom: str) -> Case:
    """What is true of the mistake: alternatives divided by commas, `a+b` where both must occur."""

    def parsed(text: str) -> list[list[str]]:
        return [each.strip().split("+") for each in text.split(",") if each.strip()]

    case["truth"] = {"cause": parsed(cause), "symptom": parsed(symptom)}
    return case


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
