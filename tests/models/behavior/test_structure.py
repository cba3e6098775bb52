"""The structure of hand-written models whose answer is known, in and outside the theory."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

import edgewise
from edgewise.errors import BadInput
from edgewise.models.behavior.structure import BranchStructure, Structure
from tests.models.behavior.strangers import WIDTH, Block, Mix, Think, Words


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def flat(structure: Structure) -> list[BranchStructure]:
    return [branch for block in structure.blocks for branch in block]


def refused(model: nn.Module) -> str:
    with pytest.raises(BadInput) as refusal:
        edgewise.describe(model)
    return str(refusal.value)


class Convolution(nn.Module):
    """Over this token and the two before it."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv1d(WIDTH, WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(nn.functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


class Chunked(nn.Module):
    """A block of causal attention within chunks of eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block(Mix(), Think())

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[1])
        allowed = (place[:, None] >= place) & (place[:, None] // 8 == place // 8)
        one, two, _, _ = self.inner.norms
        x = x + self.inner.mix(one(x), allowed)
        return x + self.inner.think(two(x))


class Odd(nn.Module):
    """Norms before both branches and on the second sum."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.think = Mix(causal=False), Think()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        one, two, three = self.norms
        x = x + 0.5 * self.mix(one(x))
        return three(x + self.think(two(x)))


class TwoStreams(nn.Module):
    """The second stream is fed by the first in every block, through a matrix of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Embedding(64, WIDTH), nn.Embedding(64, WIDTH)
        self.chain = nn.ModuleList(
            nn.ModuleDict(
                {"a": Block(Mix(), Think()), "b": Block(Mix(), Think()), "join": nn.Linear(WIDTH, WIDTH)}
            )
            for _ in range(3)
        )

    def forward(self, ids: Tensor) -> Tensor:
        x, y = self.one(ids), self.two(ids)
        for part in self.chain:
            x = part["a"](x)
            y = part["b"](y * torch.sigmoid(part["join"](x)))
        return x + y


def test_a_plain_model_is_covered() -> None:
    found = edgewise.structure(
        Words(*(Block(Mix(window=5 if i else None), Think(), "sandwich") for i in range(2)))
    )
    assert found.covered and not found.outside and not found.absent
    assert (found.stack, found.depth, found.width) == ("stuff", 2, WIDTH)
    (first, mlp), (second, _) = found.blocks
    assert (first.kind, first.heads, first.sees, first.window) == ("attention", 4, "causal", None)
    assert (second.sees, second.window) == ("causal window", 5)
    assert (mlp.kind, mlp.activation, mlp.gated, mlp.norm) == ("MLP", "gelu", False, "sandwich")
    assert {(b.skip, b.multiplier, b.absent) for b in flat(found)} == {(1.0, 1.0, ())}


def test_chunks() -> None:
    model = Words(Chunked(), Chunked(), Block(Mix(), Think()))
    found = edgewise.structure(model)
    assert [block[0].sees for block in found.blocks] == ["causal blocks", "causal blocks", "causal"]
    assert found.outside == ("attention in stuff sees causal blocks, which the theory does not cover.",)
    assert {(b.norm, b.heads) for b in flat(found) if b.kind == "attention"} == {("pre", 4)}
    message = refused(model)
    read = "3 blocks of width 32: attention (4 heads, sees earlier tokens of its own block, norm pre), MLP"
    assert f"What was read: {read}" in message
    assert "edgewise.structure(model)" in message and "edgewise.measure(model)" in message


def test_a_hybrid() -> None:
    found = edgewise.structure(Words(*(Block(Mix() if i == 2 else Convolution(), Think()) for i in range(3))))
    assert [block[0].kind for block in found.blocks] == ["mixer", "mixer", "attention"]
    assert {b.norm for b in flat(found)} == {"pre"} and not any(b.absent for b in flat(found))
    assert found.outside[0].startswith("2 of the 3 blocks of stuff mix tokens without softmax attention")


class Alone(nn.Module):
    """A layer of one branch."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(self.norm(x))


def test_layers_of_one_branch_each_are_no_blocks() -> None:
    """Two of four layers make a block; how deep that is depends on who counts, unless all blocks are alike."""
    found = edgewise.structure(Words(*map(Alone, (Convolution(), Think(), Mix(), Think()))))
    assert [[b.kind for b in block] for block in found.blocks] == [["mixer", "MLP"], ["attention", "MLP"]]
    assert found.depth is None and dict(found.absent)["depth"].startswith("its 4 layers are one branch each")
    assert str(found).startswith("Words, stack stuff: 2 blocks of width 32")
    assert edgewise.structure(Words(*map(Alone, (Mix(), Think(), Mix(), Think())))).depth == 2
    assert edgewise.structure(Words(*map(Alone, (Think(), Mix(), Think(), Mix())))).depth is None


