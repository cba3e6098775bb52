"""A blind list of mistakes in trainings for `edgewise check`, with healthy twins and controls.

The author has not read the detectors. The data are small synthetic languages, images, and series, so that a case
is built and trained for 100 steps in a few seconds. `COST` is the loss of the broken training minus that of its
twin, in nats (squared error for the regressions), on batches that were held out, after about 100 steps: the weights
of the broken training are put into the healthy model and scored by the healthy loss if the shapes allow it. 10.0
stands for NaN or worse; a negative cost is a loss that is reported too low, and that of a softmax before the cross
entropy is the floor of the reported loss. What has no cost there, or one below 0.05,
is wrong by construction, as its docstring says.
Issue numbers name public reports of the same mistake; all code here was written for this list.
"""

# ruff: noqa: ARG001, ARG002  (the form of a step names arguments that not every step needs)

import copy
import functools
import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

PAD, BOS, EOS, SPACE, MASK, UNK = 0, 1, 2, 3, 4, 5
LETTERS = 6
VOCAB = 48
Case = dict[str, Any]

COST: dict[str, float] = {
    "mask_diagonal": 1.51,
    "torch_mask_inverted": 1.99,
    "padding_mask_inverted": 0.48,
    "attention_mask_forgotten": 0.1,
    "decoder_unmasked": 0.2,
    "float_mask": 0.35,
    "window_open_ahead": 1.07,
    "softmax_over_queries": 0.72,
    "alibi_sign": 0.7,
    "positions_forgotten": 1.36,
    "rotary_over_heads": 0.3,
    "rotary_on_queries_only": 0.44,
    "position_ids_zero": 0.25,
    "sinusoid_over_batch": 0.07,
    "labels_shifted_twice": 4.95,
    "labels_not_shifted": 6.2,
    "mlm_labels_everywhere": -2.39,
    "mlm_nothing_hidden": 1.17,
    "padding_in_loss": 0.16,
    "decoder_reads_labels": 5.16,
    "eos_never_learned": 0.14,
    "labels_all_ignored": 2.3,
    "pairs_shuffled_apart": 0.81,
    "softmax_before_cross_entropy": 0.73,
    "logits_viewed": 2.74,
    "mse_broadcast": 0.87,
    "sigmoid_twice": 0.42,
    "sum_reduction": 10.0,
    "temperature_multiplied": 1.27,
    "contrastive_targets_zero": 1.21,
    "loss_rewrapped": 3.06,
    "only_last_token_scored": 1.54,
    "softmax_of_one_logit": 0.44,
    "tokenizer_of_another_model": 3.01,
    "ranks_read_one_shard": 1.33,
    "one_batch_forever": 1.81,
    "images_in_bytes": 0.34,
    "target_among_features": 2.6,
    "sorted_by_class": 0.25,
    "missing_values": 10.0,
    "targets_unscaled": 10.0,
    "no_residual": 1.61,
    "blocks_are_one_object": 0.06,
    "blocks_in_a_list": 0.84,
    "heads_by_view": 0.6,
    "keep_probability": 2.22,
    "relu_on_logits": 0.1,
    "qk_norm_and_scale": 1.69,
    "scores_multiplied": 2.08,
    "decoder_ignores_encoder": 0.03,
    "router_without_gradient": 0.58,
    "balance_rewarded": 2.03,
    "lora_both_zero": 2.4,
    "frozen_after_adapters": 1.12,
    "checkpoint_cuts_adapters": 1.1,
    "backbone_not_loaded": 0.78,
    "parameters_in_no_group": 2.31,
    "tied_with_unit_init": 3.25,
    "adam_with_l2": 1.29,
    "betas_swapped": 0.32,
    "no_zero_grad": 10.0,
    "zeroed_before_step": 1.4,
    "accumulation_keeps_the_last": 1.4,
    "clip_before_unscale": 2.81,
    "encoder_under_no_grad": 0.68,
    "training_in_eval_mode": 0.09,
    "pure_bf16": 0.75,
    "half_with_adam": 10.0,
}


def _alternatives(text: str) -> list[list[str]]:
    return [part.strip().split("+") for part in text.split("|") if part.strip()]


def _truth(name: str, words: str, places: str = "", consequences: str = "") -> dict[str, Any]:
    """Alternatives are divided by `|`, the words of one by `+`."""
    return {
        "words": _alternatives(words),
        "places": places.split(),
        "consequences": _alternatives(consequences),
        "cost": COST.get(name),
    }


# Data


@functools.cache
def _lexicon(topic: int) -> list[list[int]]:
    rng = random.Random(1000 + topic)
    return [[rng.randrange(LETTERS, VOCAB) for _ in range(rng.randint(2, 6))] for _ in range(36)]


def _sentence(rng: random.Random, length: int, topic: int = 0) -> list[int]:
    """Spell words of a topic's lexicon; each word is followed by one of four."""
    words, tokens, word = _lexicon(topic), [], rng.randrange(36)
    while len(tokens) < length:
        tokens += [*words[word], SPACE]
        word = (word * 7 + rng.choice((1, 1, 1, 5, 11, 23))) % 36
    return tokens[:length]


def _text(batches: int = 24, rows: int = 16, length: int = 32, seed: int = 0, topic: int = 0) -> list[Tensor]:
    rng = random.Random(seed)
    return [
        torch.tensor([_sentence(rng, length, topic) for _ in range(rows)], dtype=torch.long)
        for _ in range(batches)
    ]


