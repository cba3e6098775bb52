"""How a model is called with a batch of any kind, and the default batches of models without a config."""

from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.models.inputs import as_call, default_batch, default_batches, replaced, tensors
from tests.models.behavior.test_forms import TOKENS, WIDTH, WORDS, Block, Text, ids


@dataclass
class Record:
    words: Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class Frozen:
    words: Tensor


class Pair(NamedTuple):
    words: Tensor
    other: Tensor


class Whole(Text):
    """Takes its batch as one argument."""

    def __init__(self, read: Any) -> None:
        super().__init__(nn.Sequential(Block(), Block()))
        self.read = read

    def forward(self, batch: Any) -> Tensor:
        return super().forward(self.read(batch))


@pytest.mark.parametrize(
    "read, make",
    [
        (lambda b: b.words, lambda words: Record(words)),
        (lambda b: b.words, lambda words: Frozen(words)),
        (lambda b: b["words"], lambda words: {"words": words}),
        (lambda b: b["words"], lambda words: UserDict(words=words)),
        (lambda b: b.words, lambda words: Pair(words, words.clone())),
        (lambda b: b["a"].words, lambda words: {"a": Record(words)}),
    ],
)
def test_batches_that_a_model_takes_whole(read: Any, make: Any) -> None:
    torch.manual_seed(0)
    model, batch = Whole(read), make(ids())
    before = [t.clone() for t in tensors(batch)]
    assert edgewise.structure(model, batch).depth == 2
    assert edgewise.measure(model, batch).depth == 2
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(batch), strict=True))


def test_what_is_replaced_is_a_copy() -> None:
    for batch in (Record(ids()), UserDict(words=ids()), Pair(ids(), ids()), [{"x": (ids(),)}]):
        twin = replaced(batch, lambda value: value + 1)
        assert type(twin) is type(batch)
        assert all(torch.equal(a + 1, b) for a, b in zip(tensors(batch), tensors(twin), strict=True))
    with pytest.raises(edgewise.BadInput, match="cannot be of type str"):
        as_call("text")


class Masked(Text):
    def forward(self, words: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:  # type: ignore[override]
        assert bool((attention_mask == 1).all()) and torch.equal(
            position_ids[0], torch.arange(words.shape[1])
        )
        return super().forward(words)


class Patches(nn.Module):
    """A linear embedding of patches that the caller has cut."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Linear(48, WIDTH), nn.Sequential(Block(), Block())

    def forward(self, patches: Tensor) -> Tensor:
        batch, number, _ = patches.shape
        return self.body(self.embed(patches)).view(batch, number, WIDTH)


class OwnTable(nn.Module):
    """Ids looked up in a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Parameter(torch.randn(WORDS, WIDTH)), nn.Sequential(Block(), Block())

    def forward(self, words: Tensor) -> Tensor:
        return self.body(self.table[words])


@pytest.mark.parametrize(
    "make",
    [lambda: Masked(nn.Sequential(Block(), Block())), Patches, OwnTable],
    ids=["masked", "patches", "table"],
)
def test_default_batches_fit_the_arguments(make: Any) -> None:
    torch.manual_seed(0)
    model = make()
    assert edgewise.structure(model).depth == 2
    assert edgewise.measure(model).depth == 2


def test_a_default_batch_is_as_long_as_asked() -> None:
    model = Text(nn.Sequential(Block(), Block()))
    batch = default_batch(model, torch.Generator().manual_seed(0), TOKENS)
    assert batch.shape == (1, TOKENS) and len(set(batch[0].tolist())) == TOKENS
    assert next(iter(default_batches(model))).shape == (1, 47)


def test_no_default_batch_says_what_was_tried() -> None:
    class Strange(Text):
        def forward(self, batch: Any) -> Tensor:
            return super().forward(batch.words)

    with pytest.raises(edgewise.BadInput, match=r"It was run on \d+; the first ended with AttributeError"):
        default_batch(Strange(nn.Identity()), torch.Generator())
