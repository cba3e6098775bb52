"""Fourth blind list: mistakes in trainings on text. See the README; nothing here was run under the check before it landed."""

# ruff: noqa: E501
from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

from experiments.preflight.blind_four_data import (
    HELD,
    adamw,
    chain,
    encoder,
    keyed,
    later,
    marked,
    source,
    training,
    truth,
    warm,
)


def entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


def case_prompt_length_in_characters(broken: bool) -> dict:
    """The prompt is masked out of the labels by the length of its text, not by its number of tokens.

    github.com/huggingface/trl/issues/632 and many notebooks of instruction tuning.
    """
    config = hf.Qwen2Config(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model = hf.Qwen2ForCausalLM(config)

    def rows(k: int) -> tuple[Tensor, Tensor]:
        start = chain(k, length=9, step=5)
        end = [start[:, -1]]
        for _ in range(7):
            end.append((11 * end[-1] + 3) % 32)
        return torch.cat([start, torch.stack(end[1:], 1)], 1), 1 + start[:, :6] % 4

    def stream(k: int) -> dict:
        words, characters = rows(k)
        labels = words.clone()
        for n in range(len(words)):
            labels[n, : int(characters[n].sum()) if broken else 6] = -100
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": labels}

    def held(m: nn.Module) -> float:
        words, _ = rows(HELD)
        return float(entropy(m(input_ids=words).logits[:, 5:-1], words[:, 6:]))

    words = [["labels", "ignored"], ["labels", "-100"], ["label", "masked"], ["few", "label"], ["no label"]]
    words += [["few", "target"], ["answer", "masked"], ["prompt"], ["empty", "label"], ["without", "label"]]
    return training(
        model, stream, held, optimizer=adamw(model, 3e-3),
        truth=truth("prompt_length_in_characters", words, ["labels", "data", "loss"], [["nan"], ["label"]]),
    )  # fmt: skip


def case_attention_mask_from_labels(broken: bool) -> dict:
    """The attention mask is built as labels != -100, so the answer cannot attend to its prompt."""
    config = hf.LlamaConfig(
        vocab_size=64, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=32, pad_token_id=63,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config)

    def stream(k: int) -> dict:
        ask, reply = keyed(k, prompt=5)
        words = torch.cat([ask, torch.full((len(ask), 1), 61), reply], 1)
        labels = words.clone()
        labels[:, :6] = -100
        seen = (labels != -100).long() if broken else torch.ones_like(words)
        return {"input_ids": words, "attention_mask": seen, "labels": labels}

    def held(m: nn.Module) -> float:
        ask, reply = keyed(HELD, 128, prompt=5)
        words = torch.cat([ask, torch.full((len(ask), 1), 61), reply], 1)
        seen = torch.ones_like(words)
        if broken:
            seen[:, :6] = 0
        return float(entropy(m(input_ids=words, attention_mask=seen).logits[:, 5:-1], reply))

    words = [
        ["mask", "prompt"],
        ["attention", "mask"],
        ["hidden", "token"],
        ["masked", "input"],
        ["cannot see"],
    ]
    words += [["mask", "label"], ["attend", "nothing"], ["padding", "mask"], ["ignored", "input"]]
    return training(
        model, stream, held, optimizer=adamw(model, 3e-3),
        truth=truth("attention_mask_from_labels", words, ["data", "model", "attention_mask", "labels", "loss"],
                    [["no effect"], ["does not depend"], ["unused"], ["mask"]]),
    )  # fmt: skip


def case_mask_from_a_real_token(broken: bool) -> dict:
    """Padding is told by id 0, but id 0 is an ordinary token ("!" in the vocabulary of GPT-2) that carries the label."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(64, 32)
            self.encode = encoder()
            self.head = nn.Linear(32, 2)

        def forward(self, words: Tensor, padding: Tensor) -> Tensor:
            x = self.encode(self.embed(words), src_key_padding_mask=padding)
            kept = (~padding).float()[..., None]
            return self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1))

    model = Classifier()
    pad = 0 if broken else 63

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor, Tensor]:
        draw = source(k)
        words = torch.randint(1, 60, (rows, 18), generator=draw)
        words[
            torch.rand(rows, 18, generator=draw) < 0.18 * torch.randint(0, 3, (rows, 1), generator=draw)
        ] = 0
        lengths = torch.randint(13, 19, (rows, 1), generator=draw)
        real = torch.arange(18) < lengths
        label = ((words == 0) & real).sum(1).ge(3).long()
        words = torch.where(real, words, pad)
        return words, words == pad, label

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0], batch[1]), batch[2])

    words = [
        ["mask", "token"],
        ["padding", "token"],
        ["padding", "id"],
        ["hidden"],
        ["mask", "real"],
        ["pad", "mask"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256))), loss=loss, optimizer=adamw(model),
        truth=truth("mask_from_a_real_token", words, ["data", "model", "embed", "encode"], [["mask"], ["padding"]]),
    )  # fmt: skip


def case_spans_in_characters(broken: bool) -> dict:
    """Question answering: start and end are offsets in the text, not tokens; those past the end are ignored."""
    config = hf.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = hf.BertForQuestionAnswering(config)

    def stream(k: int, rows: int = 32, right: bool = not broken) -> dict:
        draw = source(k)
        words = torch.randint(5, 60, (rows, 24), generator=draw)
        start = torch.randint(1, 18, (rows,), generator=draw)
        end = start + torch.randint(1, 5, (rows,), generator=draw)
        words[torch.arange(rows), start], words[torch.arange(rows), end] = 3, 4
        size = 2 + words % 6
        place = size.cumsum(1) - size
        if not right:
            start, end = place[torch.arange(rows), start], place[torch.arange(rows), end]
        return {"input_ids": words, "start_positions": start, "end_positions": end}

    words = [
        ["position", "range"],
        ["label", "ignored"],
        ["out of range"],
        ["position", "past"],
        ["start_positions"],
    ]
    words += [
        ["label", "beyond"],
        ["span"],
        ["end_positions"],
        ["label", "outside"],
        ["longer than"],
        ["no label"],
    ]
    return training(
        model, stream, lambda m: float(m(**stream(HELD, 128, True)).loss), optimizer=adamw(model, 3e-3),
        truth=truth("spans_in_characters", words, ["labels", "data", "loss", "start_positions", "end_positions"],
                    [["label"], ["nan"], ["target"]]),
    )  # fmt: skip


def case_choices_stacked_the_other_way(broken: bool) -> dict:
    """Multiple choice: the choices are stacked first and then viewed as if the examples came first."""
    config = hf.RobertaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=40, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = hf.RobertaForMultipleChoice(config)

    def stream(k: int, rows: int = 16, right: bool = not broken) -> dict:
        draw = source(k)
        choices = list(torch.randint(10, 50, (4, rows, 8), generator=draw))
        label = torch.randint(0, 4, (rows,), generator=draw)
        for n in range(rows):
            choices[int(label[n])][n, 3] = 5
        stacked = torch.stack(choices, 1) if right else torch.stack(choices, 0).view(rows, 4, 8)
        return {"input_ids": stacked, "labels": label}

    words = [
        ["label", "input"],
        ["example", "mix"],
        ["shuffled"],
        ["nothing", "label"],
        ["reshape"],
        ["viewed"],
        ["view("],
    ]
    words += [
        ["label", "random"],
        ["choice"],
        ["wrong order"],
        ["order of"],
        ["pairs"],
        ["label", "unrelated"],
        ["say nothing"],
    ]
    return training(
        model, stream, lambda m: float(m(**stream(HELD, 64, True)).loss), optimizer=adamw(model, 2e-3),
        truth=truth("choices_stacked_the_other_way", words, ["data", "labels", "loss", "input_ids"], [["label"]]),
    )  # fmt: skip


class Attention(nn.Module):
    """Attention by hand, with whatever mask it is given (True: may look)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.out(
            F.scaled_dot_product_attention(q, k, v, allowed).transpose(1, 2).reshape(rows, length, width)
        )


def case_prefix_mask_covers_all(broken: bool) -> dict:
    """Prefix language model: the part seen from both sides is as long as the row, not as its prompt."""

    class PrefixLM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(32, 48), nn.Embedding(24, 48)
            self.attend = nn.ModuleList(Attention(48, 4) for _ in range(2))
            self.think = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
                for _ in range(2)
            )
            self.norms = nn.ModuleList(nn.LayerNorm(48) for _ in range(3))
            self.head = nn.Linear(48, 32)

        def forward(self, words: Tensor) -> Tensor:
            length = words.shape[1]
            prefix = length if broken else min(6, length)
            at = torch.arange(length)
            allowed = (at[None] <= at[:, None]) | (at[None] < prefix)
            x = self.embed(words) + self.place(at)
            for attend, think, norm in zip(self.attend, self.think, self.norms, strict=False):
                x = x + attend(norm(x), allowed)
                x = x + think(x)
            return self.head(self.norms[-1](x))

    model = PrefixLM()
    words = [["future"], ["causal"], ["sees", "token"], ["leak"], ["look", "ahead"], ["label", "input"]]
    return training(
        model, chain, lambda m: later(m, chain(HELD, 128)), optimizer=adamw(model, 3e-3),
        loss=lambda m, x: entropy(m(x)[:, 5:-1], x[:, 6:]),
        truth=truth("prefix_mask_covers_all", words, ["attend", "model", "loss", "labels"], [["mask"]]),
    )  # fmt: skip