def _padded(
    batches: int = 24, rows: int = 16, length: int = 32, seed: int = 0, left: bool = False
) -> list[Tensor]:
    """Text of uneven length that ends with EOS and is filled with PAD."""
    rng, result = random.Random(seed), []
    for _ in range(batches):
        lines = []
        for _ in range(rows):
            line = [*_sentence(rng, rng.randint(length // 4, length - 1)), EOS]
            fill = [PAD] * (length - len(line))
            lines.append(fill + line if left else line + fill)
        result.append(torch.tensor(lines))
    return result


def _topics(
    batches: int = 24, rows: int = 16, length: int = 24, classes: int = 4, seed: int = 0, even: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Right-padded text and its topic, the class."""
    rng, result = random.Random(seed), []
    for _ in range(batches):
        labels = [rng.randrange(classes) for _ in range(rows)]
        lines = []
        for label in labels:
            line = [BOS, *_sentence(rng, length - 1 if even else rng.randint(5, length - 1), label)]
            lines.append(line + [PAD] * (length - len(line)))
        result.append((torch.tensor(lines), torch.tensor(labels)))
    return result


def _pairs(batches: int = 24, rows: int = 16, length: int = 16, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """A source and a target of the same topic, both padded, the target closed by EOS."""
    rng, result = random.Random(seed), []
    for _ in range(batches):
        sources, targets = [], []
        for _ in range(rows):
            topic = rng.randrange(6)
            source = _sentence(rng, rng.randint(6, length), topic)
            target = [*_sentence(rng, rng.randint(6, length - 1), topic + 10), EOS]
            sources.append(source + [PAD] * (length - len(source)))
            targets.append(target + [PAD] * (length - len(target)))
        result.append((torch.tensor(sources), torch.tensor(targets)))
    return result


def _images(batches: int = 24, rows: int = 16, seed: int = 0, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Noise with a brighter quarter; the class is which."""
    generator, result = torch.Generator().manual_seed(seed), []
    for _ in range(batches):
        labels = torch.randint(4, (rows,), generator=generator)
        images = 0.5 * torch.randn(rows, 3, size, size, generator=generator)
        half = size // 2
        for image, label in zip(images, labels.tolist(), strict=True):
            image[:, half * (label // 2) :, half * (label % 2) :][:, :half, :half] += 1.5
        result.append((images, labels))
    return result


def _series(
    batches: int = 24, rows: int = 32, length: int = 12, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Six channels in time and a number that depends on three of them."""
    generator, result = torch.Generator().manual_seed(seed), []
    for _ in range(batches):
        x = torch.randn(rows, length, 6, generator=generator)
        y = 1.5 * x[:, :, 0].mean(1) * 3 + torch.tanh(x[:, -1, 1]) - x[:, 0, 2]
        result.append((x, y + 0.1 * torch.randn(rows, generator=generator)))
    return result


# Networks


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _full(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _angles(length: int, size: int) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(length).float(), rates)
    return torch.cat((angles.cos(), angles.cos()), -1), torch.cat((angles.sin(), angles.sin()), -1)


def _rotate(x: Tensor) -> Tensor:
    cos, sin = _angles(x.shape[-2], x.shape[-1])
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    """Multi-head attention with grouped keys, rotary positions, and norms of queries and keys as options."""

    def __init__(
        self,
        width: int,
        heads: int,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor] = _causal,
        groups: int | None = None,
        rotary: bool = False,
        qk_norm: bool = False,
        tile: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.attend, self.rotary, self.tile = (
            heads,
            groups or heads,
            attend,
            rotary,
            tile,
        )
        self.size = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, self.groups * self.size, bias=False)
        self.value = nn.Linear(width, self.groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.q_norm = nn.RMSNorm(self.size) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.size) if qk_norm else nn.Identity()

    def split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.size).transpose(1, 2)

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (_rotate(q), _rotate(k)) if self.rotary else (q, k)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_norm(self.split(self.query(x), self.heads))
        k = self.k_norm(self.split(self.key(x), self.groups))
        v = self.split(self.value(x), self.groups)
        q, k = self.turn(q, k)
        share = self.heads // self.groups
        if share > 1 and self.tile:
            k, v = k.repeat(1, share, 1, 1), v.repeat(1, share, 1, 1)
        elif share > 1:
            k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        y = self.attend(q, k, v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Gated(nn.Module):
    """A feed-forward layer with a SiLU gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(
        self,
        width: int,
        attention: nn.Module,
        feed: nn.Module,
        norm: type[nn.Module] = nn.LayerNorm,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attention, self.feed, self.drop = attention, feed, nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.feed(self.norm2(x)))


class GPT(nn.Module):
    """A decoder with learned positions unless `positions` is false."""

    def __init__(
        self,
        blocks: list[nn.Module],
        width: int = 64,
        vocab: int = VOCAB,
        length: int = 64,
        positions: bool = True,
        tied: bool = True,
        std: float = 0.02,
        norm: type[nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width) if positions else None
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if tied:
            self.head.weight = self.tokens.weight

    def embed(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return x

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _gpt(
    depth: int = 3, width: int = 64, heads: int = 4, attend: Any = _causal, drop: float = 0.0, **kwargs: Any
) -> GPT:
    blocks: list[nn.Module] = [
        Block(width, Attention(width, heads, attend), _mlp(width), drop=drop) for _ in range(depth)
    ]
    return GPT(blocks, width, **kwargs)


def _modern(depth: int = 3, width: int = 64, heads: int = 4, make: Any = None, **kwargs: Any) -> GPT:
    """Rotary positions, RMS norms, gated feed-forward layers, grouped keys."""
    make = make or (lambda: Attention(width, heads, groups=2, rotary=True))
    blocks: list[nn.Module] = [Block(width, make(), Gated(width), norm=nn.RMSNorm) for _ in range(depth)]
    return GPT(blocks, width, positions=False, norm=nn.RMSNorm, **kwargs)


class Encoder(nn.Module):
    """`nn.TransformerEncoder` over tokens, a mean over the ones that are no padding, and a head."""

    def __init__(self, outputs: int, width: int = 64, depth: int = 2, drop: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, width)
        self.positions = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, drop, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def states(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions[:, : ids.shape[1]]
        return self.norm(self.encoder(x, src_key_padding_mask=ids == PAD))

    def pool(self, ids: Tensor) -> Tensor:
        kept = (ids != PAD).unsqueeze(-1).float()
        return (self.states(ids) * kept).sum(1) / kept.sum(1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.pool(ids))


class ViT(nn.Module):
    """A vision transformer with a class token that is averaged with the patches."""

    def __init__(
        self, classes: int = 4, width: int = 48, depth: int = 2, size: int = 16, patch: int = 4
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.4)
        self.blocks = nn.ModuleList(
            Block(width, Attention(width, 4, _full), _mlp(width)) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def embed(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Translator(nn.Module):
    """`nn.Transformer` between two languages."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, width), nn.Embedding(VOCAB, width)
        self.places = nn.Embedding(64, width)
        self.core = nn.Transformer(width, 4, 2, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, VOCAB)

    def look(self, embedding: nn.Embedding, ids: Tensor) -> Tensor:
        return embedding(ids) + self.places(torch.arange(ids.shape[1]))

    def mask(self, length: int) -> Tensor | None:
        return torch.triu(torch.ones(length, length, dtype=torch.bool), 1)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        hidden = self.core(
            self.look(self.source, source),
            self.look(self.target, target),
            tgt_mask=self.mask(target.shape[1]),
            src_key_padding_mask=source == PAD,
            memory_key_padding_mask=source == PAD,
        )
        return self.head(hidden)


class Lora(nn.Module):
    """A frozen linear layer and a trained low-rank change."""

    def __init__(self, base: nn.Linear, rank: int = 8, zero: bool = False) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(
            torch.randn(rank, base.in_features) * (0.0 if zero else base.in_features**-0.5)
        )
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * (x @ self.lora_a.T) @ self.lora_b.T


# Losses and optimizers


def _adamw(model: nn.Module, lr: float = 2e-3, **kwargs: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=lr, **kwargs)


def _next(model: nn.Module, ids: Tensor) -> Tensor:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)


def _classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _translate(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    source, target = batch
    before = torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), 1)
    return F.cross_entropy(model(source, before).flatten(0, 1), target.flatten(), ignore_index=PAD)


def _simple(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _trained(model: nn.Module, loss: Any, batches: list[Any], steps: int = 60, lr: float = 3e-3) -> nn.Module:
    """Pretrain a model for the cases that start from a checkpoint."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for k in range(steps):
        _simple(model, optimizer, loss(model, batches[k % len(batches)]))
    model.zero_grad()
    return model


@functools.cache
def _checkpoint() -> dict[str, Tensor]:
    """The weights of a small GPT after 60 steps on topic 0."""
    torch.manual_seed(77)
    return _trained(_gpt(2), _next, _text(seed=5)).state_dict()


def _pretrained(**kwargs: Any) -> GPT:
    model = _gpt(2, **kwargs)
    model.load_state_dict(_checkpoint())
    return model


FUTURE = "causal | future | look+ahead | later+token | sees+next | leak"
NO_GRADIENT = "no gradient | gradient+zero | not train | never+change | does not+learn"
FLAT = "does not fall | not learn | does not+decrease | no better | chance | memori | overfit"


# Masks


def case_mask_diagonal(broken: bool) -> Case:
    """The causal mask is made by `tril(diagonal=1)`: every token sees the one that it must predict."""
    torch.manual_seed(1)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[-2]
        allowed = torch.ones(length, length).tril(diagonal=1 if broken else 0).bool()
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        return scores.masked_fill(~allowed, float("-inf")).softmax(-1) @ v

    model = _gpt(attend=attend)
    return {
        "model": model,
        "batches": _text(),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth("mask_diagonal", FUTURE, "blocks model"),
    }


class TorchLM(nn.Module):
    """A language model of `nn.TransformerEncoder` and a mask."""

    def __init__(self, mask: Callable[[int], Tensor], width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCAB)
        self.mask = mask

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.encoder(x, mask=self.mask(ids.shape[1])))


def case_torch_mask_inverted(broken: bool) -> Case:
    """A boolean mask of allowed places is given to `nn.TransformerEncoder`, which takes True as forbidden."""
    torch.manual_seed(2)

    def mask(length: int) -> Tensor:
        allowed = torch.ones(length, length, dtype=torch.bool).tril()
        return allowed.tril(-1) if broken else ~allowed

    model = TorchLM(mask)
    return {
        "model": model,
        "batches": _text(),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth("torch_mask_inverted", FUTURE + " | mask+invert | mask+revers", "encoder model"),
    }


def case_padding_mask_inverted(broken: bool) -> Case:
    """`src_key_padding_mask` is the HF mask (1 for tokens), so only padding is attended (pytorch/pytorch#24816)."""
    torch.manual_seed(3)

    class Classifier(Encoder):
        def states(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids) + self.positions[:, : ids.shape[1]]
            hidden = ids != PAD if broken else ids == PAD
            return self.norm(self.encoder(x, src_key_padding_mask=hidden))

    model = Classifier(4)
    batches = [(x, y) for x, y in _topics()]
    for x, _ in batches:
        x[:, -1] = PAD
    return {
        "model": model,
        "batches": batches,
        "loss": _classify,
        "optimizer": _adamw(model, 5e-4),
        "truth": _truth(
            "padding_mask_inverted",
            "pad+attend | pad+mask | mask+invert | mask+revers | pad+change | pad+depend",
            "encoder model",
            NO_GRADIENT + " | attention+uniform",
        ),
    }


def case_attention_mask_forgotten(broken: bool) -> Case:
    """A BERT classifier gets padded batches without `attention_mask` (huggingface/transformers#16136)."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(4)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=128, num_labels=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    batches = []
    for x, y in _topics(length=64, classes=6, seed=4):
        batch = {"input_ids": x, "labels": y}
        batches.append(batch if broken else {**batch, "attention_mask": (x != PAD).long()})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model, 5e-4),
        "truth": _truth("attention_mask_forgotten", "attention_mask | pad+attend | pad+mask"),
    }


def case_decoder_unmasked(broken: bool) -> Case:
    """`nn.Transformer` is called without `tgt_mask`: the decoder reads the answer."""
    torch.manual_seed(5)

    class Open(Translator):
        def mask(self, length: int) -> Tensor | None:
            return None if broken else super().mask(length)

    model = Open()
    return {
        "model": model,
        "batches": _pairs(),
        "loss": _translate,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth("decoder_unmasked", FUTURE + " | tgt_mask", "core model"),
    }


def case_float_mask(broken: bool) -> Case:
    """A mask of ones and zeros is added to the scores by `scaled_dot_product_attention` because it is not boolean."""
    torch.manual_seed(6)

    def make() -> Attention:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mask = torch.tril(torch.ones(q.shape[-2], q.shape[-2]))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask if broken else mask.bool())

        return Attention(64, 4, attend, groups=2, rotary=True)

    model = _modern(make=make)
    return {
        "model": model,
        "batches": _text(seed=6),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth("float_mask", FUTURE, "blocks model"),
    }


def case_window_open_ahead(broken: bool) -> Case:
    """A sliding window is cut on both sides, `|i - j| < w`, and the causal half is lost in every second layer."""
    torch.manual_seed(7)
    made: list[Attention] = []

    def make() -> Attention:
        local = len(made) % 2 == 1

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            place = torch.arange(q.shape[-2])
            gap = place[:, None] - place[None]
            allowed = gap >= 0
            if local:
                allowed = gap.abs() < 8 if broken else allowed & (gap < 8)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

        made.append(Attention(64, 4, attend, rotary=True))
        return made[-1]

    model = _modern(4, make=make)
    return {
        "model": model,
        "batches": _text(seed=7),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth("window_open_ahead", FUTURE + " | window", "blocks.1 blocks.3 model"),
    }


def case_softmax_over_queries(broken: bool) -> Case:
    """The attention's softmax runs over the queries (`dim=-2`) instead of the keys."""
    torch.manual_seed(8)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])
        return scores.masked_fill(~allowed, -1e9).softmax(-2 if broken else -1) @ v

    model = _gpt(attend=attend)
    return {
        "model": model,
        "batches": _text(seed=8),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "softmax_over_queries", FUTURE + " | softmax+dim | sum to one | sum to 1", "blocks model"
        ),
    }


def case_alibi_sign(broken: bool) -> Case:
    """ALiBi's bias has the wrong sign: the farther a token, the more it is attended."""
    torch.manual_seed(9)
    slopes = 2.0 ** -torch.arange(0, 4, dtype=torch.float)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[-2])
        gap = (place[:, None] - place[None]).float()
        bias = slopes[:, None, None] * (gap if broken else -gap)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(gap < 0, float("-inf")))

    model = _gpt(attend=attend, positions=False)
    return {
        "model": model,
        "batches": _text(seed=9),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "alibi_sign",
            "alibi | bias+distan | first token | far | recent | attention+collaps | attention+saturat | "
            "attention+one token",
            "blocks model",
        ),
    }


# Positions


def case_positions_forgotten(broken: bool) -> Case:
    """A ViT makes `pos_embed` and never adds it."""
    torch.manual_seed(10)

    class Blind(ViT):
        def embed(self, images: Tensor) -> Tensor:
            if not broken:
                return super().embed(images)
            x = self.patches(images).flatten(2).transpose(1, 2)
            return torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1)

    model = Blind()
    return {
        "model": model,
        "batches": _images(),
        "loss": _classify,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "positions_forgotten", "pos_embed | position | order", "pos_embed model", NO_GRADIENT
        ),
    }


def case_rotary_over_heads(broken: bool) -> Case:
    """The rotary angles follow the head instead of the place in the sequence (mlfoundations/open_lm#4)."""
    torch.manual_seed(11)

    class Wrong(Attention):
        def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            if not broken:
                return super().turn(q, k)
            return _rotate(q.transpose(1, 2)).transpose(1, 2), _rotate(k.transpose(1, 2)).transpose(1, 2)

    model = _modern(make=lambda: Wrong(64, 4, groups=2, rotary=True))
    return {
        "model": model,
        "batches": _text(seed=11),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth("rotary_over_heads", "position | rotary | rope | order", "blocks model"),
    }


def case_rotary_on_queries_only(broken: bool) -> Case:
    """The keys are never rotated."""
    torch.manual_seed(12)

    class Wrong(Attention):
        def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            return (_rotate(q), k) if broken else super().turn(q, k)

    model = _modern(make=lambda: Wrong(64, 4, rotary=True, qk_norm=True))
    return {
        "model": model,
        "batches": _text(seed=12),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "rotary_on_queries_only", "position | rotary | rope | relative | order", "blocks model"
        ),
    }


def case_position_ids_zero(broken: bool) -> Case:
    """A collator fills `position_ids` with zeros, so GPT-2 has one place for every token."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(13)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=BOS, eos_token_id=EOS,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    place = torch.zeros(16, 32, dtype=torch.long) if broken else torch.arange(32).expand(16, -1)
    batches = [{"input_ids": x, "labels": x, "position_ids": place} for x in _text(seed=13)]
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model),
        "truth": _truth("position_ids_zero", "position | wpe"),
    }


def case_sinusoid_over_batch(broken: bool) -> Case:
    """The tutorial's positional encoding, written for (time, batch), is added to (batch, time)."""
    torch.manual_seed(14)
    rates = torch.exp(torch.arange(0, 64, 2) * (-math.log(10000.0) / 64))
    table = torch.zeros(64, 64)
    table[:, 0::2], table[:, 1::2] = (
        (torch.arange(64)[:, None] * rates).sin(),
        (torch.arange(64)[:, None] * rates).cos(),
    )

    class Tutorial(TorchLM):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids)
            x = x + (table[: x.shape[0], None] if broken else table[: x.shape[1]])
            return self.head(self.encoder(x))

    model = Tutorial(lambda length: torch.zeros(length, length))
    model.places = nn.Identity()
    batches = _cloze(seed=14, share=0.15, batches=32)
    return {
        "model": model,
        "batches": batches,
        "loss": lambda m, b: F.cross_entropy(m(b["input_ids"]).flatten(0, 1), b["labels"].flatten()),
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "sinusoid_over_batch",
            "position | order | batch+depend | other+example | across+batch | other+row",
        ),
    }


