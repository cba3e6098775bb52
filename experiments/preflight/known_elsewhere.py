"""Every known class of mistakes in four architectures that no fact was tuned on: run to measure, not to tune."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from experiments.preflight import development_two
from experiments.preflight.networks import DEPTH, TOKENS, VOCABULARY, WIDTH, Network, huggingface


class Parallel(nn.Module):
    """Attention and MLP side by side, with ALiBi, squared ReLU and RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.kv = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix, self.wide, self.narrow = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        y = self.norm(x)
        heads = (len(x), x.shape[1], 4, 16)
        q = self.q(y).view(heads).transpose(1, 2)
        k, v = (
            t.view(*heads[:2], 2, 16).repeat_interleave(2, 2).transpose(1, 2) for t in self.kv(y).chunk(2, -1)
        )
        mixed = ((q @ k.mT) / 4 + bias).softmax(-1) @ v
        return (
            x + self.mix(mixed.transpose(1, 2).reshape(x.shape)) + self.narrow(self.wide(y).relu().square())
        )


class Sideways(nn.Module):
    """A language model of parallel blocks without learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.stack = nn.ModuleList([Parallel() for _ in range(DEPTH)])
        self.last, self.read = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.1 if "words" in name else WIDTH**-0.5 / 2)
        steps = torch.arange(TOKENS)
        slopes = 0.25 ** torch.arange(1, 5)[:, None, None]
        ahead = steps[None] > steps[:, None]
        self.register_buffer("bias", (slopes * (steps[None] - steps[:, None])).masked_fill(ahead, -torch.inf))

    def forward(self, ids: Tensor) -> Tensor:
        n, x = ids.shape[1], self.words(ids)
        for block in self.stack:
            x = block(x, self.bias[:, :n, :n])
        out: Tensor = self.read(self.last(x))
        return out


LLAMA = {
    "blocks": "model.layers",
    "attention": "self_attn",
    "table": "model.embed_tokens",
    "head": "lm_head",
    "matrix": "mlp.up_proj",
    "norm": "input_layernorm",
}
ELSEWHERE = [
    Network("granite", lambda: huggingface("granite"), **LLAMA),
    Network("stablelm", lambda: huggingface("stablelm"), **LLAMA),
    Network(
        "roberta",
        lambda: huggingface("roberta"),
        blocks="roberta.encoder.layer",
        attention="attention",
        table="roberta.embeddings.word_embeddings",
        head="lm_head.decoder",
        task="masked",
        matrix="intermediate.dense",
        norm="attention.output.LayerNorm",
    ),
    Network(
        "parallel",
        Sideways,
        blocks="stack",
        attention="",
        table="words",
        head="read",
        matrix="wide",
        norm="norm",
    ),
]


def more() -> Iterator[tuple[str, str, Callable[[], dict[str, Any] | None]]]:
    """Every mistake that can be planted there, and every network as it is."""
    yield from development_two.more(ELSEWHERE)