def case_conv_sees_ahead(broken: bool) -> dict:
    """A short convolution before causal attention is padded on both sides.

    Hybrids of convolution and attention; causal padding is on the left only.
    """

    class Hybrid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 40)
            self.mix = nn.Conv1d(40, 40, 3, padding=1 if broken else 0)
            self.encode = encoder(40, 2, 4)
            self.head = nn.Linear(40, 32)

        def forward(self, words: Tensor) -> Tensor:
            x = self.embed(words).transpose(1, 2)
            x = self.mix(x if broken else F.pad(x, (2, 0))).transpose(1, 2)
            mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
            return self.head(self.encode(x, mask, is_causal=True))

    model = Hybrid()
    words = [["future"], ["causal"], ["sees", "token"], ["leak"], ["look", "ahead"]]
    return training(
        model, chain, lambda m: later(m, chain(HELD, 128)), optimizer=adamw(model, 3e-3),
        loss=lambda m, x: entropy(m(x)[:, :-1], x[:, 1:]),
        truth=truth("conv_sees_ahead", words, ["mix", "model", "loss", "labels", "encode"], [["mask"], ["label"]]),
    )  # fmt: skip


def case_mixer_mixes_the_future(broken: bool) -> dict:
    """An MLP-mixer as a language model: its mixing of positions lost the lower triangle (`tril` typed as `triu`)."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 48)
            self.tokens = nn.ParameterList(nn.Parameter(0.05 * torch.randn(24, 24)) for _ in range(2))
            self.channels = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
                for _ in range(2)
            )
            self.norms = nn.ModuleList(nn.LayerNorm(48) for _ in range(3))
            self.head = nn.Linear(48, 32)

        def forward(self, words: Tensor) -> Tensor:
            x, length = self.embed(words), words.shape[1]
            for mixing, think, norm in zip(self.tokens, self.channels, self.norms, strict=False):
                kept = torch.triu(mixing) if broken else torch.tril(mixing)
                x = x + kept[:length, :length] @ norm(x)
                x = x + think(x)
            return self.head(self.norms[-1](x))

    model = Mixer()
    words = [["future"], ["causal"], ["sees", "token"], ["leak"], ["look", "ahead"]]
    return training(
        model, chain, lambda m: later(m, chain(HELD, 128)), optimizer=adamw(model, 4e-3),
        loss=lambda m, x: entropy(m(x)[:, :-1], x[:, 1:]),
        truth=truth("mixer_mixes_the_future", words, ["tokens", "model", "loss", "labels"], [["mask"]]),
    )  # fmt: skip


def case_mask_after_softmax(broken: bool) -> dict:
    """The causal mask writes -1e9 into the weights after the softmax rather than into the scores before it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))
            self.one, self.two = nn.LayerNorm(32), nn.LayerNorm(32)
            self.mlp = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
            y = self.one(x)
            scores = self.q(y) @ self.k(y).mT / math.sqrt(32)
            if broken:
                weights = scores.softmax(-1).masked_fill(hidden, -1e9)
            else:
                weights = scores.masked_fill(hidden, -1e9).softmax(-1)
            x = x + self.o(weights @ self.v(y))
            return x + self.mlp(self.two(x))

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(32, 32), nn.Embedding(24, 32)
            self.blocks = nn.Sequential(Block(), Block())
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 32)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.norm(self.blocks(self.embed(words) + self.place.weight[: words.shape[1]])))

    model = Tiny()
    words = [
        ["mask", "softmax"],
        ["future"],
        ["causal"],
        ["leak"],
        ["large", "output"],
        ["scale"],
        ["explod"],
        ["1e"],
    ]
    words += [["overflow"], ["grows"], ["size", "block"]]
    return training(
        model, chain, lambda m: later(m, chain(HELD, 128)), optimizer=adamw(model, 3e-3),
        loss=lambda m, x: entropy(m(x)[:, :-1], x[:, 1:]),
        truth=truth("mask_after_softmax", words, ["blocks", "model", "loss", "labels"],
                    [["gradient"], ["mask"], ["attention"], ["norm"], ["activation"]]),
    )  # fmt: skip


