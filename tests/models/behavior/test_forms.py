"""One small transformer in many forms: what joins branch and stream, and what holds the blocks, must not matter."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import edgewise

WIDTH, HEADS, TOKENS, WORDS = 24, 3, 13, 31
Join = Callable[[Tensor, Tensor], Tensor]


class Attention(nn.Module):
    def __init__(self, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 40), nn.Linear(40, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.first(self.norm(x))))


class Block(nn.Module):
    def __init__(self, join: Join = torch.add, heads: int = HEADS) -> None:
        super().__init__()
        self.attend, self.think, self.join = Attention(heads), MLP(), join

    def forward(self, x: Tensor) -> Tensor:
        x = self.join(x, self.attend(x))
        return self.join(x, self.think(x))


class Text(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(WORDS, WIDTH), body, nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.words(ids)))


def ids() -> Tensor:
    return torch.randint(WORDS, (2, TOKENS), generator=torch.Generator().manual_seed(3))


class Adding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Tensor) -> Tensor:  # noqa: ARG004
        return x + f

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        return gradient, gradient


def _into(x: Tensor, f: Tensor) -> Tensor:
    y = x.clone()
    y += f
    return y


HALF = nn.Parameter(torch.tensor(0.5))
VECTOR = nn.Parameter(torch.full((WIDTH,), 0.25))
JOINS: dict[
    str, tuple[Join, float, float]
] = {  # form, what multiplies the stream, what multiplies the branch
    "torch.add": (torch.add, 1.0, 1.0),
    "branch first": (lambda x, f: f + x, 1.0, 1.0),
    "other by name": (lambda x, f: torch.add(x, other=f), 1.0, 1.0),
    "alpha": (lambda x, f: torch.add(x, f, alpha=0.5), 1.0, 0.5),
    "minus the negative": (lambda x, f: x - (-f), 1.0, 1.0),
    "subtract": (lambda x, f: torch.subtract(x, f, alpha=-2), 1.0, 2.0),
    "from the right": (lambda x, f: torch.rsub(-f, x), 1.0, 1.0),
    "lerp": (lambda x, f: torch.lerp(x, f, 0.25), 0.75, 0.25),
    "weighted": (lambda x, f: 0.8 * x + 0.6 * f, 0.8, 0.6),
    "divided": (lambda x, f: (x + f) / 2, 0.5, 0.5),
    "gate": (lambda x, f: torch.addcmul(x, HALF, f), 1.0, 0.5),
    "gate with a value": (lambda x, f: torch.addcmul(x, f, HALF, value=2.0), 1.0, 1.0),
    "quotient": (lambda x, f: torch.addcdiv(x, f, HALF), 1.0, 2.0),
    "vector": (lambda x, f: torch.addcmul(x, VECTOR, f), 1.0, 0.25),
    "python sum": (lambda x, f: sum([x, f]), 1.0, 1.0),  # type: ignore[return-value,arg-type]
    "stack": (lambda x, f: torch.stack((x, f)).sum(0), 1.0, 1.0),
    "stack of features": (lambda x, f: torch.stack([x, f], -1).sum(dim=-1), 1.0, 1.0),
    "mean": (lambda x, f: torch.stack([x, f], dim=1).mean(1), 0.5, 0.5),
    "in place": (_into, 1.0, 1.0),
    "clone and add_": (lambda x, f: x.clone().add_(f), 1.0, 1.0),
    "autograd function": (Adding.apply, 1.0, 1.0),
}


@pytest.mark.parametrize("name", JOINS)
def test_every_form_of_a_residual_sum(name: str) -> None:
    join, skip, branch = JOINS[name]
    torch.manual_seed(0)
    model = Text(nn.Sequential(*(Block(join) for _ in range(3))))
    read = edgewise.structure(model, ids())
    assert read.depth == 3
    for attention, mlp in read.blocks:
        assert (attention.kind, attention.heads, attention.sees, attention.norm) == (
            "attention",
            3,
            "causal",
            "pre",
        )
        assert (mlp.kind, mlp.activation, mlp.norm) == ("MLP", "gelu", "pre")
        for each in (attention, mlp):
            assert each.skip == pytest.approx(skip)
            assert each.multiplier is not None
            assert each.multiplier * (each.layer_scale or 1.0) == pytest.approx(branch)
    trace = edgewise.measure(model, ids())
    assert trace.depth == 3 and trace.attention_entropy is not None


class Fused(nn.Module):
    """The last matrix of each branch and the residual sum are one addmm."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.think = Attention(), MLP()
        self.out, self.last = (
            nn.Parameter(torch.randn(WIDTH, WIDTH) / 5),
            nn.Parameter(torch.randn(40, WIDTH) / 6),
        )
        self.attend.out = self.think.last = nn.Identity()  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        for branch, matrix in ((self.attend, self.out), (self.think, self.last)):
            x = torch.addmm(x.flatten(0, 1), branch(x).flatten(0, 1), matrix).view(x.shape)
        return x


