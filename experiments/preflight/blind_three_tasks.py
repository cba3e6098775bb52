"""Tasks and networks of `blind_three.py`: data learned within 150 steps, and networks in several styles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = dict[str, Tensor]
Case = dict[str, Any]
Loss = Callable[[nn.Module, Batch], Tensor]
PAD, BOS, EOS, MASK, FIRST = 0, 1, 2, 3, 4
VOCAB = 24
ROWS = 16
HELD_OUT = 977  # seed of the batches no training sees
# Settings of most configs of transformers, and of those in the manner of GPT-2.
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 64, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0}
GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "initializer_range": 0.08,
}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def numbers(seed: int) -> torch.Generator:
    """A stream of random numbers of its own, so that data do not depend on what was drawn before."""
    return torch.Generator().manual_seed(seed)


def split(count: int, **columns: Tensor) -> list[Batch]:
    """Cut columns of examples into `count` batches."""
    cut = {name: column.chunk(count) for name, column in columns.items()}
    return [{name: pieces[i] for name, pieces in cut.items()} for i in range(count)]


# ---------------------------------------------------------------- data


@cache
def chain(vocab: int = VOCAB, seed: int = 7) -> Tensor:
    """A language of pairs: each word has three successors, with probabilities 0.75, 0.2 and 0.05."""
    stream, table = numbers(seed), torch.zeros(vocab, vocab)
    for word in range(vocab):
        table[word, FIRST + torch.randperm(vocab - FIRST, generator=stream)[:3]] = torch.tensor(
            [0.75, 0.2, 0.05]
        )
    return table


def text(rows: int, length: int, seed: int, vocab: int = VOCAB, table_seed: int = 7) -> Tensor:
    """Rows of the language of pairs."""
    stream, table = numbers(seed), chain(vocab, table_seed)
    words = [torch.randint(FIRST, vocab, (rows,), generator=stream)]
    for _ in range(length - 1):
        words.append(torch.multinomial(table[words[-1]], 1, generator=stream)[:, 0])
    return torch.stack(words, dim=1)


def language(
    count: int = 24, seed: int = 0, length: int = 20, vocab: int = VOCAB, table_seed: int = 7
) -> list[Batch]:
    """Batches of text."""
    return split(count, ids=text(count * ROWS, length, seed, vocab, table_seed))


def neighbors(count: int = 24, seed: int = 0, length: int = 16, ahead: int = 1) -> list[Batch]:
    """Tagging: the tag of a word is the class of the word `ahead` places further."""
    ids = torch.randint(FIRST, FIRST + 12, (count * ROWS, length), generator=numbers(seed))
    return split(count, ids=ids, labels=torch.roll(ids, -ahead, dims=1) % 4)


def markers(count: int = 24, seed: int = 0, length: int = 12, padded: bool = False) -> list[Batch]:
    """Sentences of noise with one of four marks somewhere: which one?"""
    stream, rows = numbers(seed), count * ROWS
    ids = torch.randint(FIRST + 4, VOCAB, (rows, length), generator=stream)
    labels = torch.randint(0, 4, (rows,), generator=stream)
    sizes = torch.randint(4, length + 1, (rows,), generator=stream) if padded else torch.full((rows,), length)
    where = 1 + (torch.rand(rows, generator=stream) * (sizes - 1)).long()
    ids[torch.arange(rows), where] = FIRST + labels
    ids[torch.arange(length)[None] >= sizes[:, None]] = PAD
    return split(count, ids=ids, labels=labels)


@cache
def handwriting() -> tuple[Tensor, Tensor]:
    """The 1797 digits of scikit-learn, in a fixed random order, pixels in [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = torch.randperm(1797, generator=numbers(3))
    images = torch.tensor(digits.images, dtype=torch.float32)[order] / 16
    return images[:, None], torch.tensor(digits.target)[order]


def digits(count: int = 24, seed: int = 0, rows: int = 32) -> list[Batch]:
    """Batches of handwritten digits; those of the held-out seed are other images."""
    images, labels = handwriting()
    pool = torch.arange(1400, 1797) if seed == HELD_OUT else torch.arange(1400)
    pick = pool[torch.randint(0, len(pool), (count * rows,), generator=numbers(seed))]
    return split(count, images=images[pick], labels=labels[pick])


def spoken(count: int = 24, seed: int = 0, frames: int = 24, channels: int = 12) -> list[Batch]:
    """Utterances of four to six of eight sounds, each three or four frames long; letters are 1 to 8, padded with 0."""
    stream, sounds = numbers(seed), torch.randn(9, channels, generator=numbers(5))
    rows = count * ROWS
    sound, letters = torch.zeros(rows, frames, channels), torch.zeros(rows, 6, dtype=torch.long)
    sizes = torch.randint(4, 7, (rows,), generator=stream)
    for row in range(rows):
        size, at = int(sizes[row]), 0
        letters[row, :size] = torch.randint(1, 9, (size,), generator=stream)
        for letter, hold in zip(
            letters[row, :size], torch.randint(3, 5, (size,), generator=stream), strict=True
        ):
            sound[row, at : at + int(hold)] = sounds[letter]
            at += int(hold)
    return split(
        count, sound=sound + 0.3 * torch.randn(sound.shape, generator=stream), letters=letters, sizes=sizes
    )


def series(count: int = 24, seed: int = 0, level: float = 3.0) -> list[Batch]:
    """Waves with a level and a size of their own: 32 known values, 8 to forecast."""
    stream, rows = numbers(seed), count * 32
    time, draw = torch.arange(40.0), torch.rand(rows, 4, generator=stream)
    wave = torch.sin(6.283 * (time * (0.05 + 0.1 * draw[:, :1]) + draw[:, 1:2]))
    values = level * (2 * draw[:, 2:3] - 1) + (0.5 + draw[:, 3:4]) * wave
    values = values + 0.05 * torch.randn(values.shape, generator=stream)
    return split(count, past=values[:, :32], future=values[:, 32:])


def topics(count: int = 24, seed: int = 0, rows: int = 16) -> list[Batch]:
    """Two short texts on one topic per row; no topic twice in a batch."""
    stream, words = numbers(seed), torch.randint(FIRST, 60, (32, 4), generator=numbers(9))
    topic = torch.stack([torch.randperm(32, generator=stream)[:rows] for _ in range(count)])
    draws = [torch.randint(0, 4, (count, rows, 6), generator=stream) for _ in range(2)]
    one, two = (words[topic[..., None].expand(-1, -1, 6), draw] for draw in draws)
    return [{"one": one[i], "two": two[i], "topic": topic[i]} for i in range(count)]


def phrases(count: int = 24, seed: int = 0, length: int = 7) -> list[Batch]:
    """Word by word translation; sources of four to seven words, padded; targets begin with BOS, end with EOS."""
    stream, rows = numbers(seed), count * ROWS
    lexicon = FIRST + torch.randperm(12, generator=numbers(4))
    source = torch.randint(FIRST, FIRST + 12, (rows, length), generator=stream)
    sizes = torch.randint(4, length + 1, (rows, 1), generator=stream)
    time = torch.arange(length + 2)[None]
    target = torch.full((rows, length + 2), BOS)
    target[:, 1:-1] = lexicon[source - FIRST]
    target[time == sizes + 1] = EOS
    target[time > sizes + 1] = PAD
    source[time[:, :length] >= sizes] = PAD
    return split(count, source=source, target=target)


def records(count: int = 24, seed: int = 0) -> list[Batch]:
    """Tables: four columns of twelve categories, each with an effect of its own, and a number to predict."""
    effects = torch.randn(4, 12, generator=numbers(6)) / 2
    rows = torch.randint(0, 12, (count * 32, 4), generator=numbers(seed))
    return split(count, columns=rows, value=effects[torch.arange(4), rows].sum(dim=1))


# ---------------------------------------------------------------- networks


class Attention(nn.Module):
    """Fused queries, keys and values, heads split by hand."""

    def __init__(self, d: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        rows, length, d = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(rows, length, d))


class Block(nn.Module):
    """Attention and perceptron, each on a norm and added to the stream."""

    def __init__(self, d: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d), Attention(d, heads, causal)
        self.norm2 = nn.LayerNorm(d)
        self.mlp: nn.Module = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), hidden)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Decoder in the manner of nanoGPT; with `causal=False` an encoder of the same make."""

    def __init__(
        self,
        vocab: int = VOCAB,
        d: int = 32,
        layers: int = 2,
        heads: int = 2,
        out: int = 0,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(64, d)
        self.blocks = nn.ModuleList(Block(d, heads, causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, out or vocab, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02 if "out" in name else 0.08)

    def states(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        """What the readout reads."""
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x, hidden)
        return self.norm(x)

    def forward(self, ids: Tensor, hidden: Tensor | None = None) -> Tensor:
        return self.head(self.states(ids, hidden))


class RMSNorm(nn.Module):
    """Root mean square norm with a gain."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * self.weight