def test_layers_of_one_branch_in_an_order_without_pairs_are_counted_one_by_one() -> None:
    """A sandwich: there is no other count."""
    found = edgewise.structure(Words(*map(Alone, (Mix(), Mix(), Think(), Mix(), Think(), Think()))))
    assert found.depth == 6 and {len(block) for block in found.blocks} == {1}


def test_norms_in_odd_places() -> None:
    found = edgewise.structure(Words(*(Odd() for _ in range(3))))
    assert [[b.norm for b in block] for block in found.blocks] == [["pre", "pre and post"]] * 3
    assert [b.multiplier for b in flat(found)] == [0.5, 1.0] * 3
    assert "where the norms of some branches stand has no name" in found.outside[0]


def test_a_vector_between_stream_and_branch_is_not_given_a_number() -> None:
    found = edgewise.structure(Words(*(Block(Mix(), Think(), "weighed by channel") for _ in range(3))))
    attention, mlp = found.blocks[0]
    assert attention.skip is None and attention.multiplier is None
    reasons = dict(attention.absent)
    assert set(reasons) == {"skip", "multiplier"} and "by a vector or by the input" in reasons["skip"]
    assert (attention.heads, attention.sees, attention.norm) == (4, "causal", "pre")
    assert (mlp.skip, mlp.multiplier) == (1.0, 1.0)
    assert "stuff.0.mix (and 2 others): its sum weighs stream and branch" in found.outside[0]


def test_two_streams_are_named_and_what_is_certain_is_said() -> None:
    model = TwoStreams()
    found = edgewise.structure(model)
    assert not found.covered
    assert found.depth in (3, None)
    assert all(
        b.heads in (4, None) and b.sees in ("causal", None) and b.norm in ("pre", None) for b in flat(found)
    )


def test_gates_on_the_stream_leave_depth_and_attention() -> None:
    found = edgewise.structure(Words(*(Block(Mix(), Think(), "highway") for _ in range(3))))
    assert (found.depth, found.width) == (3, WIDTH)
    assert {(b.kind, b.heads, b.sees, b.norm) for b in flat(found)} == {("attention", 4, "causal", "none")}
    assert all(b.skip is None and b.multiplier is None for b in flat(found))
    assert "weighs stream and branch" in dict(flat(found)[0].absent)["skip"]
    assert "weighs stream and branch" in found.outside[0]


def test_the_whole_sum_of_the_last_block_is_rescaled_too() -> None:
    found = edgewise.structure(Words(*(Block(Mix(), Think(), "rescaled") for _ in range(3))))
    assert [(b.skip, b.multiplier) for b in flat(found)] == [(1.0, 1.0), (0.5, 0.5)] * 3