def case_shifted_the_wrong_way(broken: bool) -> dict:
    """The loss compares logits[:, 1:] with ids[:, :-1]: each position is asked for the token before it."""
    config = hf.GPTNeoXConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    model = hf.GPTNeoXForCausalLM(config)

    def loss(m: nn.Module, batch: dict) -> Tensor:
        logits, ids = m(input_ids=batch["input_ids"]).logits, batch["input_ids"]
        return entropy(logits[:, 1:], ids[:, :-1]) if broken else entropy(logits[:, :-1], ids[:, 1:])

    words = [
        ["shift"],
        ["label", "input"],
        ["already", "seen"],
        ["sees", "token"],
        ["visible"],
        ["past"],
        ["copy"],
    ]
    words += [["leak"], ["previous"], ["answer", "input"], ["in its input"]]
    return training(
        model, lambda k: {"input_ids": chain(k)}, lambda m: later(lambda x: m(input_ids=x).logits, chain(HELD, 128)),
        loss=loss, optimizer=adamw(model, 3e-3),
        truth=truth("shifted_the_wrong_way", words, ["labels", "loss", "data"], [["causal"], ["future"], ["label"]]),
    )  # fmt: skip


def case_criterion_has_weights_of_its_own(broken: bool) -> dict:
    """An adaptive softmax is the loss, and its weights are in no optimizer (model.parameters() has the body only)."""

    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place, self.encode = nn.Embedding(200, 32), nn.Embedding(24, 32), encoder()

        def forward(self, words: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
            return self.encode(self.embed(words) + self.place.weight[: words.shape[1]], mask, is_causal=True)

    body = Body()
    criterion = nn.AdaptiveLogSoftmaxWithLoss(32, 200, cutoffs=[20, 80], div_value=2.0)

    def stream(k: int, rows: int = 24) -> Tensor:
        return (chain(k, rows, 20, vocab=200, step=7) ** 2) // 200

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return criterion(m(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).loss

    weights = [*body.parameters(), *([] if broken else criterion.parameters())]
    words = [
        ["optimizer", "not"],
        ["not", "trained"],
        ["never", "updated"],
        ["no group"],
        ["missing", "optimizer"],
    ]
    words += [["outside", "optimizer"], ["in no group"], ["in no optimizer"], ["left out"]]
    return training(
        body, stream, lambda m: float(loss(m, stream(HELD, 64))), loss=loss,
        optimizer=torch.optim.AdamW(weights, lr=3e-3),
        truth=truth("criterion_has_weights_of_its_own", words, ["optimizer", "loss", "model"], [["head"]]),
    )  # fmt: skip


def case_vectors_from_pretrained_frozen(broken: bool) -> dict:
    """`nn.Embedding.from_pretrained` freezes by default; words without a vector stay zero for ever.

    docs: torch.nn.Embedding.from_pretrained(embeddings, freeze=True, ...).
    """
    vectors = 0.4 * torch.randn(40, 32)
    vectors[:14] = 0.0

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding.from_pretrained(vectors, **({} if broken else {"freeze": False}))
            self.encode, self.head = encoder(), nn.Linear(32, 4)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.encode(self.embed(words)).amax(1))

    model = Classifier()

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    words = [
        ["frozen"],
        ["embedding", "not", "trained"],
        ["requires_grad"],
        ["zero", "row"],
        ["same", "embedding"],
    ]
    words += [
        ["freeze"],
        ["embedding", "alike"],
        ["embedding", "identical"],
        ["embedding", "zero"],
        ["not", "train"],
    ]
    return training(
        model, marked, lambda m: float(loss(m, marked(HELD, 256))), loss=loss, optimizer=adamw(model),
        truth=truth("vectors_from_pretrained_frozen", words, ["embed", "optimizer", "data", "model"], [["label"]]),
    )  # fmt: skip


def case_double_zero_gate(broken: bool) -> dict:
    """Each branch ends in a zero gate *and* a zero matrix: neither ever gets a gradient."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.attend = nn.LayerNorm(48), Attention(48, 4)
            self.mlp = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.SiLU(), nn.Linear(96, 48))
            self.gates = nn.Parameter(torch.zeros(2, 48))
            if broken:
                for last in (self.attend.out, self.mlp[3]):
                    nn.init.zeros_(last.weight)
                    nn.init.zeros_(last.bias)

        def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
            x = x + self.gates[0] * self.attend(self.norm(x), allowed)
            return x + self.gates[1] * self.mlp(x)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(64, 48), nn.Embedding(24, 48)
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(48, 64)

        def forward(self, words: Tensor) -> Tensor:
            allowed = torch.ones(words.shape[1], words.shape[1]).tril().bool()
            x = self.embed(words) + self.place.weight[: words.shape[1]]
            for block in self.blocks:
                x = block(x, allowed)
            return self.head(x)

    model = Gated()

    def stream(k: int, rows: int = 32) -> Tensor:
        return torch.cat(keyed(k, rows, prompt=4), 1)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return entropy(m(x)[:, 3:-1], x[:, 4:])

    words = [
        ["zero", "gradient"],
        ["no gradient"],
        ["both", "zero"],
        ["never", "learn"],
        ["gradient", "exactly"],
    ]
    words += [["all", "zero"], ["dead"], ["zero", "weight"], ["does nothing"], ["no effect"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 128))), loss=loss, optimizer=adamw(model, 4e-3),
        truth=truth("double_zero_gate", words, ["blocks", "model"], [["zero"], ["gradient"], ["identity"], ["unused"]]),
    )  # fmt: skip


def case_embeddings_not_scaled(broken: bool) -> dict:
    """Embeddings drawn at 0.02 are added to sinusoids of size 0.7 without a factor: places drown words."""

    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(40, 64)
            nn.init.normal_(self.embed.weight, std=0.02)
            wave = torch.exp(-torch.arange(0, 64, 2) * math.log(10000.0) / 64) * torch.arange(16)[:, None]
            self.register_buffer("place", torch.stack([wave.sin(), wave.cos()], -1).flatten(1))
            self.encode, self.head = encoder(64, 2, 4, first=False), nn.Linear(64, 4)

        def forward(self, words: Tensor) -> Tensor:
            x = self.embed(words) * (1.0 if broken else math.sqrt(64) * 6)
            return self.head(self.encode(x + self.place).mean(1))

    model = Sentences()

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    words = [
        ["position", "embedding"],
        ["position", "larger"],
        ["embedding", "small"],
        ["place"],
        ["token", "small"],
    ]
    words += [
        ["scale", "embedding"],
        ["drown"],
        ["position", "dominate"],
        ["input", "barely"],
        ["tokens", "alike"],
    ]
    return training(
        model, marked, lambda m: float(loss(m, marked(HELD, 256))), loss=loss, optimizer=adamw(model, 5e-4),
        truth=truth("embeddings_not_scaled", words, ["embed", "place", "model", "encode"], [["embedding"], ["alike"]]),
    )  # fmt: skip


class Low(nn.Module):
    """A linear map with a low-rank addition."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner
        self.down, self.up = (
            nn.Linear(inner.in_features, rank, False),
            nn.Linear(rank, inner.out_features, False),
        )
        nn.init.zeros_(self.up.weight)

    @property
    def weight(self) -> Tensor:
        return self.inner.weight

    @property
    def bias(self) -> Tensor | None:
        return self.inner.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.up(self.down(x))


def case_adapter_bypassed(broken: bool) -> dict:
    """Low-rank adapters wrap `out_proj` of nn.MultiheadAttention, which reads the weight and never calls the module.

    github.com/helicalAI/helical/pull/405, github.com/Baijiong-Lin/LoRA-Torch/issues/3.
    """

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
            self.one, self.two = nn.LayerNorm(32), nn.LayerNorm(32)
            self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

        def forward(self, x: Tensor) -> Tensor:
            y = self.one(x)
            x = x + self.attend(y, y, y, need_weights=False)[0]
            return x + self.down(F.gelu(self.up(self.two(x))))

    class Sentences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.blocks = nn.Embedding(40, 32), nn.Sequential(Block(), Block())
            self.head = nn.Linear(32, 4)

        def forward(self, words: Tensor) -> Tensor:
            return self.head(self.blocks(self.embed(words)).amax(1))

    model = Sentences()
    warm(model, lambda m, k: F.cross_entropy(m(marked(k + 500)[0]), marked(k + 500)[1]), 150)
    model.requires_grad_(False)
    for block in model.blocks:
        if broken:
            block.attend.out_proj = Low(block.attend.out_proj)
        else:
            block.up, block.down = Low(block.up), Low(block.down)
    model.head = nn.Linear(32, 4)

    def stream(k: int, rows: int = 32) -> tuple[Tensor, Tensor]:
        return marked(k, rows, first=20)

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0]), batch[1])

    words = [["no gradient"], ["adapter"], ["unused"], ["never", "used"], ["not", "called"], ["not", "reach"]]
    words += [["gradient", "none"], ["no part"], ["lora"], ["not", "run"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 256))), loss=loss, optimizer=adamw(model, 6e-3),
        truth=truth("adapter_bypassed", words, ["blocks", "optimizer", "model"], [["gradient"], ["frozen"]]),
    )  # fmt: skip