def test_a_sum_inside_addmm() -> None:
    torch.manual_seed(0)
    model = Text(nn.Sequential(*(Fused() for _ in range(3))))
    read = edgewise.structure(model, ids())
    assert read.depth == 3 and read.covered
    assert [[b.kind for b in block] for block in read.blocks] == [["attention", "MLP"]] * 3
    assert read.blocks[1][1].activation == "gelu" and read.blocks[1][0].skip == 1.0
    assert edgewise.measure(model, ids()).attention_entropy is not None


class Attributes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.red, self.green, self.blue = Block(), Block(), Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.blue(self.green(self.red(x)))


class Halves(nn.Module):
    """Attention and MLP as attributes of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("low", "middle", "high"):
            setattr(self, f"{name}_mix", Attention())
            setattr(self, f"{name}_think", MLP())

    def forward(self, x: Tensor) -> Tensor:
        for name in ("low", "middle", "high"):
            x = x + getattr(self, f"{name}_mix")(x)
            x = x + getattr(self, f"{name}_think")(x)
        return x


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: Block() for name in ("a", "b", "c")})

    def forward(self, x: Tensor) -> Tensor:
        for block in self.parts.values():
            x = block(x)
        return x


class Stages(nn.Module):
    """Numbers that count stages of two blocks each, not blocks."""

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Block(), Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x))

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(self.Stage() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


class Loop(nn.Module):
    def __init__(self, blocks: int, times: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.order = nn.ModuleList(Block() for _ in range(blocks)), times

    def forward(self, x: Tensor) -> Tensor:
        for index in self.order:
            x = self.layers[index](x)
        return x


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


BODIES: dict[
    str, tuple[Callable[[], nn.Module], int, bool]
] = {  # maker, depth, whether blocks share matrices
    "attributes": (Attributes, 3, False),
    "halves": (Halves, 3, False),
    "dictionary": (Dictionary, 3, False),
    "names": (lambda: nn.Sequential(OrderedDict((n, Block()) for n in ("low", "middle", "high"))), 3, False),
    "stages": (Stages, 4, False),
    "nested lists": (lambda: nn.Sequential(*(nn.Sequential(Block(), Block()) for _ in range(2))), 4, False),
    "one block four times": (lambda: Loop(1, (0, 0, 0, 0)), 4, True),
    "two blocks in turns": (lambda: Loop(2, (0, 1, 0, 1)), 4, True),
    "two blocks twice each": (lambda: Loop(2, (0, 0, 1, 1)), 4, True),
    "checkpoints": (Checkpointed, 3, False),
}


@pytest.mark.parametrize("name", BODIES)
def test_every_form_of_a_stack(name: str) -> None:
    make, depth, shared = BODIES[name]
    torch.manual_seed(0)
    model = Text(make())
    read = edgewise.structure(model, ids())
    assert (read.depth, read.shared) == (depth, shared)
    assert [[b.kind for b in block] for block in read.blocks] == [["attention", "MLP"]] * depth
    assert read.covered and edgewise.describe(model, ids()).depth == depth
    trace = edgewise.measure(model, ids())
    assert trace.depth == depth
    assert trace.attention_entropy is not None and trace.log_gradient is not None


def test_heads_that_alternate_are_stated_by_block_and_not_described() -> None:
    torch.manual_seed(0)
    model = Text(nn.Sequential(*(Block(heads=heads) for heads in (3, 6, 3, 6))))
    read = edgewise.structure(model, ids())
    assert [block[0].heads for block in read.blocks] == [3, 6, 3, 6]
    with pytest.raises(edgewise.BadInput, match="3, 6 heads"):
        edgewise.describe(model, ids())


class Conditioned(nn.Module):
    """Scales, shifts and gates of every branch are made from a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.think, self.modulation = Attention(), MLP(), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        one, two = self.modulation(condition)[:, None].chunk(2, -1)
        x = x + one * self.attend(x)
        return x + two * self.think(x)


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.blocks = nn.Linear(1, WIDTH), nn.ModuleList(Conditioned() for _ in range(3))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.time(time[:, None]))
        return x