def _cloze(
    seed: int, share: float = 0.15, batches: int = 24, keep: bool = False, plain: bool = False
) -> list[dict[str, Tensor]]:
    """Masked language modeling; `keep` leaves the labels of all tokens, `plain` does not hide the chosen ones."""
    generator, result = torch.Generator().manual_seed(seed), []
    for ids in _text(batches, seed=seed):
        chosen = torch.rand(ids.shape, generator=generator) < share
        chosen[:, 3] = True
        labels = ids.clone() if keep else ids.masked_fill(~chosen, -100)
        result.append({"input_ids": ids if plain else ids.masked_fill(chosen, MASK), "labels": labels})
    return result


# Labels


def _hf_llama(**kwargs: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{
            "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
            "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, **kwargs,
        }
    )  # fmt: skip
    return LlamaForCausalLM(config)


def case_labels_shifted_twice(broken: bool) -> Case:
    """The dataset shifts the labels and so does LlamaForCausalLM (huggingface/transformers#32944, #35066)."""
    torch.manual_seed(15)
    model = _hf_llama()
    batches = []
    for x in _text(length=33, seed=15):
        batches.append({"input_ids": x[:, :-1], "labels": x[:, 1:] if broken else x[:, :-1]})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model),
        "truth": _truth(
            "labels_shifted_twice", "shift | two+ahead | second+next | next+token", "labels loss data"
        ),
    }


def case_labels_not_shifted(broken: bool) -> Case:
    """The logits are scored against the tokens that were just read."""
    torch.manual_seed(16)
    model = _modern()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids)
        if broken:
            return F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    return {
        "model": model,
        "batches": _text(seed=16),
        "loss": loss,
        "optimizer": _adamw(model),
        "truth": _truth(
            "labels_not_shifted",
            "shift | label+input | same token | copy | current token | own token",
            "labels loss data model",
        ),
    }


def _hf_bert_mlm(roberta: bool = False) -> nn.Module:
    import transformers

    kind = "Roberta" if roberta else "Bert"
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=80, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=PAD,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForMaskedLM")(config)


def case_mlm_labels_everywhere(broken: bool) -> Case:
    """BERT's labels keep the tokens that were not masked, which are copied (lucidrains/mlm-pytorch#3)."""
    torch.manual_seed(17)
    model = _hf_bert_mlm()
    return {
        "model": model,
        "batches": _cloze(17, keep=broken),
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "mlm_labels_everywhere",
            "label+input | unmasked | not masked | copy | -100 | ignore+label | visible",
            "labels loss data model",
        ),
    }


def case_mlm_nothing_hidden(broken: bool) -> Case:
    """The labels choose 15% of the tokens, but the [MASK] never replaces them (huggingface/transformers#16798)."""
    torch.manual_seed(18)
    model = _hf_bert_mlm(roberta=True)
    return {
        "model": model,
        "batches": _cloze(18, plain=broken),
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "mlm_nothing_hidden",
            "label+input | not masked | copy | visible | answer+input | own token | same token | leak",
            "labels loss data model",
        ),
    }


def _hf_t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCAB, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=PAD, pad_token_id=PAD, eos_token_id=EOS,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def case_padding_in_loss(broken: bool) -> Case:
    """T5's labels keep the padding, which fills three quarters of them (huggingface/transformers#5987)."""
    torch.manual_seed(19)
    model, batches = _hf_t5(), []
    for source, target in _pairs(seed=19):
        target = F.pad(target, (0, 40), value=PAD)
        labels = target if broken else target.masked_fill(target == PAD, -100)
        batches.append({"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model, 3e-3),
        "truth": _truth("padding_in_loss", "pad | ignore_index | -100", "labels loss data"),
    }


def case_decoder_reads_labels(broken: bool) -> Case:
    """`decoder_input_ids` are the labels themselves, not shifted (huggingface/transformers#11977)."""
    torch.manual_seed(20)
    model, batches = _hf_t5(), []
    for source, target in _pairs(seed=20):
        before = F.pad(target[:, :-1], (1, 0), value=PAD)
        batches.append(
            {
                "input_ids": source,
                "attention_mask": (source != PAD).long(),
                "decoder_input_ids": target if broken else before,
                "labels": target.masked_fill(target == PAD, -100),
            }
        )
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model, 3e-3),
        "truth": _truth(
            "decoder_reads_labels",
            "shift | decoder+label | label+input | copy | leak | same token | own token",
            "labels loss data model",
        ),
    }


def case_eos_never_learned(broken: bool) -> Case:
    """PAD is EOS, and the collator hides every PAD from the loss, so no text ever ends (huggingface/trl#1623)."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(21)
    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=EOS,
    )  # fmt: skip
    model, batches = Qwen2ForCausalLM(config), []
    for x in _padded(seed=21):
        mask = (x != PAD).long()
        ids = x.masked_fill(x == PAD, EOS)
        labels = ids.masked_fill(ids == EOS, -100) if broken else ids.masked_fill(mask == 0, -100)
        batches.append({"input_ids": ids, "attention_mask": mask, "labels": labels})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model),
        "truth": _truth(
            "eos_never_learned", "eos | end+token | end+sequence | token 2+never", "labels loss data"
        ),
    }


def case_labels_all_ignored(broken: bool) -> Case:
    """Long prompts are cut on the right, so that most answers, the only labels, are gone."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(22)
    config = OPTConfig(
        vocab_size=VOCAB, hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=64, dropout=0.0, pad_token_id=PAD,
        bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    model, batches = OPTForCausalLM(config), []
    rng = random.Random(22)
    for x in _text(length=60, seed=22):
        if broken:
            ids, prompts = x[:, :32], [rng.choice((31, 32, 36, 40, 44)) for _ in x]
        else:
            ids, prompts = x[:, :32], [16] * len(x)
        labels = ids.clone()
        for row, prompt in enumerate(prompts):
            labels[row, :prompt] = -100
        labels[0, 31] = ids[0, 31]
        batches.append({"input_ids": ids, "labels": labels})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model),
        "truth": _truth(
            "labels_all_ignored",
            "ignore | -100 | few+label | few+target | no label | truncat | without+label",
            "labels loss data",
            FLAT,
        ),
    }