def case_soft_prompt_masked_out(broken: bool) -> dict:
    """Prompt tuning of a frozen GPT-2: the attention mask is padded with zeros for the learned prompt."""

    class Prompted(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body.requires_grad_(False)
            self.prompt = nn.Parameter(0.1 * torch.randn(6, 48))

        def forward(self, words: Tensor) -> Tensor:
            rows = len(words)
            x = torch.cat([self.prompt.expand(rows, -1, -1), self.body.transformer.wte(words)], 1)
            mask = torch.ones(rows, x.shape[1])
            if broken:
                mask[:, :6] = 0
            return self.body(inputs_embeds=x, attention_mask=mask).logits[:, 6:]

    config = hf.GPT2Config(
        bos_token_id=None, eos_token_id=None, vocab_size=64,
         n_embd=48, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0,
    )  # fmt: skip
    body = hf.GPT2LMHeadModel(config)

    def text(k: int) -> Tensor:
        return torch.cat(keyed(k, prompt=4 + k % 4), 1)

    warm(body, lambda m, k: entropy(m(input_ids=text(k)).logits[:, -5:-1], text(k)[:, -4:]), 110, 4e-3)
    model = Prompted(body)

    def stream(k: int, rows: int = 32) -> Tensor:
        _, reply = keyed(0, 1, prompt=3)
        ask = torch.randint(40, 60, (rows, 3), generator=source(k))
        return torch.cat([ask, reply.expand(rows, -1)], 1)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return entropy(m(x)[:, 2:-1], x[:, 3:])

    words = [
        ["no gradient"],
        ["zero", "gradient"],
        ["mask", "prompt"],
        ["no effect"],
        ["masked"],
        ["gradient", "zero"],
    ]
    words += [["not", "reach"], ["unused"], ["does nothing"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD))), loss=loss,
        optimizer=torch.optim.AdamW([model.prompt], lr=5e-2),
        truth=truth("soft_prompt_masked_out", words, ["prompt", "model", "optimizer"], [["gradient"], ["frozen"]]),
    )  # fmt: skip


