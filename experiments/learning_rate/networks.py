"""Small networks from one row each: Hugging Face models from config, torch encoders, our own blocks with odd gains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edgewise
from edgewise.study.tasks import Task, byte_text, digits

TOKENS = 24
SYMBOLS = 28  # a to z, space, everything else
Batch = tuple[Tensor, Tensor]
Row = dict[str, Any]


@cache
def symbols() -> Tensor:
    """(256,): the symbol of every byte."""
    table = torch.full((256,), 27)
    table[32] = 26
    for k in range(26):
        table[[65 + k, 97 + k]] = k
    return table


@cache
def task(name: str) -> Task:
    """Next symbol of film reviews, or scanned digits in 16 patches."""
    if name == "images":
        return digits()
    text = byte_text(TOKENS)
    train, validation = ((symbols()[x], symbols()[y]) for x, y in (text.train, text.validation))
    return Task("symbols", SYMBOLS, SYMBOLS, False, False, train, validation)


def batches(row: Row, seed: int) -> Iterator[Batch]:
    return task(row["task"]).batches(row["batch"], seed)


def held_out(row: Row) -> Batch:
    return task(row["task"]).held_out(256)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the network's logits, in the shape of the labels."""
    inputs, labels = batch
    logits = model(inputs)
    logits = getattr(logits, "logits", logits)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def network(row: Row, seed: int = 0) -> nn.Module:
    """The untrained network of a row; the same weights for the same seed."""
    torch.manual_seed(1000 + seed)
    return FAMILIES[row["family"]](row)


def _gpt2(row: Row) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=SYMBOLS,
            n_positions=TOKENS,
            n_embd=row["width"],
            n_layer=row["depth"],
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            initializer_range=row.get("std", 0.02),
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def _llama(row: Row) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=SYMBOLS,
            hidden_size=row["width"],
            intermediate_size=2 * row["width"],
            num_hidden_layers=row["depth"],
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=TOKENS,
            initializer_range=row.get("std", 0.02),
            use_cache=False,
        )
    )


def _bert(row: Row) -> nn.Module:
    """A causal BERT, so that the next symbol can be its task; the norm stands on the sum."""
    from transformers import BertConfig, BertLMHeadModel

    return BertLMHeadModel(
        BertConfig(
            vocab_size=SYMBOLS,
            hidden_size=row["width"],
            intermediate_size=2 * row["width"],
            num_hidden_layers=row["depth"],
            num_attention_heads=2,
            max_position_embeddings=TOKENS,
            is_decoder=True,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=row.get("std", 0.02),
            use_cache=False,
        )
    )


class _Images(nn.Module):
    """Patches (B, 16, 4) put together to images (B, 1, 8, 8) for a ViT."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, patches: Tensor) -> Any:
        images = patches.reshape(-1, 4, 4, 2, 2).transpose(2, 3).reshape(-1, 1, 8, 8)
        return self.vit(pixel_values=images)


def _vit(row: Row) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return _Images(
        ViTForImageClassification(
            ViTConfig(
                hidden_size=row["width"],
                num_hidden_layers=row["depth"],
                num_attention_heads=2,
                intermediate_size=2 * row["width"],
                image_size=8,
                patch_size=2,
                num_channels=1,
                num_labels=10,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
                initializer_range=row.get("std", 0.02),
            )
        )
    )


class _Encoder(nn.Module):
    """torch.nn.TransformerEncoder between an embedding and a readout, causal on text and pooled on images."""

    def __init__(self, row: Row) -> None:
        super().__init__()
        data, width = task(row["task"]), row["width"]
        self.embed: nn.Module = (
            nn.Linear(data.inputs, width) if data.vectors else nn.Embedding(data.inputs, width)
        )
        self.positions = nn.Parameter(0.5 * torch.randn(data.tokens, width))
        layers = [
            nn.TransformerEncoderLayer(
                width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=row["norm"] == "pre"
            )
            for _ in range(row["depth"])
        ]
        self.layers = nn.ModuleList(layers)
        self.readout = nn.Linear(width, data.outputs)
        self.pooled = data.pooled

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.embed(inputs) + self.positions
        mask = None if self.pooled else nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=mask is not None)
        return self.readout(x.mean(1) if self.pooled else x)


def _own(row: Row) -> nn.Module:
    data = task(row["task"])
    knobs = {
        "depth": row["depth"],
        "width": row["width"],
        "heads": 2,
        "mlp_width": 2 * row["width"],
        "tokens": data.tokens,
        "causal": not data.pooled,
        **row.get("knobs", {}),
    }
    return edgewise.nets.build(
        edgewise.transformer(**knobs),
        inputs=data.inputs,
        outputs=data.outputs,
        vectors=data.vectors,
        pooled=data.pooled,
    )


FAMILIES: dict[str, Callable[[Row], nn.Module]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
    "vit": _vit,
    "encoder": _Encoder,
    "own": _own,
}


def optimizer(row: Row, model: nn.Module, rate: float = 1.0) -> torch.optim.Optimizer:
    """AdamW with beta2 0.95 or 0.999, or SGD with momentum 0.9; no weight decay."""
    if row["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    beta2 = {"adamw95": 0.95, "adamw999": 0.999}[row["optimizer"]]
    return torch.optim.AdamW(model.parameters(), rate, betas=(0.9, beta2), weight_decay=0.0)
