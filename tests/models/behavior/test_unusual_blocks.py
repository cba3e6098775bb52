"""Blocks that are more than attention and an MLP: experts, adapters, latents, functions in place of norms."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from tests.models.behavior.strangers import HIDDEN, WIDTH, Block, Mix, Think, Words, heads

SLOPE = 0.5


class Bounded(nn.Module):
    """tanh or erf of a multiple of the stream, in the place of a norm."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function, self.gain = getattr(torch, function), nn.Parameter(torch.linspace(0.5, 2.0, WIDTH))
        self.shift = nn.Parameter(torch.linspace(-1.0, 1.0, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(SLOPE * x) * self.gain + self.shift


@pytest.mark.parametrize("function", ["tanh", "erf"])
def test_a_function_in_place_of_norms_is_named_with_its_slope(function: str) -> None:
    torch.manual_seed(0)
    blocks = [Block(Mix(), Think()) for _ in range(3)]
    for block in blocks:
        block.norms = nn.ModuleList(Bounded(function) for _ in range(4))
    model = Words(*blocks)
    found = edgewise.describe(model)
    assert (found.norm, found.norm_kind) == ("pre", function)
    assert found.norm_slope == pytest.approx(SLOPE, rel=1e-3)


def test_weights_that_are_not_numbers_are_rejected_by_name() -> None:
    model = Words(*(Block(Mix(), Think()) for _ in range(2)))
    with torch.no_grad():
        model.stuff[1].mix.z.weight[0, 0] = math.nan
    with pytest.raises(edgewise.BadInput, match=r"stuff\.1\.mix\.z\.weight"):
        edgewise.structure(model)


class Experts(nn.Module):
    """One of three for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.route, self.each = nn.Linear(WIDTH, 3, bias=False), nn.ModuleList(Think() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.route(x).softmax(-1).max(-1, keepdim=True)
        return sum(weight * (chosen == i) * expert(x) for i, expert in enumerate(self.each))


class Apart(nn.Module):
    """Every head has matrices of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.ModuleList(nn.ModuleList(nn.Linear(WIDTH, 8) for _ in range(3)) for _ in range(4))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for a, b, c in self.one:
            outputs.append((a(x) @ b(x).mT / 8**0.5).softmax(-1) @ c(x))
        return self.last(torch.cat(outputs, -1))


def test_experts_and_heads_with_matrices_of_their_own_have_roles() -> None:
    torch.manual_seed(0)
    block = edgewise.models.sites(Words(*(Block(Apart(), Experts()) for _ in range(3)))).blocks[1]
    own = tuple(f"stuff.1.mix.one.{head}.1.weight" for head in range(4))
    assert block.attention.key.parameters == own and block.attention.heads == 4
    assert block.mlp is not None and block.mlp.input.experts == 3
    assert block.mlp.input.parameters == tuple(f"stuff.1.think.each.{i}.u.weight" for i in range(3))
    assert (block.mlp.output.fan_out, block.mlp.output.fan_in) == (WIDTH, HIDDEN)


class Adapted(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.down, self.up = part, nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        return y + self.up(F.relu(self.down(y)))


def test_an_adapter_behind_a_branch_hides_neither_activation_nor_roles() -> None:
    torch.manual_seed(0)
    model = Words(*(Block(Adapted(Mix()), Adapted(Think())) for _ in range(2)))
    assert edgewise.structure(model).blocks[0][1].activation == "gelu"
    block = edgewise.models.sites(model).blocks[0]
    assert block.attention.output.parameter == "stuff.0.mix.part.z.weight"
    assert block.mlp is not None and block.mlp.output.parameter == "stuff.0.think.part.d.weight"


class Latent(nn.Module):
    """Keys and values from a narrow latent."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.narrow, self.wide = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 12),
            nn.Linear(12, 2 * WIDTH),
        )
        self.norm, self.z = nn.LayerNorm(12), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (heads(part) for part in self.wide(self.norm(self.narrow(x))).chunk(2, -1))
        return self.z(F.scaled_dot_product_attention(heads(self.a(x)), k, v).transpose(1, 2).flatten(2))


def test_keys_from_a_latent_have_a_role_and_the_latent_is_extra() -> None:
    torch.manual_seed(0)
    site = edgewise.models.sites(Words(*(Block(Latent(), Think()) for _ in range(2)))).blocks[0].attention
    assert site.key.parameter == site.value.parameter == "stuff.0.mix.wide.weight"
    assert [matrix.parameter for matrix in site.extra] == ["stuff.0.mix.narrow.weight"]


class Channels(nn.Module):
    """Softmax attention of features to features (cross-covariance)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.z = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(part).mT for part in self.a(x).chunk(3, -1))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        return self.z((scores.softmax(-1) @ v).mT.transpose(1, 2).flatten(2))


def test_a_softmax_over_features_is_no_attention_of_tokens() -> None:
    torch.manual_seed(0)
    model = Words(*(Block(Channels(), Think()) for _ in range(2)))
    assert [branch.kind for branch in edgewise.structure(model).blocks[0]] == ["mixer", "MLP"]
    with pytest.raises(edgewise.BadInput, match="without softmax attention"):
        edgewise.describe(model)


class Holes(nn.Module):
    """Every third earlier token is seen, and nothing tells how far it is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mix()

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        far = torch.arange(n)[:, None] - torch.arange(n)
        return self.inner(x, (far >= 0) & (far % 3 == 0))


def test_no_positions_are_stated_under_a_mask_with_holes() -> None:
    torch.manual_seed(0)
    branch = edgewise.structure(Words(*(Block(Holes(), Think()) for _ in range(2)))).blocks[0][0]
    assert (branch.sees, branch.positions) == ("causal sparse", "none")


class Perceiving(nn.Module):
    """Latents look at the words, then at each other."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.latents = nn.Embedding(61, WIDTH), nn.Parameter(torch.randn(9, WIDTH))
        self.look, self.norm = nn.MultiheadAttention(WIDTH, 4, batch_first=True), nn.LayerNorm(WIDTH)
        self.stuff = nn.ModuleList(Block(Mix(causal=False), Think()) for _ in range(3))
        self.out = nn.Linear(WIDTH, 5)

    def forward(self, ids: Tensor) -> Tensor:
        words, x = self.table(ids), self.latents.expand(len(ids), -1, -1)
        x = x + self.look(self.norm(x), words, words)[0]
        for block in self.stuff:
            x = block(x)
        return self.out(x.mean(1))


def test_learned_latents_are_the_start_of_a_stream() -> None:
    torch.manual_seed(0)
    found = edgewise.structure(Perceiving(), torch.randint(61, (2, 16)))
    assert (found.stack, found.depth, found.tokens) == ("stuff", 3, 9)


class Partly(Words):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.start(ids)
        for block in self.stuff[:3]:
            x = block(x)
        return self.out(x)


def test_blocks_that_did_not_run_are_left_out_with_a_note() -> None:
    torch.manual_seed(0)
    found = edgewise.describe(Partly(*(Block(Mix(), Think()) for _ in range(4))))
    assert found.depth == 3 and any("1 of 4 blocks" in line for line in found.unmodelled)


def test_rows_of_windows_are_measured() -> None:
    """Attention inside windows of four tokens, folded into the entries."""

    class Windows(Mix):
        def forward(self, x: Tensor, allowed: Tensor | None = None) -> Tensor:
            return super().forward(x.unflatten(1, (-1, 4)).flatten(0, 1), allowed).view_as(x)

    torch.manual_seed(0)
    model = Words(*(Block(Windows(causal=False), Think()) for _ in range(2)))
    rows = edgewise.measure(model, torch.randint(61, (2, 16))).attention_entropy
    assert rows is not None
    seen = torch.as_tensor(rows)[torch.isfinite(torch.as_tensor(rows))]
    assert len(seen) == 8 and bool((seen < math.log(4) + 1e-6).all()) and bool((seen > 1.0).all())


class BesideEachOther(nn.Module):
    """A block whose attention and MLP read the stream together, as in GPT-NeoX and PaLM."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.think = nn.LayerNorm(WIDTH), Mix(), Think()

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm(x)
        return x + (self.mix(n) + self.think(n))


def test_one_parallel_block_is_a_stack_of_one_sum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(11, WIDTH), BesideEachOther(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 11)
    )
    described = edgewise.describe(model, torch.randint(0, 11, (2, 9)))
    assert (described.depth, described.parallel, described.norm) == (1, True, "pre")