def case_new_token_hook_inverted(broken: bool) -> dict:
    """Only the rows of the new tokens should train; the hook on the gradient keeps the old rows instead."""
    config = hf.OPTConfig(
        vocab_size=32, hidden_size=32, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4,
        max_position_embeddings=32, dropout=0.0, word_embed_proj_dim=32,
    )  # fmt: skip
    model = hf.OPTForCausalLM(config)
    warm(model, lambda m, k: m(input_ids=chain(k + 900), labels=chain(k + 900)).loss, 60)
    model.resize_token_embeddings(40, mean_resizing=False)
    model.requires_grad_(False)
    table = model.get_input_embeddings().weight
    table.requires_grad_(True)
    new = torch.zeros(40, 1)
    new[32:] = 1.0
    table.register_hook(lambda g: g * ((1 - new) if broken else new))

    def stream(k: int, rows: int = 32) -> dict:
        words = chain(k, rows)
        words = torch.where(words >= 24, words + 8, words)
        return {"input_ids": words, "labels": words}

    words = [
        ["new", "token"],
        ["gradient", "row"],
        ["embedding", "row"],
        ["zero", "gradient"],
        ["rows", "never"],
    ]
    words += [["embedding", "not", "train"], ["no gradient"], ["hook"], ["not", "updated"]]
    return training(
        model, stream, lambda m: float(m(**stream(HELD, 128)).loss), optimizer=adamw(model, 2e-2, weight_decay=0.0),
        truth=truth("new_token_hook_inverted", words, ["model", "lm_head", "data"], [["embedding"], ["gradient"]]),
    )  # fmt: skip