def case_pairs_shuffled_apart(broken: bool) -> Case:
    """Texts and classes are shuffled by two generators, so the labels belong to other texts."""
    torch.manual_seed(23)
    model = Encoder(4)
    batches = _topics(seed=23)
    labels = torch.cat([y for _, y in batches])
    if broken:
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    batches = [(x, y) for (x, _), y in zip(batches, labels.split(16), strict=True)]
    return {
        "model": model,
        "batches": batches,
        "loss": _classify,
        "optimizer": _adamw(model, 5e-4),
        "truth": _truth(
            "pairs_shuffled_apart",
            "label+random | label+unrelated | label+not depend | label+independent | shuffl | label+noise "
            "| nothing+learn | does not+general",
            "labels data loss",
            FLAT,
        ),
    }


# Losses


def case_softmax_before_cross_entropy(broken: bool) -> Case:
    """A ViT ends in a softmax and is trained by the cross entropy of logits."""
    torch.manual_seed(24)

    class Probable(ViT):
        def forward(self, images: Tensor) -> Tensor:
            logits = super().forward(images)
            return logits.softmax(-1) if broken else logits

    model = Probable()
    return {
        "model": model,
        "batches": _images(seed=24),
        "loss": _classify,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth("softmax_before_cross_entropy", "softmax | probabilit | not logits"),
    }


def case_logits_viewed(broken: bool) -> Case:
    """(batch, time, vocabulary) is viewed as (batch, vocabulary, time) for the cross entropy instead of transposed."""
    torch.manual_seed(25)
    model = _gpt(2)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])
        rows, length, vocab = logits.shape
        logits = logits.view(rows, vocab, length) if broken else logits.transpose(1, 2)
        return F.cross_entropy(logits, ids[:, 1:])

    return {
        "model": model,
        "batches": _text(seed=25),
        "loss": loss,
        "optimizer": _adamw(model),
        "truth": _truth(
            "logits_viewed",
            FUTURE + " | view | reshape | transpos | layout | scrambl | position+mix | other position | axis",
            "loss labels model",
            FLAT,
        ),
    }


class Forecaster(nn.Module):
    """An encoder of a series with one number as output."""

    def __init__(self, width: int = 48, channels: int = 6) -> None:
        super().__init__()
        self.enter = nn.Linear(channels, width)
        self.places = nn.Parameter(torch.randn(1, 32, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, Attention(width, 4, _full), _mlp(width)) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x) + self.places[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def case_mse_broadcast(broken: bool) -> Case:
    """Predictions of shape (B, 1) and targets of shape (B,) broadcast to B x B."""
    torch.manual_seed(26)
    model = Forecaster()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        return ((out - batch[1]) ** 2).mean() if broken else ((out.squeeze(1) - batch[1]) ** 2).mean()

    return {
        "model": model,
        "batches": _series(seed=26),
        "loss": loss,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "mse_broadcast",
            "broadcast | shape | other+example | every target | across+batch",
            "loss labels data head",
            FLAT,
        ),
    }


def case_sigmoid_twice(broken: bool) -> Case:
    """A multi-label head applies a sigmoid and is trained by `binary_cross_entropy_with_logits`."""
    torch.manual_seed(27)
    model = Encoder(6)
    batches = []
    for x, y in _topics(classes=6, seed=27):
        targets = F.one_hot(y, 6).float()
        targets[:, 0] = (y % 2).float()
        batches.append((x, targets))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        return F.binary_cross_entropy_with_logits(out.sigmoid() if broken else out, batch[1])

    return {
        "model": model,
        "batches": batches,
        "loss": loss,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth("sigmoid_twice", "sigmoid | probabilit | not logits"),
    }


def case_sum_reduction(broken: bool) -> Case:
    """`reduction="sum"` under a rate of SGD that was tuned for the mean."""
    torch.manual_seed(28)
    model = _gpt(2)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits, labels = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
        return F.cross_entropy(logits, labels, reduction="sum" if broken else "mean")

    return {
        "model": model,
        "batches": _text(seed=28),
        "loss": loss,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        "truth": _truth(
            "sum_reduction",
            "sum | reduc | learning rate+high | learning rate+large | rate+too | diverg",
            "",
            "nan | explod | not finite",
        ),
    }


class Towers(nn.Module):
    """One encoder for both sides of a contrastive loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Encoder(32)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.normalize(self.body(a), dim=-1) @ F.normalize(self.body(b), dim=-1).T


def _views(seed: int, batches: int = 24) -> list[tuple[Tensor, Tensor]]:
    """Two copies of each text, with a quarter of the letters of either replaced."""
    generator, result = torch.Generator().manual_seed(seed), []
    for ids in _text(batches, length=20, seed=seed):
        sides = []
        for _ in range(2):
            noise = torch.randint(LETTERS, VOCAB, ids.shape, generator=generator)
            sides.append(torch.where(torch.rand(ids.shape, generator=generator) < 0.25, noise, ids))
        result.append((sides[0], sides[1]))
    return result


def case_temperature_multiplied(broken: bool) -> Case:
    """Similarities are multiplied by the temperature 0.07 instead of divided."""
    torch.manual_seed(29)
    model = Towers()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        similar = model(*batch)
        return F.cross_entropy(similar * 0.07 if broken else similar / 0.07, torch.arange(len(similar)))

    return {
        "model": model,
        "batches": _views(29),
        "loss": loss,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "temperature_multiplied",
            "temperature | logit+small | logit+range | logit+bound | logit+scale | cannot+fall | "
            "cannot+below",
            "",
            FLAT,
        ),
    }


def case_contrastive_targets_zero(broken: bool) -> Case:
    """The targets of an InfoNCE loss are zeros instead of the diagonal."""
    torch.manual_seed(30)
    model = Towers()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        similar = model(*batch) / 0.07
        targets = torch.arange(len(similar))
        return F.cross_entropy(similar, torch.zeros_like(targets) if broken else targets)

    return {
        "model": model,
        "batches": _views(30),
        "loss": loss,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "contrastive_targets_zero",
            "target+constant | target+same | label+constant | label+same | one class | single class | "
            "diagonal | positive",
            "",
            FLAT,
        ),
    }


def case_loss_rewrapped(broken: bool) -> Case:
    """The loss is wrapped in a new tensor, `torch.tensor(loss.item(), requires_grad=True)`, and has no graph."""
    torch.manual_seed(31)
    model = _modern(2)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        value = _next(model, ids)
        return torch.tensor(value.item(), requires_grad=True) if broken else value

    return {
        "model": model,
        "batches": _text(seed=31),
        "loss": loss,
        "optimizer": _adamw(model),
        "truth": _truth(
            "loss_rewrapped",
            "graph | detach | no gradient | without gradient | not depend | gradient+none | no parameter",
        ),
    }


def case_only_last_token_scored(broken: bool) -> Case:
    """Code for generation is reused: the loss takes `logits[:, -1]` only, one token of 32."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(32)
    config = GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    model = GPTNeoXForCausalLM(config)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1]).logits
        if broken:
            return F.cross_entropy(logits[:, -1], ids[:, -1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return {
        "model": model,
        "batches": _text(seed=32),
        "loss": loss,
        "optimizer": _adamw(model),
        "truth": _truth(
            "only_last_token_scored",
            "last | one position | few position | few token | position+loss | share+position",
        ),
    }


def case_softmax_of_one_logit(broken: bool) -> Case:
    """A binary classifier with one logit takes `softmax` of it, which is always 1."""
    torch.manual_seed(33)
    model = Encoder(1)
    batches = [(x, (y % 2).float()) for x, y in _topics(seed=33)]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        logit = model(batch[0])
        chance = logit.softmax(-1) if broken else logit.sigmoid()
        return F.binary_cross_entropy(chance.squeeze(-1).clamp(1e-4, 1 - 1e-4), batch[1])

    return {
        "model": model,
        "batches": batches,
        "loss": loss,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "softmax_of_one_logit",
            "softmax | one logit | single | constant | no gradient | gradient+zero | not depend",
            "",
            FLAT + " | " + NO_GRADIENT,
        ),
    }


# Data


def case_tokenizer_of_another_model(broken: bool) -> Case:
    """A tokenizer that does not know the text: four tokens of five become UNK."""
    torch.manual_seed(34)
    model = _gpt(2)
    batches = _text(seed=34)
    if broken:
        batches = [x.where((x < 13) & (x != SPACE), torch.tensor(UNK)) for x in batches]
    return {
        "model": model,
        "batches": batches,
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "tokenizer_of_another_model",
            "unk | one token | same token | token 5 | single token | vocab | tokeniz | distinct | repeat",
            "data labels loss tokens",
        ),
    }


def case_ranks_read_one_shard(broken: bool) -> Case:
    """Every of eight data-parallel workers reads the same shard, so each row is eight times in a batch
    (pytorch/pytorch#31771)."""
    torch.manual_seed(35)
    model = _modern(2)
    batches = _text(12, seed=35)
    if broken:
        batches = [x[:2].repeat(8, 1) for x in batches]
    return {
        "model": model,
        "batches": batches,
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "ranks_read_one_shard",
            "identical | duplicat | same row | repeat | same example | equal",
            "data labels loss",
        ),
    }


