"""A stream is read whole: blocks in several lists, joined by a matrix, or on other tokens; else that is said."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from tests.models.behavior.strangers import HEADS, WIDTH, Block, Mix, Think, Words, heads


def block() -> Block:
    return Block(Mix(), Think())


class Stages(Words):
    """Two lists, of two blocks and of one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Sequential(block(), block()), nn.Sequential(block())

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.layer2(self.layer1(self.start(ids))))


class Recurrent(Words):
    """A prelude, a core that is run three times on the stream and the input, and a coda."""

    def __init__(self) -> None:
        super().__init__()
        self.prelude, self.core, self.coda = block(), block(), block()
        self.join = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        start = self.prelude(self.start(ids))
        x = torch.zeros_like(start)
        for _ in range(3):
            x = self.core(self.join(torch.cat([x, start], -1)))
        return self.out(self.coda(x))


class Hourglass(Words):
    """One block, two on half the tokens, and one on the sum with what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.valley, self.last = block(), nn.ModuleList([block(), block()]), block()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(self.start(ids))
        y = F.pad(x, (0, 0, 1, -1)).unflatten(1, (-1, 2)).mean(2)
        for each in self.valley:
            y = each(y)
        return self.out(self.last(y[:, :, None].expand(-1, -1, 2, -1).flatten(1, 2) + x))


@pytest.mark.parametrize(("kind", "depth"), [(Stages, 3), (Recurrent, 5), (Hourglass, 4)])
def test_every_block_of_the_stream_is_counted(kind: type[Words], depth: int) -> None:
    torch.manual_seed(0)
    model, ids = kind(), torch.randint(64, (2, 16))
    assert edgewise.structure(model, ids).depth == depth
    trace = edgewise.measure(model, ids)
    seen = torch.as_tensor(trace.attention_entropy)[0].isfinite().sum(-1)
    assert trace.depth == depth and seen[seen > 0].tolist() == [HEADS] * depth


class LastQuery(Words):
    """The last block asks for the first token only, and adds that to all."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        *first, last = self.stuff
        for each in first:
            x = each(x)
        x = x + last.mix(last.norms[0](x))[:, :1]
        return self.out(x + last.think(last.norms[1](x))[:, :1])


def test_a_part_of_the_blocks_is_not_measured_as_the_whole() -> None:
    torch.manual_seed(0)
    model, ids = LastQuery(*(block() for _ in range(3))), torch.randint(64, (2, 16))
    found = edgewise.structure(model, ids)
    assert found.depth is None and dict(found.absent)["depth"].endswith("not the last of them")
    with pytest.raises(edgewise.BadInput, match=r"as a whole.*2 of the 3 blocks"):
        edgewise.measure(model, ids)
    assert edgewise.measure(model, ids, stack="stuff").depth == 2


class Ranks(nn.Module):
    """Half of the heads on each of two ranks, whose parts are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH // 2) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(WIDTH // 2, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        one, other = (out(self.attend(qkv(x))) for qkv, out in zip(self.qkv, self.out, strict=True))
        return one + other  # type: ignore[no-any-return]

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS // 2, -1)).transpose(1, 2) for part in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class OffByOne(Mix):
    """Exponentials over their sum and one."""

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (heads(part) for part in self.a(x).chunk(3, -1))
        later = torch.ones(x.shape[1], x.shape[1]).triu(1) > 0
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        top = scores.amax(-1, keepdim=True).clamp(min=0).detach()
        weights = (scores - top).exp()
        weights = weights / (weights.sum(-1, keepdim=True) + (-top).exp())
        return self.z((weights @ v).transpose(1, 2).flatten(2))


class Dropped(Mix):
    """Turned queries and keys are multiplied, and times zero."""

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (heads(part) for part in self.a(x).chunk(3, -1))
        turn = torch.arange(x.shape[1])[:, None].float().cos()
        scores = q @ k.mT / q.shape[-1] ** 0.5 + 0.0 * ((q * turn) @ (k * turn).mT)
        return self.z((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Shifted(Mix):
    """Queries, keys and values of the token and the one before it."""

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
        return super().forward((x + F.pad(x, (0, 0, 1, -1))) / 2, allowed)


@pytest.mark.parametrize("mix", [Ranks, OffByOne, Dropped, Shifted])
def test_attention_is_what_the_softmax_acts_on(mix: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, ids = Words(*(Block(mix(), Think()) for _ in range(3))), torch.randint(64, (2, 16))
    for attention, _ in edgewise.structure(model, ids).blocks:
        assert (attention.kind, attention.heads, attention.positions) == ("attention", HEADS, "none")
    entropy = torch.as_tensor(edgewise.measure(model, ids).attention_entropy)[0]
    assert (entropy.isfinite().sum(-1) == HEADS).sum() == 3


class OneHead(Mix):
    num_heads = 8

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = self.a(x).chunk(3, -1)
        return self.z((q @ k.mT / WIDTH**0.5).softmax(-1) @ v)


def test_behavior_decides_how_many_heads_there_are() -> None:
    model, ids = Words(*(Block(OneHead(), Think()) for _ in range(3))), torch.randint(64, (2, 16))
    found = edgewise.models.sites(model, ids)
    assert [b.attention.heads for b in found.blocks] == [1] * 3


class TokensFirst(Words):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.shape[0] == x.shape[0]
        x = x.transpose(0, 1)
        for each in self.stuff:
            x = each(x)
        return self.out(x.transpose(0, 1))


def test_tokens_on_the_first_axis_where_the_model_takes_no_other() -> None:
    model = TokensFirst(*(block() for _ in range(3)))
    found = edgewise.structure(model, (torch.randn(16, 2, WIDTH), torch.ones(16, 16, 1)))
    assert found.depth == 3 and {branches[0].heads for branches in found.blocks} == {HEADS}


class HandedOn(nn.Module):
    """The scores of a block are added to those of the next, and batch norms stand on the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms, self.think = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(2)), Think()

    def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (heads(make(x)) for make in (self.query, self.key, self.value))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        scores = scores if before is None else scores + before
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        x = self.norms[0](x.mT).mT
        return self.norms[1]((x + self.think(x)).mT).mT, scores