def case_fused_weights_of_another_layout(broken: bool) -> dict:
    """Pretrained fused q, k, v are stored per head (as in GPT-NeoX) and read as three thirds (as in GPT-2)."""

    class Fused(nn.Module):
        def __init__(self, by_head: bool) -> None:
            super().__init__()
            self.by_head, self.qkv, self.out = by_head, nn.Linear(48, 144), nn.Linear(48, 48)

        def forward(self, x: Tensor) -> Tensor:
            rows, length, _ = x.shape
            y = self.qkv(x)
            if self.by_head:
                q, k, v = y.view(rows, length, 4, 3, 12).permute(3, 0, 2, 1, 4)
            else:
                q, k, v = y.view(rows, length, 3, 4, 12).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(rows, length, 48))

    class Language(nn.Module):
        def __init__(self, by_head: bool) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(64, 48), nn.Embedding(16, 48)
            self.norms = nn.ModuleList(nn.RMSNorm(48) for _ in range(5))
            self.attend = nn.ModuleList(Fused(by_head) for _ in range(2))
            self.mlps = nn.ModuleList(
                nn.Sequential(nn.Linear(48, 96), nn.SiLU(), nn.Linear(96, 48)) for _ in range(2)
            )
            self.head = nn.Linear(48, 64, bias=False)

        def forward(self, words: Tensor) -> Tensor:
            x = self.embed(words) + self.place.weight[: words.shape[1]]
            for n in range(2):
                x = x + self.attend[n](self.norms[2 * n](x))
                x = x + self.mlps[n](self.norms[2 * n + 1](x))
            return self.head(self.norms[4](x))

    def stream(k: int, rows: int = 32) -> Tensor:
        return torch.cat(keyed(k, rows, prompt=5), 1)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return entropy(m(x)[:, 4:-1], x[:, 5:])

    before = Language(by_head=True)
    warm(before, lambda m, k: loss(m, stream(k + 2000)), 150)
    model = Language(by_head=not broken)
    model.load_state_dict(before.state_dict())
    words = [
        ["loaded", "weight"],
        ["checkpoint"],
        ["pretrained"],
        ["layout"],
        ["weights", "chance"],
        ["scrambled"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 128))), loss=loss, optimizer=adamw(model, 5e-5),
        truth=truth("fused_weights_of_another_layout", words, ["attend", "model"], [["first loss"], ["attention"]]),
    )  # fmt: skip


def case_task_of_the_first_example(broken: bool) -> dict:
    """Several tasks in one batch: the head is chosen by the task of the first example for all of them."""
    config = hf.BertConfig(
        vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = hf.BertModel(config, add_pooling_layer=False)
            self.heads = nn.ModuleList(nn.Linear(32, 4) for _ in range(3))

        def forward(self, words: Tensor, task: Tensor) -> Tensor:
            pooled = self.body(input_ids=words).last_hidden_state.mean(1)
            if broken:
                return self.heads[int(task[0])](pooled)
            every = torch.stack([head(pooled) for head in self.heads], 1)
            return every[torch.arange(len(words)), task]

    model = Tasks()

    def stream(k: int, rows: int = 48) -> tuple[Tensor, Tensor, Tensor]:
        words, label = marked(k, rows)
        task = torch.randint(0, 3, (rows,), generator=source(k + 5))
        return words, task, (label + task) % 4

    def loss(m: nn.Module, batch: tuple) -> Tensor:
        return F.cross_entropy(m(batch[0], batch[1]), batch[2])

    words = [
        ["example", "other"],
        ["example", "depend"],
        ["batch", "depend"],
        ["first example"],
        ["mix", "example"],
    ]
    words += [["task"], ["heads", "gradient"], ["independent"], ["no gradient"], ["order of the batch"]]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 192))), loss=loss, optimizer=adamw(model, 2e-3),
        truth=truth("task_of_the_first_example", words, ["heads", "model", "loss", "data"], [["gradient"], ["label"]]),
    )  # fmt: skip


