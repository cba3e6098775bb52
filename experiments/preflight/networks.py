"""Twelve architectures for the development list: hand-written, torch's own, and Hugging Face's, all small."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, WIDTH, TOKENS, BATCH, DEPTH = 96, 64, 24, 6, 4


class Attention(nn.Module):
    """Causal or bidirectional attention, with the options that mistakes turn."""

    def __init__(self, heads: int = 4, causal: bool = True, fused: bool = True, rotary: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads, self.causal, self.fused, self.rotary = heads, causal, fused, rotary
        self.mistake, self.slope, self.apart = "", 0.0, None

    def forward(self, x: Tensor, pad: Tensor | None = None) -> Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if self.rotary:
            q, k = rotate(q), k if self.mistake == "rotary queries" else rotate(k)
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device)
        mask = (mask.tril() if self.causal else mask)[None, None]
        if pad is not None:
            mask = mask & ~pad[:, None, None]
        if self.apart is not None:
            mask = mask & self.apart
        if self.mistake == "no mask":
            mask = torch.ones_like(mask)
        if self.mistake == "inverted mask":
            mask = ~mask | torch.eye(n, dtype=torch.bool)
        if self.mistake == "transposed mask":
            mask = mask.transpose(-1, -2)
        if self.mistake == "diagonal only":
            mask = torch.eye(n, dtype=torch.bool)[None, None].expand_as(mask)
        if self.slope:  # ALiBi: minus 0.5, 0.25, ... times the distance
            steps = torch.arange(n)
            slopes = self.slope * 0.5 ** torch.arange(self.heads)[:, None, None]
            bias = (slopes * (steps[:, None] - steps)).masked_fill(~mask, -math.inf)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        elif self.fused and self.mistake not in ("axis", "after", "weak", "scale", "heads"):
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-1, -2) / (1 if self.mistake == "scale" else math.sqrt(d // self.heads))
            if self.mistake == "heads":
                scores = scores[:, :1].expand_as(scores)
            if self.mistake == "after":
                y = (scores.softmax(-1) * mask) @ v
            elif self.mistake == "weak":
                y = (scores - (~mask).float()).softmax(-1) @ v
            else:
                scores = scores.masked_fill(~mask, -math.inf)
                y = (
                    scores.nan_to_num(neginf=-1e9).softmax(-2)
                    if self.mistake == "axis"
                    else scores.softmax(-1)
                ) @ v
        y = y.reshape(b, n, d) if self.mistake == "reshape" else y.transpose(1, 2).reshape(b, n, d)
        return self.out(y)


def rotate(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * (10000.0 ** (-torch.arange(half) / half))
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Block(nn.Module):
    """Pre-norm or post-norm, with a plain or a gated MLP."""

    def __init__(self, norm: str = "pre", gated: bool = False, rms: bool = False, **attention: Any) -> None:
        super().__init__()
        make = nn.RMSNorm if rms else nn.LayerNorm
        self.norm1, self.norm2, self.attn = make(WIDTH), make(WIDTH), Attention(**attention)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH) if gated else None
        self.norm, self.mistake = norm, ""

    def mlp(self, x: Tensor) -> Tensor:
        if self.mistake == "no activation":
            return self.down(self.up(x))
        inner = F.silu(self.gate(x)) * self.up(x) if self.gate is not None else F.gelu(self.up(x))
        return self.down(inner)

    def forward(self, x: Tensor, pad: Tensor | None = None) -> Tensor:
        if self.mistake == "norm on the skip":
            x = self.norm1(x)
            x = x + self.attn(x, pad)
            x = self.norm2(x)
            return x + self.mlp(x)
        if self.norm == "pre":
            keep = 0 if self.mistake == "no skip" else 2 if self.mistake == "double skip" else 1
            x = keep * x + self.attn(self.norm1(x), pad)
            return keep * x + self.mlp(self.norm2(x))
        x = self.norm1(x + self.attn(x, pad))
        return self.norm2(x + self.mlp(x))


class Language(nn.Module):
    """A language model or encoder with learned positions."""

    def __init__(self, tied: bool = False, positions: bool = True, std: float = 0.02, **block: Any) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCABULARY, WIDTH)
        self.pos = nn.Embedding(TOKENS + 8, WIDTH) if positions else None
        self.blocks = nn.ModuleList([Block(**block) for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=std)
        if tied:
            self.head.weight = self.tok.weight
        self.post, self.mistake = block.get("norm") == "post", ""

    def forward(self, ids: Tensor, pad: Tensor | None = None) -> Tensor:
        x = self.tok(ids)
        if self.pos is not None and self.mistake != "no positions":
            steps = torch.arange(ids.shape[1])
            steps = torch.zeros_like(steps) if self.mistake == "same position" else steps
            steps = torch.arange(len(ids))[:, None] if self.mistake == "batch position" else steps
            x = x + self.pos(steps)
        for block in self.blocks:
            x = block(x, pad)
        if not self.post and self.mistake != "no final norm":
            x = self.norm(x)
        return self.head(x)


class TorchLanguage(nn.Module):
    """torch's own encoder layers with a causal mask."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS + 8, WIDTH)

        def layer() -> nn.Module:
            return nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, 0.1, batch_first=batch_first, norm_first=True
            )

        self.blocks = nn.ModuleList([layer() for _ in range(DEPTH)])
        self.norm, self.head, self.batch_first = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
            batch_first,
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = x if self.batch_first else x.transpose(0, 1)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        x = x if self.batch_first else x.transpose(0, 1)
        return self.head(self.norm(x))