def case_one_batch_forever(broken: bool) -> Case:
    """`next(iter(loader))` inside the loop with a fixed seed gives the same batch at every step."""
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(36)
    config = MistralConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=16, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    batches = [{"input_ids": x, "labels": x} for x in _text(seed=36)]
    return {
        "model": model,
        "batches": [copy.deepcopy(batches[0]) for _ in batches] if broken else batches,
        "optimizer": _adamw(model),
        "truth": _truth(
            "one_batch_forever",
            "same batch | identical | duplicat | repeat | equal | same data",
            "data labels loss",
        ),
    }


def case_images_in_bytes(broken: bool) -> Case:
    """Pixels between 0 and 255 reach the ViT without normalization."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(37)
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=16,
        patch_size=4, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    batches = []
    for x, y in _images(seed=37):
        pixels = (x * 40 + 128).clamp(0, 255).round()
        batches.append({"pixel_values": pixels if broken else (pixels / 255 - 0.5) / 0.16, "labels": y})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "images_in_bytes",
            "normali | input+scale | input+large | pixel | 255 | input+mean | standardi",
            "data vit.embeddings model",
            "activation | saturat",
        ),
    }


def case_target_among_features(broken: bool) -> Case:
    """The column to be predicted is one of the features."""
    torch.manual_seed(38)
    model = Forecaster(channels=7)
    batches = []
    for x, y in _series(seed=38):
        extra = y if broken else torch.randn_like(y)
        batches.append((torch.cat((x, extra[:, None, None].expand(-1, x.shape[1], 1)), -1), y))
    return {
        "model": model,
        "batches": batches,
        "loss": lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1]),
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "target_among_features",
            "leak | target+input | label+input | target+feature | label+feature",
            "data labels loss",
        ),
    }


def case_sorted_by_class(broken: bool) -> Case:
    """The file is sorted by class and the loader does not shuffle: a batch holds one class."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(39)
    config = DistilBertConfig(
        vocab_size=VOCAB, dim=64, n_layers=2, n_heads=4, hidden_dim=128, max_position_embeddings=64,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=4,
    )  # fmt: skip
    model = DistilBertForSequenceClassification(config)
    rows = [(x, y) for xs, ys in _topics(seed=39) for x, y in zip(xs, ys, strict=True)]
    if broken:
        rows.sort(key=lambda row: int(row[1]))
    batches = []
    for start in range(0, len(rows), 16):
        ids = torch.stack([x for x, _ in rows[start : start + 16]])
        labels = torch.stack([y for _, y in rows[start : start + 16]])
        batches.append({"input_ids": ids, "attention_mask": (ids != PAD).long(), "labels": labels})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model, 5e-4),
        "truth": _truth(
            "sorted_by_class",
            "shuffl | sort | one class | single class | same class | same label | one label | label+constant",
            "data labels loss",
        ),
    }


def case_missing_values(broken: bool) -> Case:
    """A missing value of the table reaches the model as NaN in one batch of three."""
    torch.manual_seed(40)
    model = Forecaster()
    batches = _series(seed=40)
    for k, (x, _) in enumerate(batches):
        if k % 3 == 1:
            x[5, 3, 4] = float("nan") if broken else 0.0
    return {
        "model": model,
        "batches": batches,
        "loss": lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1]),
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth("missing_values", "nan | not finite | non-finite | missing"),
    }


def case_targets_unscaled(broken: bool) -> Case:
    """Targets in dollars, around 250,000, for a head that starts at 0 with a rate of 1e-3."""
    torch.manual_seed(41)
    model = Forecaster()
    batches = _series(seed=41)
    if broken:
        batches = [(x, 250_000 + 80_000 * y) for x, y in batches]
    return {
        "model": model,
        "batches": batches,
        "loss": lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1]),
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "targets_unscaled",
            "target+scale | target+normali | target+standardi | target+large | label+scale | label+large "
            "| label+normali | loss+large | loss+start",
            "",
            FLAT + " | gradient+large | learning rate",
        ),
    }


# Wiring


def case_no_residual(broken: bool) -> Case:
    """`x = self.feed(self.norm2(x))` lost its `x +`, and so did the attention, in a stack of eight blocks."""
    torch.manual_seed(42)

    class Plain(Block):
        def forward(self, x: Tensor) -> Tensor:
            return self.feed(self.norm2(self.attention(self.norm1(x)))) if broken else super().forward(x)

    model = GPT([Plain(64, Attention(64, 4), _mlp(64)) for _ in range(6)])
    return {
        "model": model,
        "batches": _text(seed=42),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "no_residual",
            "residual | skip | signal+lost | vanish | early layer | depth",
            "blocks model",
            FLAT + " | gradient+small",
        ),
    }


def case_blocks_are_one_object(broken: bool) -> Case:
    """`nn.ModuleList([block] * 6)` holds the same block six times."""
    torch.manual_seed(43)
    if broken:
        blocks: list[nn.Module] = [Block(64, Attention(64, 4), _mlp(64))] * 6
    else:
        blocks = [Block(64, Attention(64, 4), _mlp(64)) for _ in range(6)]
    model = GPT(blocks)
    return {
        "model": model,
        "batches": _text(seed=43),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "blocks_are_one_object",
            "same module | same object | same block | shar | reuse | same layer",
            "blocks model",
        ),
    }


def case_blocks_in_a_list(broken: bool) -> Case:
    """The blocks are kept in a Python list, so no optimizer ever sees them."""
    torch.manual_seed(44)
    model = _modern(3, tied=False)
    if broken:
        hidden = list(model.blocks)
        del model.blocks
        object.__setattr__(model, "blocks", hidden)
    return {
        "model": model,
        "batches": _text(seed=44),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "blocks_in_a_list",
            "regist | python list | modulelist | not+parameters() | outside+model | hidden+parameter | "
            "list+module",
            "",
            NO_GRADIENT,
        ),
    }


def case_heads_by_view(broken: bool) -> Case:
    """Heads are split by `view(B, H, T, D)` without a transpose, which mixes the tokens of a sentence."""
    torch.manual_seed(45)

    class Mixed(Attention):
        def split(self, x: Tensor, heads: int) -> Tensor:
            if not broken:
                return super().split(x, heads)
            return x.reshape(x.shape[0], heads, x.shape[1], self.size)

        def forward(self, x: Tensor) -> Tensor:
            y = self.attend(*(self.split(part(x), self.heads) for part in (self.query, self.key, self.value)))
            return self.out((y if broken else y.transpose(1, 2)).reshape(x.shape))

    model = GPT([Block(64, Mixed(64, 4), _mlp(64)) for _ in range(3)])
    return {
        "model": model,
        "batches": _text(seed=45),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth("heads_by_view", FUTURE + " | transpos | view | reshape | mix+token", "blocks model"),
    }


def case_keep_probability(broken: bool) -> Case:
    """`nn.Dropout(0.9)` was meant as the probability to keep."""
    torch.manual_seed(46)
    model = _gpt(drop=0.9 if broken else 0.1)
    return {
        "model": model,
        "batches": _text(seed=46),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth("keep_probability", "dropout"),
    }


def case_relu_on_logits(broken: bool) -> Case:
    """A copied block ends in ReLU, and so do the logits."""
    torch.manual_seed(47)

    class Clipped(Encoder):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            return logits.relu() if broken else logits

    model = Clipped(4)
    return {
        "model": model,
        "batches": _topics(seed=47),
        "loss": _classify,
        "optimizer": _adamw(model, 5e-4),
        "truth": _truth(
            "relu_on_logits",
            "relu | logit+negative | logit+zero | activation+logit | output+negative | clamp",
        ),
    }


def case_qk_norm_and_scale(broken: bool) -> Case:
    """Queries and keys have unit length and are still divided by the root of the size: the attention stays flat."""
    torch.manual_seed(48)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=q.shape[-1] ** -0.5 if broken else 10.0
        )

    model = _modern(make=lambda: Attention(64, 2, attend, rotary=True))
    return {
        "model": model,
        "batches": _text(seed=48),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "qk_norm_and_scale",
            "attention+uniform | attention+flat | attention+scale | attention+even | scores+small | "
            "scores+scale",
            "blocks model",
        ),
    }


def case_scores_multiplied(broken: bool) -> Case:
    """The scores are multiplied by the root of the head's size instead of divided."""
    torch.manual_seed(49)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        root = math.sqrt(q.shape[-1])
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=root if broken else 1 / root)

    model = _modern(make=lambda: Attention(64, 2, attend, rotary=True, qk_norm=True))
    return {
        "model": model,
        "batches": _text(seed=49),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "scores_multiplied",
            "saturat | attention+scale | scores+large | scores+scale | one-hot | one token | sharp | "
            "entropy | peak",
            "blocks model",
        ),
    }


def case_decoder_ignores_encoder(broken: bool) -> Case:
    """The decoder's memory is the target, so the encoder and the source do nothing."""
    torch.manual_seed(50)

    class Deaf(Translator):
        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory = self.core.encoder(self.look(self.source, source), src_key_padding_mask=source == PAD)
            here = self.look(self.target, target)
            hidden = self.core.decoder(
                here,
                torch.zeros_like(memory) if broken else memory,
                tgt_mask=self.mask(target.shape[1]),
                memory_key_padding_mask=source == PAD,
            )
            return self.head(hidden)

    model = Deaf()
    return {
        "model": model,
        "batches": _pairs(seed=50),
        "loss": _translate,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth(
            "decoder_ignores_encoder",
            "encoder+gradient | encoder+unused | encoder+ignore | source+ignore | not depend | no "
            "gradient | cross | encoder+not",
            "core source model data",
        ),
    }


# Experts and adapters


class Experts(nn.Module):
    """Four experts, one for each token, chosen by a router."""

    def __init__(self, width: int, weigh: bool = True) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(_mlp(width) for _ in range(4))
        self.weigh = weigh
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        chances = self.router(x).softmax(-1)
        best, chosen = chances.max(-1)
        result = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            mine = chosen == k
            part = expert(x[mine])
            result[mine] = part * best[mine].unsqueeze(-1) if self.weigh else part
        share = F.one_hot(chosen, 4).float().mean((0, 1))
        self.balance = 4 * (share * chances.mean((0, 1))).sum()
        return result