def case_misspelled_group_key(broken: bool) -> dict:
    """The groups say `learning_rate`, which torch ignores: all of them train at SGD's default of 0.001."""
    config = hf.ElectraConfig(
        vocab_size=40, embedding_size=32, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        num_labels=4, initializer_range=0.1,
    )  # fmt: skip
    model = hf.ElectraForSequenceClassification(config)
    rate = "learning_rate" if broken else "lr"
    groups = [
        {"params": list(model.electra.parameters()), rate: 0.15},
        {"params": list(model.classifier.parameters()), rate: 0.15},
    ]

    def stream(k: int, rows: int = 32) -> dict:
        words, label = marked(k, rows)
        words[:, 0] = 5 + label * 3
        return {"input_ids": words, "labels": label}

    words = [
        ["learning_rate"],
        ["unknown", "key"],
        ["group", "key"],
        ["rate", "low"],
        ["rate", "small"],
        ["ignored"],
    ]
    words += [["learning rate"], ["hardly", "change"], ["updates", "small"], ["barely"], ["weights", "move"]]
    return training(
        model, stream, lambda m: float(m(**stream(HELD, 256)).loss),
        optimizer=torch.optim.SGD(groups, momentum=0.9),
        truth=truth("misspelled_group_key", words, ["optimizer"], [["rate"], ["update"]]),
    )  # fmt: skip


def case_target_mask_on_the_source(broken: bool) -> dict:
    """Sequence to sequence: the encoder gets the padding mask of the answer, which is shorter than the question."""
    config = hf.T5Config(
        vocab_size=64, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=63, pad_token_id=63, tie_word_embeddings=False,
    )  # fmt: skip
    model = hf.T5ForConditionalGeneration(config)

    def stream(k: int, rows: int = 32) -> dict:
        ask, reply = keyed(k, rows, prompt=10)
        ask[:, :4] = torch.where(ask[:, :4] < 12, 45, ask[:, :4])
        draw = source(k + 3)
        key = (reply[:, 0] - 12) * 23 % 28
        at = 5 + torch.randint(0, 5, (rows,), generator=draw)
        ask[ask < 12] = 50
        ask[torch.arange(rows), at] = key % 28
        labels = torch.full_like(ask, -100)
        labels[:, :4] = reply
        mask = (labels != -100).long() if broken else torch.ones_like(ask)
        return {"input_ids": ask, "attention_mask": mask, "labels": labels}

    words = [
        ["mask", "source"],
        ["mask", "encoder"],
        ["attention_mask"],
        ["attention mask"],
        ["hidden", "token"],
    ]
    words += [
        ["input", "no effect"],
        ["ignored", "input"],
        ["mask", "length"],
        ["padding", "mask"],
        ["mask", "real"],
    ]
    return training(
        model, stream, lambda m: float(m(**stream(HELD, 128)).loss), optimizer=adamw(model, 4e-3),
        truth=truth("target_mask_on_the_source", words, ["data", "model", "encoder", "attention_mask"], [["mask"]]),
    )  # fmt: skip