class Vision(nn.Module):
    """Patches, blocks, mean, classes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.pos = nn.Parameter(0.02 * torch.randn(1, 16, WIDTH))
        self.blocks = nn.ModuleList([Block(causal=False) for _ in range(DEPTH)])
        self.norm, self.head, self.mistake = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10), ""

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = x if self.mistake == "no positions" else x + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def huggingface(kind: str, **more: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 4,
    }
    sizes |= {"intermediate_size": 4 * WIDTH, "max_position_embeddings": 64, "num_key_value_heads": 2}
    if kind == "gpt2":
        sizes = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": 4, "n_positions": 64}
    if kind == "opt":
        sizes |= {"ffn_dim": 4 * WIDTH, "word_embed_proj_dim": WIDTH}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model(kind, **(sizes | tokens | more))
    auto = AutoModelForMaskedLM if kind in ("bert", "roberta") else AutoModelForCausalLM
    return auto.from_config(config)


@dataclass
class Network:
    """How to build one, and the names that mistakes need."""

    name: str
    build: Callable[[], nn.Module]
    blocks: str
    attention: str
    table: str
    head: str
    task: str = "next"
    own: bool = False  # hand-written: mistakes can be switched on inside
    matrix: str = ""
    norm: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


OWN = {
    "blocks": "blocks",
    "attention": "attn",
    "table": "tok",
    "head": "head",
    "own": True,
    "matrix": "up",
    "norm": "norm1",
}
NETWORKS = [
    Network("own gpt", lambda: Language(), **OWN),
    Network("own unfused", lambda: Language(fused=False), **OWN),
    Network("own tied", lambda: Language(tied=True), **OWN),
    Network("own llama", lambda: Language(positions=False, rotary=True, gated=True, rms=True), **OWN),
    Network("own encoder", lambda: Language(causal=False), task="masked", **OWN),
    Network("own post-norm", lambda: Language(norm="post"), **OWN),
    Network(
        "torch layers", TorchLanguage, **OWN | {"own": False, "attention": "self_attn", "matrix": "linear1"}
    ),
    Network("vision", Vision, task="image", **OWN | {"table": "patch"}),
    Network(
        "gpt2",
        lambda: huggingface("gpt2"),
        blocks="transformer.h",
        attention="attn",
        table="transformer.wte",
        head="lm_head",
        matrix="mlp.c_fc",
        norm="ln_1",
    ),
    Network(
        "llama",
        lambda: huggingface("llama"),
        blocks="model.layers",
        attention="self_attn",
        table="model.embed_tokens",
        head="lm_head",
        matrix="mlp.up_proj",
        norm="input_layernorm",
    ),
    Network(
        "opt",
        lambda: huggingface("opt"),
        blocks="model.decoder.layers",
        attention="self_attn",
        table="model.decoder.embed_tokens",
        head="lm_head",
        matrix="fc1",
        norm="self_attn_layer_norm",
    ),
    Network(
        "bert",
        lambda: huggingface("bert"),
        blocks="bert.encoder.layer",
        attention="attention",
        table="bert.embeddings.word_embeddings",
        head="cls.predictions.decoder",
        task="masked",
        matrix="intermediate.dense",
        norm="attention.output.LayerNorm",
    ),
]


def data(network: Network, seed: int = 0, count: int = 4) -> list[Any]:
    """Batches of a task in which the next token follows from the last two, or images of ten classes."""
    draw = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(count):
        if network.task == "image":
            out.append(
                (
                    torch.randn(BATCH, 3, 16, 16, generator=draw),
                    torch.randint(0, 10, (BATCH,), generator=draw),
                )
            )
            continue
        ids = torch.randint(3, VOCABULARY, (BATCH, TOKENS + 1), generator=draw)
        for t in range(2, TOKENS + 1):
            copy = torch.rand(BATCH, generator=draw) < 0.7
            ids[:, t] = torch.where(
                copy, (3 * ids[:, t - 1] + ids[:, t - 2]) % (VOCABULARY - 3) + 3, ids[:, t]
            )
        out.append(ids)
    return out


def logits(model: nn.Module, ids: Tensor) -> Tensor:
    out = model(ids)
    return out if torch.is_tensor(out) else out.logits


def loss_of(network: Network) -> Callable[[nn.Module, Any], Tensor]:
    """The right loss of each task."""
    if network.task == "image":
        return lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])
    if network.task == "next":
        return lambda model, ids: F.cross_entropy(
            logits(model, ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        )

    def masked(model: nn.Module, ids: Tensor) -> Tensor:
        ids = ids[:, :-1]
        hidden = (torch.arange(ids.shape[1]) * 7 + ids[:, :1]) % 5 == 0
        labels = ids.masked_fill(~hidden, -100)
        return F.cross_entropy(logits(model, ids.masked_fill(hidden, 2)).flatten(0, 1), labels.flatten())

    return masked


def setup(network: Network, seed: int = 0) -> dict[str, Any]:
    """A healthy training of this architecture."""
    torch.manual_seed(seed)
    model = network.build()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "batches": data(network, seed), "loss": loss_of(network), "optimizer": optimizer}
