"""Tasks of the atlas: images, text in bytes and words, copying and regression, each split once into train and test."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.study import tasks

Batch = tuple[Tensor, Tensor]
WORDS = 512  # the most frequent words of the reviews; every other one is the last symbol
COPIED = 32  # symbols of the copying task
LAG = 2  # it asks for the symbol two places back
FEATURES = 8  # of a token of the regression
EXAMPLES = {"train": 8192, "test": 512}  # of the tasks that are drawn


@dataclass(frozen=True)
class Data:
    """Inputs and labels to train and to test; `outputs` is 1 for regression, `vectors` says that tokens are vectors."""

    inputs: int  # vocabulary, or features of a token
    outputs: int
    vectors: bool
    pooled: bool  # one label per sequence
    train: Batch
    test: Batch

    @property
    def tokens(self) -> int:
        return int(self.train[0].shape[1])

    def batches(self, size: int, seed: int) -> Iterator[Batch]:
        """Yield an endless stream of random batches, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        inputs, labels = self.train
        while True:
            chosen = torch.randint(len(inputs), (size,), generator=generator)
            yield inputs[chosen], labels[chosen]

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, or the mean squared error of a regression."""
        if self.outputs == 1:
            return F.mse_loss(outputs.squeeze(-1), labels)
        return F.cross_entropy(outputs.flatten(0, -2), labels.flatten())

    @property
    def constant(self) -> float:
        """Return the test loss of the best answer that does not look at the input."""
        labels = self.test[1].flatten()
        if self.outputs == 1:
            return float(labels.var(correction=0))
        counts = torch.bincount(self.train[1].flatten(), minlength=self.outputs) + 1.0
        return float(-(counts / counts.sum()).log()[labels].mean())


@cache
def data(name: str, tokens: int) -> Data:
    """Return a task with sequences of so many tokens; images have the number of tokens of their patches."""
    return _SOURCES[name](tokens)


def _images(name: str, tokens: int) -> Data:
    task = tasks.task(name)
    train, test = task.train, task.validation
    if name == "digits" and tokens == 64:  # pixels instead of patches of 2x2
        train, test = ((x.reshape(len(x), 64, 1), y) for x, y in (train, test))
    images = Data(int(train[0].shape[2]), task.outputs, True, True, train, test)
    if images.tokens != tokens:
        raise ValueError(f"{name} has {images.tokens} tokens, not {tokens}")
    return replace(images, test=(test[0][:360], test[1][:360]))


def _bytes(tokens: int) -> Data:
    task = tasks.byte_text(tokens)
    return _text(256, task.train, task.validation)


@cache
def _word_ids() -> Tensor:
    text = []
    for row in tasks.package_rows():
        text.extend(re.findall(r"[a-z']+|[.,!?]", row["text"].lower()))
        if len(text) > 400_000:
            break
    common = [word for word, _ in Counter(text).most_common(WORDS - 1)]
    number = {word: k for k, word in enumerate(common)}
    return torch.tensor([number.get(word, WORDS - 1) for word in text])


def _words(tokens: int) -> Data:
    ids = _word_ids()
    windows = ids[: len(ids) // (tokens + 1) * (tokens + 1)].reshape(-1, tokens + 1)
    windows = windows[torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))]
    count = len(windows) * 9 // 10
    parts = [
        (part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in (windows[:count], windows[count:])
    ]
    return _text(WORDS, *parts)


def _text(symbols: int, train: Batch, test: Batch) -> Data:
    count = max(32, 4096 // train[0].shape[1])  # about as many labels to test for every length
    return Data(symbols, symbols, False, False, train, (test[0][:count], test[1][:count]))


def _copying(tokens: int) -> Data:
    """The label of a place is the symbol two places back; the first places ask for the first symbol."""
    generator = torch.Generator().manual_seed(1)
    parts = []
    for count in EXAMPLES.values():
        ids = torch.randint(COPIED, (count, tokens), generator=generator)
        parts.append((ids, torch.cat([ids[:, :1].expand(-1, LAG), ids[:, :-LAG]], 1)))
    return _text(COPIED, *parts)


def _regression(tokens: int) -> Data:
    """The label is a mean over tokens of the product of two random projections, of unit variance."""
    generator = torch.Generator().manual_seed(2)
    first, second = torch.randn(2, FEATURES, generator=generator) / FEATURES**0.5
    parts = []
    for count in EXAMPLES.values():
        x = torch.randn(count, tokens, FEATURES, generator=generator)
        parts.append((x, ((x @ first).tanh() * (x @ second)).sum(1) * (2.0 / tokens) ** 0.5))
    return Data(FEATURES, 1, True, True, *parts)


_SOURCES: dict[str, Any] = {
    "digits": lambda tokens: _images("digits", tokens),
    "fashion": lambda tokens: _images("fashion", tokens),
    "bytes": _bytes,
    "words": _words,
    "copying": _copying,
    "regression": _regression,
}