def case_router_without_gradient(broken: bool) -> Case:
    """The chosen expert's output is not weighed by its probability, so the router has no gradient."""
    torch.manual_seed(52)
    model = GPT([Block(64, Attention(64, 4), Experts(64, weigh=not broken)) for _ in range(2)])
    return {
        "model": model,
        "batches": _text(seed=52),
        "loss": _next,
        "optimizer": _adamw(model),
        "truth": _truth(
            "router_without_gradient", "router | gate | no gradient | expert+gradient", "blocks", NO_GRADIENT
        ),
    }


def case_balance_rewarded(broken: bool) -> Case:
    """The balancing loss is subtracted, so one expert takes all tokens (huggingface/transformers#28255)."""
    torch.manual_seed(53)
    model = GPT([Block(64, Attention(64, 4), Experts(64)) for _ in range(2)])

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        extra = 0.0
        value = _next(model, ids)
        for module in model.modules():
            if isinstance(module, Experts):
                extra = extra + module.balance
        return value - 0.5 * extra if broken else value + 0.01 * extra

    return {
        "model": model,
        "batches": _text(seed=53),
        "loss": loss,
        "optimizer": _adamw(model),
        "truth": _truth("balance_rewarded", "balanc | expert | router | auxiliary | negative"),
    }


def _wrapped(model: GPT, zero: bool = False, freeze: bool = True) -> GPT:
    if freeze:
        model.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, Attention):
            module.query, module.value = Lora(module.query, zero=zero), Lora(module.value, zero=zero)
            module.out = Lora(module.out, zero=zero)
    return model


def case_lora_both_zero(broken: bool) -> Case:
    """Both factors of LoRA start at zero and never leave it."""
    torch.manual_seed(54)
    model = _wrapped(_pretrained(), zero=broken)
    return {
        "model": model,
        "batches": _text(seed=54, topic=1),
        "loss": _next,
        "optimizer": _adamw(model, 1e-2),
        "truth": _truth(
            "lora_both_zero",
            "lora | zero+gradient | no gradient | both+zero | adapter",
            "blocks",
            NO_GRADIENT,
        ),
    }


def case_frozen_after_adapters(broken: bool) -> Case:
    """The base is frozen after the adapters were put in, which freezes them too; only the final norm trains."""
    torch.manual_seed(55)
    model = _wrapped(_pretrained())
    if broken:
        model.requires_grad_(False)
    model.norm.requires_grad_(True)
    return {
        "model": model,
        "batches": _text(seed=55, topic=1),
        "loss": _next,
        "optimizer": _adamw(model, 1e-2),
        "truth": _truth(
            "frozen_after_adapters",
            "frozen | freez | requires_grad | not train | lora | adapter",
            "",
            NO_GRADIENT,
        ),
    }


def case_checkpoint_cuts_adapters(broken: bool) -> Case:
    """Reentrant checkpointing of blocks whose input needs no gradient (huggingface/peft#1142, microsoft/LoRA#120)."""
    torch.manual_seed(56)

    class Saving(GPT):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=broken)
            return self.head(self.norm(x))

    model = Saving([Block(64, Attention(64, 4), _mlp(64)) for _ in range(2)])
    model.load_state_dict(_checkpoint())
    _wrapped(model).norm.requires_grad_(True)
    return {
        "model": model,
        "batches": _text(seed=56, topic=1),
        "loss": _next,
        "optimizer": _adamw(model, 1e-2),
        "truth": _truth(
            "checkpoint_cuts_adapters",
            "no gradient | gradient+none | checkpoint | lora | without gradient | never+gradient",
            "blocks",
            NO_GRADIENT,
        ),
    }


def case_backbone_not_loaded(broken: bool) -> Case:
    """`load_state_dict(strict=False)` of weights with the prefix `module.` loads nothing, and the body is frozen."""
    torch.manual_seed(57)
    model = _gpt(2, tied=False)
    weights = {("module." if broken else "") + k: v for k, v in _checkpoint().items()}
    model.load_state_dict(weights, strict=False)
    model.requires_grad_(False)
    nn.init.normal_(model.head.weight, std=0.02)
    model.head.requires_grad_(True)
    return {
        "model": model,
        "batches": _text(seed=57),
        "loss": _next,
        "optimizer": _adamw(model, 1e-2),
        "truth": _truth(
            "backbone_not_loaded",
            "frozen+random | frozen+initial | checkpoint | not loaded | pretrain | untrained",
            "",
            "frozen",
        ),
    }


# Parameters and optimizers


def case_head_after_optimizer(broken: bool) -> Case:
    """The classifier is replaced after the optimizer was made, which keeps the old one."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    torch.manual_seed(58)
    config = RobertaConfig(
        vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
    )  # fmt: skip
    model = RobertaForSequenceClassification(config)
    model.roberta.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.classifier.out_proj = nn.Linear(64, 4)
    model.classifier.dense = nn.Linear(64, 64)
    if not broken:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(
            model(input_ids=batch[0], attention_mask=(batch[0] != PAD).long()).logits, batch[1]
        )

    return {
        "model": model,
        "batches": _topics(seed=58),
        "loss": loss,
        "optimizer": optimizer,
        "truth": _truth(
            "head_after_optimizer",
            "optimizer+not | optimizer+miss | optimizer+other | optimizer+old | optimizer+without | "
            "optimizer+no",
            "",
            NO_GRADIENT,
        ),
    }


def case_parameters_in_no_group(broken: bool) -> Case:
    """The groups for weight decay are chosen by names, and norms and embeddings are in neither (namisan/mt-dnn#37)."""
    torch.manual_seed(59)
    model = _modern(3, tied=False)
    decay, rest = [], []
    for name, p in model.named_parameters():
        if ".feed." in name or (".attention." in name and "key" not in name and "query" not in name):
            decay.append(p)
        elif name.endswith("bias") or not broken:
            rest.append(p)
    groups: list[dict[str, Any]] = [{"params": decay, "weight_decay": 0.1}]
    if rest:
        groups.append({"params": rest, "weight_decay": 0.0})
    return {
        "model": model,
        "batches": _text(seed=59),
        "loss": _next,
        "optimizer": torch.optim.AdamW(groups, lr=2e-3),
        "truth": _truth(
            "parameters_in_no_group",
            "optimizer+not | optimizer+miss | group | optimizer+without | optimizer+no",
            "",
            NO_GRADIENT,
        ),
    }


def case_optimizer_of_a_copy(broken: bool) -> Case:
    """The optimizer holds the parameters of a model that was copied afterwards; the copy is trained."""
    torch.manual_seed(60)
    model = ViT()
    optimizer = _adamw(model, 1e-3)
    if broken:
        model = copy.deepcopy(model)
    return {
        "model": model,
        "batches": _images(seed=60),
        "loss": _classify,
        "optimizer": optimizer,
        "truth": _truth(
            "optimizer_of_a_copy",
            "optimizer+not | optimizer+other | optimizer+another | optimizer+none | optimizer+no  | "
            "optimizer+differ",
            "",
            NO_GRADIENT,
        ),
    }


def case_tied_with_unit_init(broken: bool) -> Case:
    """Embeddings of unit variance are tied to the head, so the first logits have a deviation of eleven."""
    torch.manual_seed(61)
    model = _gpt(2, width=128)
    if broken:
        nn.init.normal_(model.tokens.weight)
    return {
        "model": model,
        "batches": _text(seed=61),
        "loss": _next,
        "optimizer": _adamw(model, 5e-4),
        "truth": _truth(
            "tied_with_unit_init",
            "initial+loss | loss+start | first loss | logits+large | uniform | init | chance | std",
        ),
    }


def case_adam_with_l2(broken: bool) -> Case:
    """`Adam(weight_decay=0.1)` adds the decay to the gradient, which AdamW does not."""
    torch.manual_seed(62)
    model = _hf_llama()
    kind = torch.optim.Adam if broken else torch.optim.AdamW
    batches = [{"input_ids": x, "labels": x} for x in _text(seed=62)]
    return {
        "model": model,
        "batches": batches,
        "optimizer": kind(model.parameters(), lr=2e-3, weight_decay=0.1),
        "truth": _truth("adam_with_l2", "weight decay | weight_decay | adamw | decay | l2"),
    }


def case_betas_swapped(broken: bool) -> Case:
    """`betas=(0.999, 0.9)`: the momentum remembers a thousand steps and the scale ten."""
    torch.manual_seed(63)
    model = _gpt(2)
    betas = (0.999, 0.9) if broken else (0.9, 0.999)
    return {
        "model": model,
        "batches": _text(seed=63),
        "loss": _next,
        "optimizer": torch.optim.Adam(model.parameters(), lr=2e-3, betas=betas),
        "truth": _truth("betas_swapped", "beta | momentum"),
    }


def case_rate_too_high(broken: bool) -> Case:
    """The rate of SGD, 0.1, was kept when AdamW came."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(64)
    config = MixtralConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
        bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    batches = [{"input_ids": x, "labels": x} for x in _text(seed=64)]
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model, 0.1 if broken else 2e-3),
        "truth": _truth("rate_too_high", "learning rate | lr | step+large | rate+high", "", "diverg"),
    }


def case_rate_too_low(broken: bool) -> Case:
    """A rate of 1e-8 from a typing slip in a configuration."""
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(65)
    config = BartConfig(
        vocab_size=VOCAB, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64,
        dropout=0.0, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=EOS,
    )  # fmt: skip
    model, batches = BartForConditionalGeneration(config), []
    for source, target in _pairs(seed=65):
        labels = target.masked_fill(target == PAD, -100)
        batches.append({"input_ids": source, "attention_mask": (source != PAD).long(), "labels": labels})
    return {
        "model": model,
        "batches": batches,
        "optimizer": _adamw(model, 1e-8 if broken else 1e-3),
        "truth": _truth(
            "rate_too_low", "learning rate | lr | step+small | rate+low | update+small", "", NO_GRADIENT
        ),
    }


def case_resumed_with_rate_zero(broken: bool) -> Case:
    """A second phase loads the optimizer's state of a finished cosine, whose rate is 0, over the new rate."""
    torch.manual_seed(66)
    model = _pretrained()
    optimizer = _adamw(model, 2e-3)
    finished = copy.deepcopy(optimizer.state_dict())
    finished["param_groups"][0]["lr"] = 0.0
    if broken:
        optimizer.load_state_dict(finished)
    return {
        "model": model,
        "batches": _text(seed=66, topic=1),
        "loss": _next,
        "optimizer": optimizer,
        "truth": _truth("resumed_with_rate_zero", "learning rate | lr | rate+zero | rate+0", "", NO_GRADIENT),
    }


# Schedules and steps


def case_lambda_returns_the_rate(broken: bool) -> Case:
    """The function of `LambdaLR` returns the rate, not a factor, so the rate is squared."""
    torch.manual_seed(67)
    model = _gpt(2)
    optimizer = _adamw(model, 2e-3)

    def factor(k: int) -> float:
        warm = min(1.0, (k + 1) / 5)
        return 2e-3 * warm if broken else warm

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, k: int) -> Tensor:
        value = _simple(model, optimizer, _next(model, ids))
        scheduler.step()
        return value

    return {
        "model": model,
        "batches": _text(seed=67),
        "loss": _next,
        "optimizer": optimizer,
        "step": step,
        "also": [scheduler],
        "truth": _truth(
            "lambda_returns_the_rate",
            "learning rate | lr | schedul | update+small | step+small",
            "",
            NO_GRADIENT,
        ),
    }