def test_a_gate_by_another_input_is_stated_with_its_size() -> None:
    torch.manual_seed(0)
    model, batch = Diffusion(), (torch.randn(2, TOKENS, WIDTH), torch.full((2,), 0.5))
    first = model.blocks[0]
    size = float(first.modulation(model.time(batch[1][:, None]))[0, :WIDTH].pow(2).mean().sqrt())
    attention = edgewise.structure(model, batch).blocks[0][0]
    assert attention.multiplier == 1.0 and attention.layer_scale == pytest.approx(size, rel=1e-4)
    assert "a gate that another input makes multiplies it" in attention.remarks
    assert any("gate" in line for line in edgewise.describe(model, batch).unmodelled)


class OverTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


def test_a_batch_norm_is_a_norm_as_in_training() -> None:
    torch.manual_seed(0)
    model = Text(nn.Sequential(Block(), Block()))
    for block in model.body:  # type: ignore[union-attr,operator]
        block.attend.norm, block.think.norm = OverTokens(), OverTokens()
    read = edgewise.structure(model, ids())
    assert {(b.norm, b.norm_kind) for block in read.blocks for b in block} == {("pre", "batch")}
    with pytest.raises(edgewise.BadInput, match="norms of body are batch"):
        edgewise.describe(model, ids())


class Dropping(Block):
    """A dropout that evaluation mode does not turn off."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attend(x), 0.5, training=True)
        return x + F.dropout(self.think(x), 0.5, training=True)


def test_a_random_forward_is_recognized_by_asking_twice() -> None:
    torch.manual_seed(0)
    model = Text(nn.Sequential(Dropping(), Dropping()))
    with pytest.raises(edgewise.BadInput, match="its forward pass is random also in evaluation mode"):
        edgewise.describe(model, ids())
    absent = dict(edgewise.structure(model, ids()).blocks[0][0].absent)
    assert "random" in absent["kind"]


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        one = two = x
        for block in self.blocks:
            one = one + block.attend(two)
            two = two + block.think(one)
        return (one + two) / 2


class Halves(nn.Module):
    """The same with both streams in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, x], -1)
        for block in self.blocks:
            one, two = x.chunk(2, -1)
            one = one + block.attend(two)
            x = torch.cat([one, two + block.think(one)], -1)
        return x[..., :WIDTH]


@pytest.mark.parametrize("body", [Reversible, Halves])
def test_two_streams_that_feed_each_other_are_one_stack(body: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = Text(body())
    found = edgewise.describe(model, ids())
    assert (found.depth, found.heads, found.norm) == (3, 3, "pre")
    assert any("two streams that feed each other" in line for line in found.unmodelled)
    kinds = [[branch.kind for branch in block] for block in edgewise.structure(model, ids()).blocks]
    assert kinds == [["attention", "MLP"]] * 3
    assert edgewise.measure(model, ids()).attention_entropy is not None


class Turns(MLP):
    """The halves of a gated MLP take turns along the features."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 80)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.norm(x))
        return self.last(F.silu(hidden[..., ::2]) * hidden[..., 1::2])


def test_a_gated_mlp_whose_halves_take_turns() -> None:
    torch.manual_seed(0)
    model = Text(nn.Sequential(Block(), Block()))
    for block in model.body:  # type: ignore[union-attr,operator]
        block.think = Turns()
    mlp = edgewise.structure(model, ids()).blocks[0][1]
    assert (mlp.gated, mlp.activation) == (True, "silu")