class Activated(nn.Module):
    """relu(x + mlp(x)), in blocks of their own or in one loop."""

    def __init__(self, inline: bool, end: nn.Module) -> None:
        super().__init__()
        self.first, self.last, self.inline, self.end = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 3), inline, end
        self.blocks = nn.ModuleList(Think() if inline else Ended(Think(), end) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = self.end(x + block(x)) if self.inline else block(x)
        return self.last(x)


class Ended(nn.Module):
    def __init__(self, branch: nn.Module, end: nn.Module) -> None:
        super().__init__()
        self.branch, self.end = branch, end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(x + self.branch(x))


@pytest.mark.parametrize("inline", [False, True])
def test_a_function_on_every_sum_is_on_the_last_one_too(inline: bool) -> None:
    """The last block's skip was stated as 1, and not stated of the others."""
    found = edgewise.structure(Activated(inline, nn.ReLU()), torch.randn(2, 16, 8))
    assert [(b.skip, b.multiplier) for b in flat(found)] == [(None, None)] * 4
    assert {"function of the stream" in dict(b.absent)["skip"] for b in flat(found)} == {True}


def test_a_norm_or_nothing_on_the_last_sum_leaves_its_skip() -> None:
    for end in (nn.LayerNorm(WIDTH), nn.Identity()):
        found = edgewise.structure(Activated(False, end), torch.randn(2, 16, 8))
        assert [(b.skip, b.multiplier) for b in flat(found)] == [(1.0, 1.0)] * 4
    plain = edgewise.structure(Activated(True, nn.Identity()), torch.randn(2, 16, 8))
    assert [b.skip for b in flat(plain)] == [1.0] * 4


def test_parallel_branches_share_a_step() -> None:
    found = edgewise.structure(
        Words(*(Block(Mix(), Think(gated=True), "parallel together") for _ in range(2)))
    )
    assert [[b.step - block[0].step for b in block] for block in found.blocks] == [[0, 0]] * 2
    assert {b.multiplier for b in flat(found)} == {0.5} and found.blocks[0][1].gated


def test_nothing_is_left_behind_in_the_model() -> None:
    model = TwoStreams().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    edgewise.structure(model)
    assert model.training and all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_it_prints_equal_blocks_once_and_survives_json() -> None:
    found = edgewise.structure(Words(*(Block(Mix(turn=True), Think()) for _ in range(3))))
    assert str(found).splitlines() == [
        "Words, stack stuff: 3 blocks of width 32, read on 47 tokens",
        "  blocks 0 to 2",
        "    attention: 4 heads, sees earlier tokens, rotary positions, layer norm pre",
        "    MLP: gelu, layer norm pre",
    ]
    values = json.loads(json.dumps(found.to_dict()))
    assert (
        values["depth"] == 3 and values["blocks"][0][0]["positions"] == "rotary" and values["outside"] == []
    )
    assert values["blocks"][0][0]["absent"] == {}


def test_without_a_stack_it_is_refused() -> None:
    with pytest.raises(BadInput, match="has no stack whose structure can be read"):
        edgewise.structure(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(2, 8))


class Biased(Mix):
    """Causal attention with a random bias of each distance, so strong that most keys have no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(12 * torch.randn(64, 4))

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.a(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        scores = q @ k.mT / q.shape[-1] ** 0.5 + self.table[distance.clamp(min=0)].movedim(-1, 0)
        weights = scores.masked_fill(distance < 0, float("-inf")).softmax(-1)
        return self.z((weights @ v).transpose(1, 2).flatten(2))


def test_keys_that_a_strong_bias_hides_are_not_masked() -> None:
    found = edgewise.structure(Words(*(Block(Biased(), Think()) for _ in range(2))))
    assert [(block[0].kind, block[0].sees, block[0].positions) for block in found.blocks] == [
        ("attention", "causal", "bias")
    ] * 2
    assert found.covered


def test_branches_that_give_nothing_do_not_change_what_is_a_token() -> None:
    """No ids and more tokens than features: only a branch that moves something shows which axis is which."""
    blocks = nn.Sequential(*(Block(Mix(causal=False), Think()) for _ in range(2)))
    for block in blocks:
        for matrix in (block.mix.z, block.think.d):
            nn.init.zeros_(matrix.weight)
            nn.init.zeros_(matrix.bias)
    found = edgewise.structure(nn.Sequential(nn.Linear(6, WIDTH), *blocks), torch.randn(2, 45, 6))
    assert (found.width, found.tokens) == (WIDTH, 45)
    assert all("gives nothing at this initialization" in b.remarks for b in flat(found))


class Exclusive(Mix):
    """What a token's own value adds is taken off, so that equal tokens give nothing."""

    def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:  # noqa: ARG002
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.a(x).chunk(3, -1))
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        own = nn.functional.normalize(v, dim=-1)
        out = out - (out * own).sum(-1, keepdim=True) * own
        return nn.functional.linear(out.transpose(1, 2).flatten(2), self.z.weight)


def test_attention_that_is_no_mean_of_values_is_outside() -> None:
    found = edgewise.structure(Words(*(Block(Exclusive(), Think()) for _ in range(2))))
    assert "equal tokens give nothing in it and different ones do" in found.outside[0]
    assert found.blocks[0][0].kind == "attention" and "gives no mean of values" in found.blocks[0][0].remarks


class Streams(nn.Module):
    """Two streams that a learned matrix mixes before every block (hyper-connections)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mixing = Block(Mix(window=5), Think()), nn.Parameter(torch.eye(2) + 0.3)
        self.read = nn.Parameter(torch.rand(2))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("bnsd,s->bnd", x, self.read)
        return torch.einsum("bnsd,st->bntd", x, self.mixing) + (self.inner(y) - y).unsqueeze(2)


class Hyper(Words):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids).unsqueeze(2).repeat(1, 1, 2, 1)
        for block in self.stuff:
            x = block(x)
        return self.out(x.sum(2))


def test_attention_of_blocks_whose_sums_cannot_be_followed() -> None:
    found = edgewise.structure(Hyper(*(Streams() for _ in range(3))))
    assert found.depth == 3 and not found.covered and len(found.outside) == 1
    assert found.width is None and "axes" in dict(found.absent)["width"], (
        "two streams of 32 are no width of 64"
    )
    assert {(b.kind, b.heads, b.sees, b.window, b.norm) for b in flat(found)} == {
        ("attention", 4, "causal window", 5, None)
    }