class Variables(nn.Module):
    """Every variable of a series is a sequence of patches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.layers = nn.Linear(8, WIDTH), nn.ModuleList(HandedOn() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        stream, scores = self.patch(x.unfold(-1, 8, 4)).flatten(0, 1), None
        for layer in self.layers:
            stream, scores = layer(stream, scores)
        return stream.unflatten(0, x.shape[:2])  # type: ignore[no-any-return]


def test_scores_that_are_handed_on_are_no_stream_and_variables_no_tokens_of_each_other() -> None:
    torch.manual_seed(0)
    model, series = Variables(), torch.randn(2, 3, 64)
    found = edgewise.structure(model, series)
    assert found.depth == 3 and found.width == WIDTH
    assert {(a.kind, a.heads, a.sees, a.norm) for a, _ in found.blocks} == {("attention", 4, "full", "post")}
    assert {block.norm for block in edgewise.models.sites(model, series).stacks} == {"post"}


class General(nn.Module):
    """Heads have axes of their own in the matrices, which tensordot multiplies by."""

    def __init__(self) -> None:
        super().__init__()
        own = (WIDTH, HEADS, WIDTH // HEADS)
        self.made = nn.ParameterList(torch.randn(own) * WIDTH**-0.5 for _ in range(3))
        self.out = nn.Parameter(torch.randn(*own[1:], WIDTH) * WIDTH**-0.5)

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (torch.tensordot(x, m, ([2], [0])).transpose(1, 2) for m in self.made)
        mixed = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return torch.tensordot(mixed.transpose(1, 2), self.out, dims=2)


def test_matrices_with_axes_for_heads_have_roles_and_a_plan() -> None:
    torch.manual_seed(0)
    model, ids = Words(*(Block(General(), Think()) for _ in range(3))), torch.randint(64, (2, 16))
    attention = edgewise.models.sites(model, ids).blocks[0].attention
    assert attention.query.parameter == "stuff.0.mix.made.0" and attention.heads == HEADS
    assert (attention.query.fan_in, attention.output.fan_in) == (WIDTH, WIDTH)
    assert edgewise.initialize_(model, ids, generator=0).plan.depth == 3


class ClassApart(Mix):
    """The first token attends to all, the others to each other in two halves, by two softmaxes of the same heads."""

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (heads(part).flatten(0, 1) for part in self.a(x).chunk(3, -1))
        first = (q[:, :1] @ k.mT).softmax(-1) @ v
        q, k, v = (part[:, 1:].unflatten(1, (2, -1)).flatten(0, 1) for part in (q, k, v))
        rest = ((q @ k.mT).softmax(-1) @ v).unflatten(0, (-1, 2)).flatten(1, 2)
        return self.z(torch.cat([first, rest], 1).unflatten(0, (-1, HEADS)).transpose(1, 2).flatten(2))


def test_two_softmaxes_of_the_same_heads_are_not_half_of_them_each() -> None:
    torch.manual_seed(0)
    model, ids = Words(*(Block(ClassApart(), Think()) for _ in range(3))), torch.randint(64, (2, 17))
    assert {attention.heads for attention, _ in edgewise.structure(model, ids).blocks} == {HEADS}
    entropy = edgewise.measure(model, ids).attention_entropy
    assert entropy is None or entropy.shape[-1] == HEADS


TURNS = torch.polar(
    torch.ones(4, WIDTH // HEADS // 2), torch.arange(4.0)[:, None] * torch.tensor([1, 0.3, 0.1, 0.03])
)


class Windows(Mix):
    """Attention among four tokens at a time: as it is, with a bias, or with turned queries and keys."""

    def __init__(self, positions: str) -> None:
        super().__init__()
        self.positions, self.table = positions, nn.Parameter(torch.randn(HEADS, 4, 4))

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (heads(part.unflatten(1, (-1, 4)).flatten(0, 1)) for part in self.a(x).chunk(3, -1))
        if self.positions == "rotary":
            q, k = (
                torch.view_as_real(torch.view_as_complex(t.unflatten(-1, (-1, 2))) * TURNS) for t in (q, k)
            )
            q, k = q.flatten(-2), k.flatten(-2)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + (self.table if self.positions == "bias" else 0.0)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.z(mixed.unflatten(0, (len(x), -1)).flatten(1, 2))


@pytest.mark.parametrize("positions", ["none", "bias", "rotary"])
def test_positions_among_some_of_the_tokens(positions: str) -> None:
    torch.manual_seed(0)
    model, ids = Words(*(Block(Windows(positions), Think()) for _ in range(2))), torch.randint(64, (2, 16))
    found = [attention.positions for attention, _ in edgewise.structure(model, ids).blocks]
    assert found == [positions] * 2