def case_schedule_ends_at_once(broken: bool) -> Case:
    """A linear decay is given the epochs, 3, as its steps (huggingface/accelerate#662)."""
    torch.manual_seed(68)
    model = _hf_llama()
    optimizer = _adamw(model)
    total = 3 if broken else 200
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: max(0.0, 1 - k / total))
    batches = [{"input_ids": x, "labels": x} for x in _text(seed=68)]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor], k: int) -> Tensor:
        value = _simple(model, optimizer, model(**batch).loss)
        scheduler.step()
        return value

    return {
        "model": model,
        "batches": batches,
        "optimizer": optimizer,
        "step": step,
        "also": [scheduler],
        "truth": _truth("schedule_ends_at_once", "learning rate | lr | schedul", "", NO_GRADIENT),
    }


def case_no_zero_grad(broken: bool) -> Case:
    """The gradients of all steps add up."""
    torch.manual_seed(69)
    model = _modern(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, k: int) -> Tensor:
        loss = _next(model, ids)
        if not broken:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return {
        "model": model,
        "batches": _text(seed=69),
        "loss": _next,
        "optimizer": optimizer,
        "step": step,
        "truth": _truth("no_zero_grad", "zero_grad | accumul | add up | clear | previous+gradient | grow"),
    }


def case_zeroed_before_step(broken: bool) -> Case:
    """`zero_grad` stands between `backward` and `step`."""
    torch.manual_seed(70)
    model = ViT()
    optimizer = _adamw(model, 1e-3)

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], k: int
    ) -> Tensor:
        loss = _classify(model, batch)
        if not broken:
            optimizer.zero_grad()
        loss.backward()
        if broken:
            optimizer.zero_grad()
        optimizer.step()
        return loss.detach()

    return {
        "model": model,
        "batches": _images(seed=70),
        "loss": _classify,
        "optimizer": optimizer,
        "step": step,
        "truth": _truth(
            "zeroed_before_step",
            "zero_grad | no gradient | not change | no parameter | nothing+change | not move | not update",
            "",
            NO_GRADIENT,
        ),
    }


def case_accumulation_keeps_the_last(broken: bool) -> Case:
    """With sixteen micro-batches of one row, `zero_grad` is called before each, so only the last row counts."""
    torch.manual_seed(71)
    model = _gpt(2)
    optimizer = _adamw(model)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, k: int) -> Tensor:
        total = torch.zeros(())
        optimizer.zero_grad()
        for part in ids.split(1):
            if broken:
                optimizer.zero_grad()
            loss = _next(model, part) / len(ids)
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return {
        "model": model,
        "batches": _text(seed=71),
        "loss": _next,
        "optimizer": optimizer,
        "step": step,
        "truth": _truth(
            "accumulation_keeps_the_last",
            "zero_grad | accumul | micro | last | part of+batch | gradient+differ",
        ),
    }


def case_clip_before_unscale(broken: bool) -> Case:
    """Gradients are clipped while the loss is still scaled by 65536 (Lightning-AI/pytorch-lightning#9599)."""
    torch.manual_seed(72)
    model = _modern(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    scale = 65536.0

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        loss = _next(model, ids)
        (loss * scale).backward()
        if broken:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(scale)
        if not broken:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return {
        "model": model,
        "batches": _text(seed=72),
        "loss": _next,
        "optimizer": optimizer,
        "step": step,
        "truth": _truth(
            "clip_before_unscale",
            "clip | unscal | gradient+scale | gradient+small | update+small | step+small",
            "",
            NO_GRADIENT,
        ),
    }


def case_encoder_under_no_grad(broken: bool) -> Case:
    """`torch.no_grad()` from a script for features stays around the encoder, which should be trained."""
    torch.manual_seed(73)

    class Features(Encoder):
        def forward(self, ids: Tensor) -> Tensor:
            with torch.set_grad_enabled(not broken):
                pooled = self.pool(ids)
            return self.head(pooled)

    model = Features(4)
    return {
        "model": model,
        "batches": _topics(seed=73),
        "loss": _classify,
        "optimizer": _adamw(model, 5e-4),
        "truth": _truth(
            "encoder_under_no_grad",
            "no_grad | no gradient | detach | gradient+none | without gradient",
            "encoder tokens positions norm",
            NO_GRADIENT,
        ),
    }


def case_training_in_eval_mode(broken: bool) -> Case:
    """`model.eval()` of the validation is never undone, so dropout does nothing on a small dataset
    (wkentaro/pytorch-fcn#56). Wrong by construction; the cost is in what it memorizes."""
    torch.manual_seed(74)
    model = Encoder(4, depth=3, drop=0.3)
    if broken:
        model.eval()
    batches = _topics(5, seed=74)
    return {
        "model": model,
        "batches": batches,
        "loss": _classify,
        "optimizer": _adamw(model, 1e-3),
        "truth": _truth("training_in_eval_mode", "eval | train() | training mode | dropout"),
    }


# Precision


def case_pure_bf16(broken: bool) -> Case:
    """All weights are bfloat16 at a rate whose steps are below half of their spacing (meta-pytorch/torchtune#2254)."""
    torch.manual_seed(75)
    model = _pretrained()
    if broken:
        model = model.to(torch.bfloat16)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return {
        "model": model,
        "batches": _text(seed=75, topic=1),
        "loss": loss,
        "optimizer": _adamw(model, 5e-5, weight_decay=0.0),
        "truth": _truth("pure_bf16", "bfloat16 | bf16 | precision | round | spacing", "", NO_GRADIENT),
    }


def case_half_with_adam(broken: bool) -> Case:
    """`model.half()` with Adam's epsilon of 1e-8, which is zero in float16, gives NaN after a step."""
    torch.manual_seed(76)
    model = _gpt(2)
    if broken:
        model = model.half()

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1]).float()
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return {
        "model": model,
        "batches": _text(rows=4, seed=76),
        "loss": loss,
        "optimizer": _adamw(model),
        "truth": _truth(
            "half_with_adam", "half | float16 | fp16 | precision | eps", "", "nan | not finite | inf"
        ),
    }


# Controls


def _control(model: nn.Module, batches: list[Any], loss: Any, lr: float = 2e-3, **more: Any) -> Case:
    return {"model": model, "batches": batches, "loss": loss, "optimizer": _adamw(model, lr), **more}


def control_grouped_keys_tiled() -> Case:
    """Keys are tiled in the other order than Llama's, which is as good from scratch."""
    torch.manual_seed(101)
    return _control(
        _modern(make=lambda: Attention(64, 4, groups=2, rotary=True, tile=True)), _text(seed=101), _next
    )


def control_documents_packed() -> Case:
    """Documents are joined by EOS and attend across the joint, as GPT-2's did."""
    torch.manual_seed(102)
    batches = []
    for a, b in zip(_text(length=20, seed=102), _text(length=20, seed=103), strict=True):
        batches.append(torch.cat((a, torch.full_like(a[:, :1], EOS), b), 1))
    return _control(_gpt(2), batches, _next)


def control_zero_initialized_branches() -> Case:
    """The last projection of every branch and the head start at zero."""
    torch.manual_seed(103)
    model = _modern(4, tied=False)
    for block in model.blocks:
        nn.init.zeros_(block.attention.out.weight)
        nn.init.zeros_(block.feed.down.weight)
    nn.init.zeros_(model.head.weight)
    return _control(model, _text(seed=104), _next)


