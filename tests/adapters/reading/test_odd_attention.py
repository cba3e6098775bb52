"""Attention that is not a plain mean of values: what it is, or a note that says what the description leaves out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.adapters.reading.read import read
from edgewise.adapters.reading.record import Stack

WIDTH, HEADS = 32, 4
STREAM = torch.randn(2, 20, WIDTH, generator=torch.Generator().manual_seed(0))


class Attention(nn.Module):
    """Softmax attention in steps of its own, so that each of them can be another."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        weights = self.weights(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5)
        return self.out(self.after(x, weights @ v, v).transpose(1, 2).flatten(2))

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def after(self, x: Tensor, mean: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
        return mean


class Sink(Attention):
    """A column that takes weight and gives nothing: the same for every query, so that equal tokens stay equal."""

    def weights(self, scores: Tensor) -> Tensor:
        return torch.cat([scores, torch.zeros_like(scores[..., :1])], -1).softmax(-1)[..., :-1]


class Reattention(Attention):
    """Weights of the heads mixed and normed [Zhou 2021]."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Parameter(torch.randn(HEADS, HEADS)), nn.LayerNorm(HEADS)

    def weights(self, scores: Tensor) -> Tensor:
        mixed = torch.einsum("bhij,hg->bgij", scores.softmax(-1), self.mix)
        return self.norm(mixed.movedim(1, -1)).movedim(-1, 1)


class Gate(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, HEADS)

    def after(self, x: Tensor, mean: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
        return mean * self.gate(x).sigmoid().transpose(1, 2).unsqueeze(-1)


class Folded(nn.Module):
    """Entries and heads in one axis, multiplied by an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1) for t in self.qkv(x).chunk(3, -1))
        q, k, v = parts
        weights = (torch.einsum("bid,bjd->bij", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        mean = torch.einsum("bij,bjd->bid", weights, v).unflatten(0, (x.shape[0], HEADS))
        return self.out(mean.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.one, self.two, self.mix = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), mix
        self.feed = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.one(x))
        return x + self.feed(self.two(x))


def model_of(mix: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(mix()) for _ in range(3))).eval()


def stack_of(model: nn.Module) -> Stack:
    stack = read(model, STREAM).default
    assert stack is not None
    return stack


@pytest.mark.parametrize("mix", [Attention, Folded])
def test_plain_attention_has_no_note(mix: type[nn.Module]) -> None:
    described = edgewise.describe(model_of(mix), STREAM)
    assert described.unmodelled == ()
    assert (described.heads, described.kv_heads, described.head_width) == (HEADS, HEADS, WIDTH // HEADS)


@pytest.mark.parametrize("mix", [Sink, Reattention])
def test_weights_that_do_not_sum_to_one_are_said(mix: type[nn.Module]) -> None:
    model = model_of(mix)
    assert [branch.rows_sum_to_one for branch in stack_of(model).attentions] == [False] * 3
    assert any("do not sum to one" in line for line in edgewise.describe(model, STREAM).unmodelled)


def test_a_gate_inside_attention_is_said() -> None:
    model = model_of(Gate)
    assert [branch.rows_sum_to_one for branch in stack_of(model).attentions] == [True] * 3
    assert any("a gate or another function" in line for line in edgewise.describe(model, STREAM).unmodelled)


class Pointwise(nn.Module):
    """An MLP written as convolutions of width one over (entries, features, tokens)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(WIDTH, 48, 1), nn.Conv1d(48, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x.transpose(1, 2)))).transpose(1, 2)


def test_the_hidden_width_of_convolutions_is_that_of_their_channels() -> None:
    model = model_of(Attention)
    for block in model:
        block.feed = Pointwise()  # type: ignore[assignment]
    assert edgewise.describe(model, STREAM).mlp_width == 48


class Joined(nn.Module):
    """The second half of the blocks starts from a matrix of the stream and of an earlier one [Bao 2023]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.Linear(2 * WIDTH, WIDTH) if i > 1 else None, Block(Attention()).mix, nn.LayerNorm(WIDTH),
                           nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))])
            for i in range(4)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        earlier: list[Tensor] = []
        for i, (join, mix, norm, feed) in enumerate(self.layers):
            if i < 2:
                earlier.append(x)
            else:
                x = join(torch.cat([earlier.pop(), x], -1))
            x = x + mix(norm(x))
            x = x + feed(x)
        return x


def test_one_block_of_a_list_that_nothing_joins_is_no_stack() -> None:
    with pytest.raises(edgewise.BadInput, match=r"one of the 4 blocks|not joined by residual sums"):
        edgewise.describe(Joined(), STREAM)
