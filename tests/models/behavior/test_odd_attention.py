"""Attention that is not a plain mean of values: what it is, or a note that says what the description leaves out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.models.behavior.queries_and_keys import ENTRIES, _heads_by_letters
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Stack

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
            nn.ModuleList(
                [
                    nn.Linear(2 * WIDTH, WIDTH) if i > 1 else None,
                    Block(Attention()).mix,
                    nn.LayerNorm(WIDTH),
                    nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH)),
                ]
            )
            for i in range(4)
        )

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


def test_a_matrix_that_merges_two_streams_joins_blocks() -> None:
    found = edgewise.describe(Joined(), STREAM)
    assert found.depth == 4 and any("long skips" in line for line in found.unmodelled)


class Broken(Joined):
    """As above, with a function on what the matrix gives."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers[2:]:
            layer[0] = nn.Sequential(layer[0], nn.Tanh())


def test_one_block_of_a_list_that_nothing_joins_is_no_stack() -> None:
    with pytest.raises(edgewise.BadInput, match=r"one of the 4 blocks|not joined by residual sums"):
        edgewise.describe(Broken(), STREAM)


class TokensFirst(nn.Module):
    """The letters of XLNet: token, entry, head, feature."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in self.qkv(x).chunk(3, -1))
        scores = self.scores(q, k) * q.shape[-1] ** -0.5
        return self.out(torch.einsum("bnij,bjnd->bind", scores.softmax(-1), v).flatten(2))

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("ibnd,jbnd->bnij", q.transpose(0, 1), k.transpose(0, 1))


class Dotted(TokensFirst):
    """Three dots for the entries."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("...qhd,...khd->...hqk", q, k)


class OneKeyHead(TokensFirst):
    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bihd,bjd->bhij", q, k[:, :, 0])


class Padded(TokensFirst):
    """Keys behind a long row of zeros, which are the same in every head; as blocks of keys are padded."""

    PADDING = 600

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        keys = F.pad(k, (0, 0, 0, 0, self.PADDING, 0))
        return torch.einsum("bihd,bjhd->bhij", q, keys)[..., self.PADDING :]