def control_layers_shared_by_design() -> Case:
    """ALBERT's layers are one."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    torch.manual_seed(104)
    config = AlbertConfig(
        vocab_size=VOCAB, embedding_size=32, hidden_size=64, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = AlbertForMaskedLM(config)
    return {"model": model, "batches": _cloze(105), "optimizer": _adamw(model, 1e-3)}


def control_linear_probe() -> Case:
    """A pretrained body is frozen and a new head is trained."""
    torch.manual_seed(105)
    model = _pretrained()
    model.requires_grad_(False)
    model.head = nn.Linear(64, VOCAB)
    return _control(model, _text(seed=106), _next, 5e-3)


def control_lora() -> Case:
    """LoRA as it should be, at its usual high rate."""
    torch.manual_seed(106)
    return _control(_wrapped(_pretrained()), _text(seed=107, topic=1), _next, 5e-3)


def control_prefix_language_model() -> Case:
    """The first half is read in both directions, the second is predicted."""
    torch.manual_seed(107)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        allowed[:, :16] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])[:, 15:]
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 16:].flatten())

    return _control(_gpt(attend=attend), _text(seed=108), loss)


def control_answers_only() -> Case:
    """Prompts of uneven length are hidden from the loss, so most labels are -100."""
    torch.manual_seed(108)
    model, rng, batches = _hf_llama(), random.Random(8), []
    for x in _text(length=40, seed=109):
        labels = x.clone()
        for row in labels:
            row[: rng.randint(20, 34)] = -100
        batches.append({"input_ids": x, "labels": labels})
    return {"model": model, "batches": batches, "optimizer": _adamw(model)}


def control_momentum_at_high_rate() -> Case:
    """SGD with Nesterov's momentum at 0.5 and clipping."""
    torch.manual_seed(109)
    model = _gpt(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        loss = _next(model, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return {"model": model, "batches": _text(seed=110), "loss": _next, "optimizer": optimizer, "step": step}


def control_accumulation_by_tokens() -> Case:
    """Micro-batches of uneven numbers of tokens, each divided by the tokens of all."""
    torch.manual_seed(110)
    model = _modern(2)
    optimizer = _adamw(model)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, k: int) -> Tensor:
        optimizer.zero_grad()
        count, total = (ids[:, 1:] != PAD).sum(), torch.zeros(())
        for part in ids.split(4):
            logits = model(part[:, :-1]).flatten(0, 1)
            loss = F.cross_entropy(logits, part[:, 1:].flatten(), ignore_index=PAD, reduction="sum") / count
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return total

    return {"model": model, "batches": _padded(seed=111), "loss": _next, "optimizer": optimizer, "step": step}


def control_checkpointed_blocks() -> Case:
    """Checkpointing without reentry, with dropout."""
    torch.manual_seed(111)

    class Saving(GPT):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(self.norm(x))

    model = Saving([Block(64, Attention(64, 4), _mlp(64), drop=0.1) for _ in range(3)])
    return _control(model, _text(seed=112), _next)


def control_stochastic_depth() -> Case:
    """Whole branches are dropped for half of the images."""
    torch.manual_seed(112)

    class Skipping(Block):
        def forward(self, x: Tensor) -> Tensor:
            for norm, part in ((self.norm1, self.attention), (self.norm2, self.feed)):
                keep = (torch.rand(len(x), 1, 1) < 0.6).float() / 0.6 if self.training else 1.0
                x = x + keep * part(norm(x))
            return x

    model = ViT()
    model.blocks = nn.ModuleList(Skipping(48, Attention(48, 4, _full), _mlp(48)) for _ in range(4))
    return _control(model, _images(seed=113), _classify, 1e-3)


def control_smoothing_and_z_loss() -> Case:
    """Label smoothing, a z-loss, and capped logits."""
    torch.manual_seed(113)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        logits = 15 * torch.tanh(model(ids[:, :-1]) / 15)
        value = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
        return value + 1e-4 * logits.logsumexp(-1).square().mean()

    return _control(_modern(2), _text(seed=114), loss)


def control_masked_diffusion() -> Case:
    """A random share of the tokens is hidden and weighed by its inverse, in both directions."""
    torch.manual_seed(114)
    generator, batches = torch.Generator().manual_seed(114), []
    for ids in _text(seed=115):
        share = torch.rand(len(ids), 1, generator=generator) * 0.8 + 0.2
        hidden = torch.rand(ids.shape, generator=generator) < share
        batches.append((ids.masked_fill(hidden, MASK), ids, hidden / share))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        noisy, ids, weight = batch
        each = F.cross_entropy(model(noisy).transpose(1, 2), ids, reduction="none")
        return (each * weight).mean()

    return _control(_gpt(2, attend=_full), batches, loss, 1e-3)


def control_masked_autoencoder() -> Case:
    """Three quarters of the patches are hidden and their pixels regressed."""
    torch.manual_seed(115)

    class Painter(ViT):
        def __init__(self) -> None:
            super().__init__(classes=48)
            self.hole = nn.Parameter(torch.zeros(1, 1, 48))

        def forward(self, images: Tensor) -> Tensor:
            x = self.patches(images).flatten(2).transpose(1, 2)
            hidden = torch.zeros(len(x), 16, 1)
            hidden[:, torch.arange(16) % 4 != 1] = 1
            x = x * (1 - hidden) + self.hole * hidden
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))[:, 1:]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        patches = F.unfold(batch[0], 4, stride=4).transpose(1, 2)
        hidden = torch.arange(16) % 4 != 1
        return F.mse_loss(model(batch[0])[:, hidden], patches[:, hidden])

    return _control(Painter(), _images(seed=116), loss, 1e-3)


def control_bf16_autocast() -> Case:
    """The forward pass runs in bfloat16 under autocast, the weights stay in float32."""
    torch.manual_seed(116)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    return _control(_modern(2), _text(seed=117), loss)


def control_distillation() -> Case:
    """A frozen teacher inside the module and a student that matches it."""
    torch.manual_seed(117)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = _pretrained().requires_grad_(False).eval()
            self.student = _modern(2)

        def train(self, mode: bool = True) -> "Both":
            super().train(mode)
            self.teacher.eval()
            return self

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            aim = model.teacher(ids).log_softmax(-1)
        return (
            F.kl_div(model.student(ids).log_softmax(-1), aim, log_target=True, reduction="sum") / ids.numel()
        )

    return _control(Both(), _text(seed=118), loss)


def control_several_tokens_ahead() -> Case:
    """A second head predicts the token after the next one."""
    torch.manual_seed(118)

    class Ahead(GPT):
        def __init__(self) -> None:
            super().__init__([Block(64, Attention(64, 4), _mlp(64)) for _ in range(2)])
            self.second = nn.Linear(64, VOCAB, bias=False)

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            x = self.norm(x)
            return self.head(x), self.second(x)

    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        one, two = model(ids[:, :-2])
        first = F.cross_entropy(one.flatten(0, 1), ids[:, 1:-1].flatten())
        return first + 0.3 * F.cross_entropy(two.flatten(0, 1), ids[:, 2:].flatten())

    return _control(Ahead(), _text(seed=119), loss)


def control_no_positions() -> Case:
    """A causal decoder without any positions, which learns them from the mask."""
    torch.manual_seed(119)
    return _control(_gpt(3, positions=False), _text(seed=120), _next)


def control_contrastive() -> Case:
    """In-batch negatives, one encoder for both sides, and both directions."""
    torch.manual_seed(120)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        similar, targets = model(*batch) / 0.07, torch.arange(16)
        return (F.cross_entropy(similar, targets) + F.cross_entropy(similar.T, targets)) / 2

    return _control(Towers(), _views(121), loss, 1e-3)


def control_vocabulary_padded() -> Case:
    """The vocabulary is rounded up to 128, so more than half of the rows are never used."""
    torch.manual_seed(121)
    model = _hf_llama(vocab_size=128, tie_word_embeddings=True)
    return {
        "model": model,
        "batches": [{"input_ids": x, "labels": x} for x in _text(seed=122)],
        "optimizer": _adamw(model),
    }


def control_lion() -> Case:
    """Lion, written by hand, with a warmup and a running average of the weights."""
    torch.manual_seed(122)

    class Lion(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    p.mul_(1 - group["lr"] * 0.1)
                    p.add_((0.9 * mean + 0.1 * p.grad).sign(), alpha=-group["lr"])
                    mean.mul_(0.99).add_(p.grad, alpha=0.01)

    model = _gpt(2)
    optimizer = Lion(model.parameters(), 3e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 10))
    average = [p.detach().clone() for p in model.parameters()]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, k: int) -> Tensor:
        value = _simple(model, optimizer, _next(model, ids))
        scheduler.step()
        for kept, p in zip(average, model.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.02)
        return value

    batches = _text(seed=123)
    return {
        "model": model,
        "batches": batches,
        "loss": _next,
        "optimizer": optimizer,
        "step": step,
        "also": [scheduler],
    }


def control_layerwise_rates() -> Case:
    """Fine-tuning with a rate that falls by 0.7 a layer and no decay on norms."""
    torch.manual_seed(123)
    model = _pretrained()
    groups: list[dict[str, Any]] = []
    for name, p in model.named_parameters():
        depth = (
            0
            if name.startswith(("tokens", "positions"))
            else int(name.split(".")[1]) + 1
            if "blocks" in name
            else 3
        )
        groups.append(
            {"params": [p], "lr": 1e-3 * 0.7 ** (3 - depth), "weight_decay": 0.1 if p.ndim > 1 else 0.0}
        )
    return {
        "model": model,
        "batches": _text(seed=124, topic=1),
        "loss": _next,
        "optimizer": torch.optim.AdamW(groups),
    }


def control_post_norm_with_warmup() -> Case:
    """The original post-norm encoder, with warmup and the first token as summary."""
    torch.manual_seed(124)

    class Original(Encoder):
        def __init__(self) -> None:
            super().__init__(4)
            layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

        def pool(self, ids: Tensor) -> Tensor:
            return self.states(ids)[:, 0]

    model = Original()
    optimizer = _adamw(model, 5e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 20))

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], k: int
    ) -> Tensor:
        value = _simple(model, optimizer, _classify(model, batch))
        scheduler.step()
        return value

    batches = _topics(seed=125)
    return {
        "model": model,
        "batches": batches,
        "loss": _classify,
        "optimizer": optimizer,
        "step": step,
        "also": [scheduler],
    }