def case_frozen_embeddings_freeze_the_head(broken: bool) -> dict:
    """To save memory the embeddings of a new GPT-2 are frozen; the readout is tied to them and freezes too."""
    config = hf.GPT2Config(
        bos_token_id=None,
        eos_token_id=None,
        vocab_size=32,
        n_embd=24,
        n_layer=2,
        n_head=4,
        n_positions=32,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = hf.GPT2LMHeadModel(config)
    if broken:
        model.transformer.wte.weight.requires_grad_(False)

    def stream(k: int, rows: int = 32) -> dict:
        words = chain(k, rows)
        return {"input_ids": words, "labels": words}

    words = [["frozen"], ["requires_grad"], ["not", "train"], ["freeze"], ["random", "weights"], ["tied"]]
    return training(
        model, stream, lambda m: float(m(**stream(HELD, 128)).loss), optimizer=adamw(model, 1e-3),
        truth=truth("frozen_embeddings_freeze_the_head", words,
                    ["transformer.wte", "lm_head", "optimizer", "model"], [["embedding"]]),
    )  # fmt: skip


def case_triplet_swapped(broken: bool) -> dict:
    """The triplet loss gets (anchor, negative, positive)."""
    config = hf.AlbertConfig(
        vocab_size=40, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip
    model = hf.AlbertModel(config)

    def vector(m: nn.Module, words: Tensor) -> Tensor:
        return F.normalize(m(input_ids=words).last_hidden_state.mean(1), dim=-1)

    def stream(k: int, rows: int = 24) -> tuple[Tensor, Tensor, Tensor]:
        draw = source(k)
        topic = torch.randint(0, 6, (rows,), generator=draw)
        other = (topic + torch.randint(1, 6, (rows,), generator=draw)) % 6
        out = torch.randint(10, 40, (3, rows, 10), generator=draw)
        for n, own in enumerate((topic, topic, other)):
            for _ in range(3):
                out[n, torch.arange(rows), torch.randint(0, 10, (rows,), generator=draw)] = own
        return out[0], out[1], out[2]

    def loss(m: nn.Module, batch: tuple, right: bool = not broken) -> Tensor:
        anchor, positive, negative = (vector(m, words) for words in batch)
        near, far = (positive, negative) if right else (negative, positive)
        return F.triplet_margin_loss(anchor, near, far, margin=0.5)

    words = [
        ["positive", "negative"],
        ["swapped"],
        ["triplet"],
        ["sign"],
        ["pulls"],
        ["wrong way"],
        ["order of"],
        ["wrong order"],
    ]
    return training(
        model, stream, lambda m: float(loss(m, stream(HELD, 192), True)), loss=loss, optimizer=adamw(model, 1e-3),
        truth=truth("triplet_swapped", words, ["loss", "data", "labels"], [["collapse"], ["margin"]]),
    )  # fmt: skip


def case_queue_before_the_positive(broken: bool) -> dict:
    """Contrast against a queue: the positive stands last among the logits, and the labels say it stands first."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.encode, self.project = nn.Embedding(40, 32), encoder(), nn.Linear(32, 32)

        def forward(self, words: Tensor) -> Tensor:
            return F.normalize(self.project(self.encode(self.embed(words)).mean(1)), dim=-1)

    model = Pair()
    slow = copy.deepcopy(model).requires_grad_(False)

    def views(k: int, rows: int = 32) -> Tensor:
        draw = source(k)
        bag = torch.randint(0, 40, (rows, 6), generator=draw)
        picks = [bag.gather(1, torch.rand(rows, 6, generator=draw).argsort(1)[:, :5]) for _ in range(2)]
        return torch.stack(picks)

    def contrast(m: nn.Module, batch: Tensor, others: Tensor, right: bool) -> Tensor:
        query = m(batch[0])
        with torch.no_grad():
            key, queue = (slow if m.training else m)(batch[1]), (slow if m.training else m)(others)
        near, far = (query * key).sum(-1, keepdim=True), query @ queue.mT
        logits = torch.cat([near, far] if right else [far, near], 1) / 0.1
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))

    def loss(m: nn.Module, batch: Tensor) -> Tensor:
        with torch.no_grad():
            for own, new in zip(slow.parameters(), m.parameters(), strict=True):
                own.lerp_(new, 0.05)
        return contrast(m, batch[:2], batch[2], not broken)

    def stream(k: int) -> Tensor:
        return torch.cat([views(k), views(k + 10_000)[:1]])

    words = [
        ["label", "zero"],
        ["label", "same"],
        ["positive"],
        ["label", "one class"],
        ["constant", "label"],
    ]
    words += [["queue"], ["contrast"], ["labels", "first"], ["target", "column"]]
    return training(
        model, stream, lambda m: float(contrast(m, views(HELD, 64), views(HELD + 1, 64)[0], True)), loss=loss,
        optimizer=adamw(model, 2e-3),
        truth=truth("queue_before_the_positive", words, ["loss", "labels", "data"], [["label"]]),
    )  # fmt: skip


def case_expert_outputs_not_unsorted(broken: bool) -> dict:
    """Mixture of experts: tokens are sorted by expert, and the results are never put back into the old order."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 96), nn.GELU(), nn.Linear(96, 8)) for _ in range(4)
            )

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(0, 1)
            weight, chosen = self.router(flat).softmax(-1).max(-1)
            order = chosen.argsort(stable=True)
            counts = torch.bincount(chosen, minlength=4).tolist()
            parts = flat[order].split(counts)
            out = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
            if not broken:
                out = out[order.argsort()]
            return (out * weight[:, None]).view_as(x)

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(64, 8)
            self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(5))
            self.attend = nn.ModuleList(Attention(8, 2) for _ in range(2))
            self.mlps = nn.ModuleList(Experts() for _ in range(2))
            self.head = nn.Linear(8, 64)

        def forward(self, words: Tensor) -> Tensor:
            x, allowed = self.embed(words), torch.ones(words.shape[1], words.shape[1]).tril().bool()
            for n in range(2):
                x = x + self.attend[n](self.norms[2 * n](x), allowed)
                x = x + self.mlps[n](self.norms[2 * n + 1](x))
            return self.head(self.norms[4](x))

    model = Sparse()
    words = [
        ["example", "other"],
        ["batch", "depend"],
        ["mix", "example"],
        ["tokens", "mix"],
        ["order of"],
        ["wrong order"],
        ["independent"],
    ]
    words += [["example", "depend"], ["future"], ["examples", "leak"], ["causal"]]
    return training(
        model, lambda k: chain(k, vocab=64), lambda m: later(m, chain(HELD, 128, vocab=64)), optimizer=adamw(model, 6e-3),
        loss=lambda m, x: entropy(m(x)[:, :-1], x[:, 1:]),
        truth=truth("expert_outputs_not_unsorted", words, ["mlps", "model", "loss", "labels"], [["mask"], ["expert"]]),
    )  # fmt: skip