def rotate(x: Tensor, interleaved: bool = False) -> Tensor:
    """Rotary positions for (rows, heads, time, width), pairs half a width apart or side by side."""
    length, width = x.shape[-2:]
    angle = torch.arange(length)[:, None] / 100 ** (torch.arange(width // 2) / (width // 2))
    cos, sin = angle.cos(), angle.sin()
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class LlamaLayer(nn.Module):
    """Rotary attention by the fused kernel and a gated perceptron."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads, self.interleaved = heads, False
        self.input_norm, self.post_norm = RMSNorm(d), RMSNorm(d)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (
            nn.Linear(*s, bias=False) for s in [(d, 3 * d), (d, 3 * d), (3 * d, d)]
        )

    def attend(self, x: Tensor) -> Tensor:
        """Mix over time."""
        rows, length, d = x.shape
        q, k, v = (
            p(x).view(rows, length, self.heads, -1).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, self.interleaved), rotate(k, self.interleaved)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(rows, length, d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.input_norm(x))
        y = self.post_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Decoder in the manner of Llama, readout apart from the embedding."""

    def __init__(self, vocab: int = VOCAB, d: int = 32, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(LlamaLayer(d, heads) for _ in range(layers))
        self.norm, self.lm_head = RMSNorm(d), nn.Linear(d, vocab, bias=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with learned positions; tags every word, or the sentence by a mean over its words."""

    def __init__(
        self, out: int = 4, pooled: bool = False, vocab: int = VOCAB, d: int = 32, layers: int = 2
    ) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(vocab, d), nn.Parameter(0.3 * torch.randn(32, d))
        layer = nn.TransformerEncoderLayer(d, 2, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.classify, self.pooled = nn.LayerNorm(d), nn.Linear(d, out), pooled
        for weight in self.body.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        pads = ids == PAD
        x = self.body(self.embed(ids) + self.places[: ids.shape[1]], src_key_padding_mask=pads)
        x = self.norm(x)
        if self.pooled:
            x = x.masked_fill(pads[..., None], 0).sum(dim=1) / (~pads).sum(dim=1, keepdim=True)
        return self.classify(x)


class Vit(nn.Module):
    """Patches of 2 x 2 of an 8 x 8 image, a class token, blocks of ours."""

    def __init__(self, d: int = 32, out: int = 10, layers: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, d, 2, stride=2)
        self.cls, self.pos = nn.Parameter(torch.zeros(1, 1, d)), nn.Parameter(0.1 * torch.randn(1, 17, d))
        self.blocks = nn.ModuleList(Block(d, 2, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, out)

    def states(self, images: Tensor) -> Tensor:
        """The class token's state."""
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.norm(x[:, 0])

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.states(images))


class Speech(nn.Module):
    """Frames through a convolution and an encoder to letters, nine classes with blank 0."""

    def __init__(self, channels: int = 12, d: int = 32) -> None:
        super().__init__()
        self.front = nn.Conv1d(channels, d, 3, padding=1)
        self.blocks = nn.ModuleList(Block(d, 2, causal=False) for _ in range(2))
        self.norm, self.letters = nn.LayerNorm(d), nn.Linear(d, 9)

    def forward(self, sound: Tensor) -> Tensor:
        x = F.gelu(self.front(sound.transpose(1, 2))).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.letters(self.norm(x))


class Forecaster(nn.Module):
    """Patches of four values, an encoder, a flat readout; values are taken relative to the window's mean and size."""

    def __init__(self, out: int = 8, d: int = 32) -> None:
        super().__init__()
        self.patch, self.pos = nn.Linear(4, d), nn.Parameter(0.1 * torch.randn(8, d))
        self.blocks = nn.ModuleList(Block(d, 2, causal=False) for _ in range(2))
        self.read = nn.Linear(8 * d, out)

    def normed(self, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The window relative to its own mean and size, and both."""
        mean, size = past.mean(dim=1, keepdim=True), past.std(dim=1, keepdim=True) + 1e-3
        return (past - mean) / size, mean, size

    def raw(self, past: Tensor) -> Tensor:
        """The outputs of the readout."""
        x = self.patch(past.unflatten(1, (8, 4))) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.read(x.flatten(1))

    def forward(self, past: Tensor) -> Tensor:
        values, mean, size = self.normed(past)
        return self.raw(values) * size + mean


class Tower(nn.Module):
    """A text to a vector: embedding, one block, mean, projection."""

    def __init__(self, vocab: int = 60, d: int = 32) -> None:
        super().__init__()
        self.tok, self.block = nn.Embedding(vocab, d), Block(d, 2, causal=False)
        self.project = nn.Linear(d, d)

    def forward(self, ids: Tensor) -> Tensor:
        return self.project(self.block(self.tok(ids)).mean(dim=1))


class Translator(nn.Module):
    """`nn.Transformer` with learned positions, masks as its documentation has them."""

    def __init__(self, d: int = 32, vocab: int = VOCAB) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, d), nn.Embedding(16, d)
        self.net = nn.Transformer(d, 2, 1, 1, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.read = nn.Linear(d, vocab)

    def embed(self, ids: Tensor) -> Tensor:
        """Words and their places."""
        return self.words(ids) + self.places(torch.arange(ids.shape[1]))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        future = nn.Transformer.generate_square_subsequent_mask(target.shape[1]).isinf()
        states = self.net(
            self.embed(source), self.embed(target), tgt_mask=future, src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD, memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        return self.read(states)


class Experts(nn.Module):
    """A perceptron of four experts, the best two of which are added by their weights; told to all, simple and slow."""

    def __init__(self, d: int, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(d, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)) for _ in range(count)
        )

    def weights(self, x: Tensor) -> Tensor:
        """The weight of every expert for every token, zero for those not chosen."""
        scores = self.router(x)
        best, which = scores.topk(2, dim=-1)
        return torch.zeros_like(scores).scatter(-1, which, best.softmax(dim=-1))

    def forward(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (outputs * self.weights(x).unsqueeze(-2)).sum(dim=-1)


class Table(nn.Module):
    """Records: an embedding per category, a body of `nn.TransformerEncoder`, one number."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.Embedding(12, 32) for _ in range(4))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.body, self.read = nn.TransformerEncoder(layer, 1), nn.Linear(32, 1)

    def forward(self, columns: Tensor) -> Tensor:
        x = torch.stack([cell(columns[:, i]) for i, cell in enumerate(self.cells)], dim=1)
        return self.read(self.body(x).mean(dim=1))[:, 0]


class Denoiser(nn.Module):
    """Waves of 32 values and their noise level to the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.level = nn.Linear(4, 32), nn.Linear(1, 32)
        self.pos = nn.Parameter(0.1 * torch.randn(8, 32))
        self.blocks = nn.ModuleList(Block(32, 2, causal=False) for _ in range(2))
        self.read = nn.Linear(32, 4)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        y = self.patch(x.unflatten(1, (8, 4))) + self.pos + self.level(level)[:, None]
        for block in self.blocks:
            y = block(y)
        return self.read(y).flatten(1)


class RelativeBlock(Block):
    """A causal block whose scores get a learned bias by distance, and no other sign of order."""

    def __init__(self, clamped: bool) -> None:
        super().__init__(32, 4)
        self.clamped, self.bias = clamped, nn.Embedding(24, 4)
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.attn = nn.Identity()

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:  # noqa: ARG002
        rows, length, d = x.shape
        y = self.norm1(x)
        q, k, v = (part(y).view(rows, length, 4, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        time = torch.arange(length)
        back = time[None] - time[:, None] if self.clamped else time[:, None] - time[None]
        scores = q @ k.transpose(-2, -1) / 8**0.5 + self.bias(back.clamp(0, 23)).permute(2, 0, 1)
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        x = x + self.o((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(rows, length, d))
        return x + self.mlp(self.norm2(x))


def hugging(kind: str, config: str, **settings: Any) -> nn.Module:
    """A class of transformers from a small config."""
    import transformers

    own = getattr(transformers, config)(**settings)
    return getattr(transformers, kind)(own)


# ---------------------------------------------------------------- losses and training


def next_word(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the next word."""
    logits = model(batch["ids"][:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch["ids"][:, 1:].flatten())


def tags(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of every word's tag."""
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def sentence(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the sentence's class."""
    return F.cross_entropy(model(batch["ids"]), batch["labels"])


def image(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the image's class."""
    return F.cross_entropy(model(batch["images"]), batch["labels"])


def connectionist(model: nn.Module, batch: Batch) -> Tensor:
    """CTC loss per letter, blank 0."""
    scores = model(batch["sound"]).log_softmax(dim=-1).transpose(0, 1)
    lengths = torch.full((scores.shape[1],), scores.shape[0])
    return F.ctc_loss(scores, batch["letters"], lengths, batch["sizes"])


def forecast(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the forecast."""
    return F.mse_loss(model(batch["past"]), batch["future"])


def translation(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of the target, padding ignored."""
    logits = model(batch["source"], batch["target"][:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch["target"][:, 1:].flatten(), ignore_index=PAD)


def nearest(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of finding the partner within the batch, in both directions."""
    one, two = (F.normalize(model(batch[side]), dim=-1) for side in ("one", "two"))
    scores, own = one @ two.T / 0.1, torch.arange(len(one))
    return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2


def preferred(count: int = 24, seed: int = 0) -> list[Batch]:
    """Pairs of sentences, of which the one with the higher mark is preferred."""
    good, bad = markers(count, seed), markers(count, seed + 5000)
    swap = [(a["labels"] > b["labels"])[:, None] for a, b in zip(good, bad, strict=True)]
    return [
        {"chosen": torch.where(s, a["ids"], b["ids"]), "rejected": torch.where(s, b["ids"], a["ids"])}
        for s, a, b in zip(swap, good, bad, strict=True)
    ]


def echoes(count: int = 24, seed: int = 0, length: int = 20, lag: int = 3) -> list[Batch]:
    """Text in which every word is the one three places before, changed by a fixed map."""
    lexicon = FIRST + torch.randperm(VOCAB - FIRST, generator=numbers(8))
    ids = torch.randint(FIRST, VOCAB, (count * ROWS, length), generator=numbers(seed))
    for t in range(lag, length):
        ids[:, t] = lexicon[ids[:, t - lag] - FIRST]
    return split(count, ids=ids)


def number(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the number of a record."""
    return F.mse_loss(model(batch["columns"]), batch["value"])


def fit(
    model: nn.Module,
    data: Callable[..., list[Batch]],
    loss: Loss | None,
    *,
    lr: float = 3e-3,
    judge: Loss | None = None,
    batches: list[Batch] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **more: Any,
) -> Case:
    """A training, and the criterion by which `held_out` judges it on batches that no training sees."""
    held, judge = data(4, seed=HELD_OUT), judge or loss or (lambda net, batch: net(**batch).loss)

    def held_out() -> float:
        model.eval()
        with torch.no_grad():
            found = sum(float(judge(model, batch)) for batch in held) / len(held)
        model.train()
        return found

    if optimizer is None:
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.01)
    case = {
        "model": model,
        "batches": batches or data(24),
        "optimizer": optimizer,
        "held_out": held_out,
        **more,
    }
    return {**case, "loss": loss} if loss else case


def plain(
    loss: Loss, before: Callable[[int], None] | None = None, after: Callable[[int], None] | None = None
) -> Callable[..., Tensor]:
    """A user's own loop, with something between backward and the optimizer's step, and something after it."""

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, k: int) -> Tensor:
        optimizer.zero_grad()
        found = loss(model, batch)
        found.backward()
        if before:
            before(k)
        optimizer.step()
        if after:
            after(k)
        return found.detach()

    return step


def seeded(make: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    """A network with weights that are the same in the twin."""
    torch.manual_seed(seed)
    return make()


def sgd(net: nn.Module, lr: float, momentum: float = 0.0) -> torch.optim.Optimizer:
    """Plain gradient descent over the weights that train."""
    return torch.optim.SGD(
        [weight for weight in net.parameters() if weight.requires_grad], lr=lr, momentum=momentum
    )


@cache
def _trained(kind: str) -> nn.Module:
    makes: dict[str, tuple[Callable[[], nn.Module], Callable[..., list[Batch]], Loss]] = {
        "gpt": (Gpt, language, next_word),
        "tagger": (lambda: Gpt(out=4, causal=False), neighbors, tags),
        "rotary": (lambda: Llama(), lambda count=24, seed=0: echoes(count, seed), next_word),
    }
    make, data, loss = makes[kind]
    case = fit(seeded(make, 11), data, loss)
    train(case, 150)
    return case["model"]


def trained(kind: str) -> nn.Module:
    """A copy of a network that was trained already, as a checkpoint that somebody downloads."""
    return copy.deepcopy(_trained(kind))


def frozen(net: nn.Module) -> nn.Module:
    """The network with all weights frozen."""
    return net.requires_grad_(False)


def foreign(count: int = 24, seed: int = 0) -> list[Batch]:
    """Another language than the one of the checkpoint."""
    return language(count, seed, table_seed=31)


class Lora(nn.Module):
    """A frozen linear layer and a correction of low rank."""

    def __init__(self, base: nn.Linear, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.a = nn.Parameter(torch.randn(8, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)


def with_lora(net: Any, scale: float = 2.0) -> nn.Module:
    """LoRA on the linear layers of a frozen network of ours; the readout trains."""
    frozen(net)
    for block in net.blocks:
        block.attn.qkv, block.attn.out = Lora(block.attn.qkv, scale), Lora(block.attn.out, scale)
        block.mlp[0] = Lora(block.mlp[0], scale)
    net.head.requires_grad_(True)
    return net


def bandit(model: nn.Module, batch: Batch) -> tuple[torch.distributions.Categorical, Tensor, Tensor]:
    """Policy, sampled actions, and a reward of one for the action that the mark asks for."""
    policy = torch.distributions.Categorical(logits=model(batch["ids"]))
    action = policy.sample()
    return policy, action, (action == batch["labels"]).float()


def train(setup: dict[str, Any], steps: int = 150) -> tuple[float, float]:
    """Held-out loss before and after a plain training, by the criterion in `setup["held_out"]`."""
    torch.manual_seed(0)
    model, batches, optimizer = setup["model"], setup["batches"], setup.get("optimizer")
    loss = setup.get("loss") or (lambda net, batch: net(**batch).loss)
    judge: Callable[[], float] = setup["held_out"]
    before = judge()
    for k in range(steps):
        batch = batches[k % len(batches)]
        if "step" in setup:
            setup["step"](model, optimizer, batch, k)
            continue
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    return before, judge()