@pytest.mark.parametrize(("mix", "key_heads"), [(TokensFirst, 4), (Dotted, 4), (OneKeyHead, 1), (Padded, 4)])
def test_heads_by_the_letters_of_an_einsum(mix: type[nn.Module], key_heads: int) -> None:
    attention = stack_of(model_of(mix)).attentions[0]
    assert (attention.heads, attention.kv_heads, attention.head_width) == (HEADS, key_heads, WIDTH // HEADS)


class Frames(TokensFirst):
    """Frames are folded into the entries, beside an axis of heads."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        folded = (t.unflatten(1, (2, -1)).flatten(0, 1) for t in (q, k))
        return torch.einsum("bihd,bjhd->bhij", *folded)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in self.qkv(x).chunk(3, -1))
        weights = (self.scores(q, k) * q.shape[-1] ** -0.5).softmax(-1)
        mean = torch.einsum("bhij,bjhd->bihd", weights, v.unflatten(1, (2, -1)).flatten(0, 1))
        return self.out(mean.unflatten(0, (len(x), 2)).flatten(1, 2).flatten(2))


def test_frames_that_are_folded_into_the_entries_are_no_heads() -> None:
    structure = edgewise.structure(model_of(Frames), STREAM)
    assert {branch.heads for block in structure.blocks for branch in block if branch.kind == "attention"} == {
        HEADS
    }


class TalkingHeads(Attention):
    """Scores of the heads mixed before the softmax [Shazeer 2020]."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(HEADS, HEADS))

    def weights(self, scores: Tensor) -> Tensor:
        return torch.einsum("bhij,hg->bgij", scores, self.mix).softmax(-1)


def test_scores_mixed_over_heads_are_refused_for_that_reason() -> None:
    with pytest.raises(edgewise.BadInput, match="does not act on a product of queries and keys alone"):
        edgewise.describe(model_of(TalkingHeads), STREAM)


class OthersOnly(Attention):
    """A mask on the diagonal [Lee 2021]."""

    def weights(self, scores: Tensor) -> Tensor:
        diagonal = torch.eye(scores.shape[-1], dtype=torch.bool)
        return scores.masked_fill(diagonal, -torch.finfo(scores.dtype).max).softmax(-1)


class OthersBefore(Attention):
    """Causal, the token itself left out; the first sees itself alone."""

    def weights(self, scores: Tensor) -> Tensor:
        before = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
        before[0, 0] = True
        return scores.masked_fill(~before, -torch.finfo(scores.dtype).max).softmax(-1)


def test_a_token_that_does_not_see_itself() -> None:
    assert stack_of(model_of(OthersOnly)).sees == ("all but itself",) * 3
    with pytest.raises(edgewise.BadInput, match="sees all but itself, which the theory does not cover"):
        edgewise.describe(model_of(OthersOnly), STREAM)
    with pytest.raises(edgewise.BadInput):  # whatever it is called, it is not plain causal attention
        edgewise.describe(model_of(OthersBefore), STREAM)


class FromOne(nn.Module):
    """A gain that is kept as its distance from one, and starts at zero."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside, self.gain = inside, nn.Parameter(-torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) * (1 + self.gain)


def test_branches_closed_by_a_factor_that_is_no_parameter_are_read() -> None:
    model = model_of(Attention)
    for block in model:
        block.mix, block.feed = FromOne(block.mix), FromOne(block.feed)  # type: ignore[arg-type, assignment]
    stack = stack_of(model)
    assert all(branch.silent for branch in stack.branches)
    assert (stack.norm, stack.causal, stack.activation, stack.attentions[0].heads) == (
        "pre",
        False,
        "gelu",
        HEADS,
    )
    described = edgewise.describe(model, STREAM)
    assert (described.attention_branch, described.mlp_branch) == (0.0, 0.0)


class Undifferentiable(Attention):
    """A kernel that runs without gradients only, as flex attention does on some devices."""

    def weights(self, scores: Tensor) -> Tensor:
        if scores.requires_grad:
            raise NotImplementedError("no backward pass on this device")
        return scores.softmax(-1)


def test_a_kernel_without_a_backward_pass_is_read_and_measured() -> None:
    model = model_of(Undifferentiable)
    assert stack_of(model).sees == ("all",) * 3
    with torch.no_grad():
        assert edgewise.describe(model, STREAM).unmodelled == ()
    trace = edgewise.measure(model, STREAM)
    assert trace.depth == 3 and "gradients not measured" in trace.source


def test_a_stream_that_starts_at_zero_is_named() -> None:
    with pytest.raises(edgewise.BadInput, match="starts at zero"):
        edgewise.describe(model_of(Attention), torch.zeros_like(STREAM))


@pytest.mark.slow
def test_flex_attention_is_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(TokensFirst):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            return self.out(flex_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[union-attr]

    described = edgewise.describe(model_of(Flex), STREAM)
    assert (described.heads, described.kv_heads, described.causal, described.unmodelled) == (
        HEADS,
        HEADS,
        False,
        (),
    )


class EmptyUpdate(Block):
    """A sum with nothing in the place of a second update."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0 + self.mix(self.one(x))
        return x + 0.0 + self.feed(self.two(x))


def test_adding_nothing_does_not_cut_the_stream() -> None:
    torch.manual_seed(0)
    stack = stack_of(nn.Sequential(*(EmptyUpdate(Attention()) for _ in range(3))).eval())
    assert (stack.depth, stack.norm, stack.not_read) == (3, "pre", ())


@pytest.mark.parametrize(("width", "heads"), [(16, 2), (40, None), (2 * 9 * 8, 18)])
def test_windows_beside_heads_are_not_heads(width: int, heads: int | None) -> None:
    """Of two letters beside the tokens, heads are the one that fills the stream; neither is certain if none does."""
    queries = torch.randn(ENTRIES, 2, 9, 4, 8)
    site: Any = SimpleNamespace(traits=SimpleNamespace(heads=None, kv_heads=None, head_width=None))
    _heads_by_letters(site, "bhwid,bhwjd->bhwij", queries, queries, width)
    assert site.traits.heads == heads and site.traits.head_width == 8
