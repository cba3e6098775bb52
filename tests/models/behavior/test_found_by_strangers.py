"""Causes that lists of other people's models found: each in the smallest model, or the smallest call, that shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import edgewise
from edgewise.models.behavior.dependence import open_keys
from edgewise.models.behavior.queries_and_keys import ENTRIES, _beside_windows, _heads_by_letters
from edgewise.models.behavior.token_order import _turned
from edgewise.models.names.model_sites import Projection, Rows
from edgewise.monitor.places import places_of
from edgewise.probe.geometry import rows_of
from tests.models.behavior.strangers import HEADS, WIDTH, Block, Mix, Think, Words
from tests.support import zoo


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_a_mask_of_ten_thousand_hides_keys_under_positive_scores() -> None:
    scores = 0.4 + torch.full((8, 8), -1e4).triu(1)
    keys = open_keys((scores[None, None],), {}, 8, fused=False)
    assert keys is not None and torch.equal(keys, torch.ones(8, 8).tril().bool())


class Twice(nn.Module):
    """x + (x + f(x))"""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.norm, self.inside = nn.LayerNorm(WIDTH), inside

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.inside(self.norm(x)) + x)


def test_a_stream_that_is_added_again_is_doubled() -> None:
    model = Words(nn.Sequential(*(nn.Sequential(Twice(Mix()), Twice(Think())) for _ in range(3))))
    found = edgewise.structure(model)
    assert found.depth == 3
    assert {(b.skip, b.multiplier) for block in found.blocks for b in block} == {(2.0, 1.0)}
    architecture = edgewise.describe(model)
    assert (architecture.attention_skip, architecture.mlp_skip) == (2.0, 2.0)


class TwoStreams(nn.Module):
    """Reversible blocks: y = y + f(z), z = z + g(y)."""

    def __init__(self) -> None:
        super().__init__()
        norms = [nn.LayerNorm(WIDTH) for _ in range(6)]
        parts = [Mix(), Think(), Mix(), Think(), Mix(), Think()]
        self.layers = nn.ModuleList(nn.Sequential(a, b) for a, b in zip(norms, parts, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        y = z = x
        for f, g in zip(self.layers[::2], self.layers[1::2], strict=True):
            y = y + f(z)
            z = z + g(y)
        return y + z


def test_nothing_scales_the_streams_of_reversible_blocks() -> None:
    found = edgewise.structure(Words(TwoStreams()))
    assert {(b.skip, b.multiplier) for block in found.blocks for b in block} == {(1.0, 1.0)}


class FrameByFrame(nn.Module):
    """Blocks over the tokens of each frame, then blocks over one token of each frame, with one more in front."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.first = nn.Linear(8, WIDTH), nn.Parameter(torch.randn(1, WIDTH))
        self.space = nn.Sequential(*(Block(Mix(causal=False), Think()) for _ in range(2)))
        self.time = nn.Sequential(*(Block(Mix(causal=False), Think()) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        entries = len(x)
        x = self.space(self.inward(x).flatten(0, 1))[:, 0].unflatten(0, (entries, -1))
        return self.time(torch.cat([self.first.expand(entries, 1, -1), x], 1))


def test_a_tower_over_frames_is_a_stack_of_its_own() -> None:
    names = edgewise.models.stacks(FrameByFrame(), torch.randn(2, 7, 8, 8))
    assert {"space", "time"} == {*names}


class Halved(nn.Module):
    """Post-norm blocks, and between them a convolution that halves the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Post() for _ in range(3))
        self.halve = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 2, stride=2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number < 2:
                x = self.halve[number](x.mT).mT
        return x


class Post(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.think = Mix(causal=False), Think()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x + self.mix(x))
        return self.two(x + self.think(x))


def test_the_norm_on_the_sum_before_another_stage_belongs_to_its_block() -> None:
    found = edgewise.structure(Halved(), torch.randn(2, 32, WIDTH))
    assert [[b.norm for b in block] for block in found.blocks] == [["post", "post"]] * 3


class Pairs(nn.Module):
    """Branches in pairs, so that no module gives the end of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), part) for part in (Mix(causal=False), Think()))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for mix, think in self.layers:  # type: ignore[misc]
            x = mix(x) + x
            x = think(x) + x
        return x


class Pooled(nn.Module):
    """Two stages; a matrix, a norm and a pool between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Pairs() for _ in range(2))
        self.join = nn.Sequential(nn.Conv1d(WIDTH, WIDTH, 3), nn.GroupNorm(1, WIDTH), nn.MaxPool1d(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.stages[1](self.join(self.stages[0](x).mT).mT)


def test_what_acts_between_stages_does_not_scale_the_last_sum() -> None:
    """Where no module gives the end of a block, what acts on the sums before is taken to act on the last one."""
    found = edgewise.structure(Pooled(), torch.randn(2, 34, WIDTH))
    assert {(b.skip, b.multiplier) for block in found.blocks for b in block} == {(1.0, 1.0)}
    assert found.depth == 4


class Routed(nn.Module):
    """One expert for each token; the last of them is never chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(Think() for _ in range(3))
        with torch.no_grad():
            self.gate.bias[2] = -1e3

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, WIDTH)
        share, expert = self.gate(flat).softmax(-1).max(-1)
        out = torch.zeros_like(flat)
        for number, think in enumerate(self.experts):
            rows = (expert == number).nonzero()[:, 0]
            out = out.index_add(0, rows, think(flat[rows]) * share[rows, None])
        return out.view_as(x)


def test_an_expert_without_tokens_does_not_hide_the_activation() -> None:
    model = Words(nn.Sequential(*(Block(Mix(), Routed()) for _ in range(3))))
    plain = Words(nn.Sequential(*(Block(Mix(), Think()) for _ in range(3))))
    (known,) = {b.activation for block in edgewise.structure(plain).blocks for b in block if b.kind == "MLP"}
    found = {b.activation for block in edgewise.structure(model).blocks for b in block if b.kind == "MLP"}
    assert known is not None and found == {known}


class Filtered(Mix):
    """Causal attention whose scores are filtered over neighboring queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Conv2d(HEADS, HEADS, 3)

    def forward(self, x: Tensor, _: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.a(x).chunk(3, -1))
        hidden = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = self.filter(F.pad((q @ k.mT).masked_fill(hidden, 0.0), (2, 0, 2, 0)))
        scores = scores.masked_fill(hidden, float("-inf"))
        return self.z((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def test_what_a_filter_makes_of_the_edge_of_a_mask_is_not_a_position() -> None:
    found = edgewise.structure(Words(nn.Sequential(*(Block(Filtered(), Think()) for _ in range(3)))))
    attention = [b for block in found.blocks for b in block if b.kind == "attention"]
    assert len(attention) == 3 and all(b.positions is None and dict(b.absent)["positions"] for b in attention)


def test_rotated_keys_beside_padding_are_rotated() -> None:
    """Windows of four tokens that look back at four: before the first stand numbers that are none of the stream's."""
    angle = torch.arange(8)[:, None] * torch.tensor([1.0, 0.3])
    turn = torch.polar(torch.ones(()), angle)
    rows = torch.view_as_complex(torch.randn(2).expand(2, 4, 8, 2, 2).contiguous())
    keys = rows * turn
    keys[:, 0, :4] = -turn[:4]
    value = torch.view_as_real(keys).flatten(-2)
    assert _turned(value, 16, 2) == "rotary"
    assert _turned(value * torch.arange(1.0, 9.0)[:, None], 16, 2) is None


@pytest.mark.parametrize(("width", "heads"), [(32, 4), (64, None)])
def test_heads_that_three_dots_stand_for(width: int, heads: int | None) -> None:
    queries = torch.randn(ENTRIES, 4, 16, 8)
    site: Any = SimpleNamespace(traits=SimpleNamespace(heads=None, kv_heads=None, head_width=None))
    _heads_by_letters(site, "... i d, ... j d -> ... i j", queries, queries, width)
    assert site.traits.kv_heads == heads


def test_heads_beside_as_many_windows() -> None:
    """Two heads share their keys: along the axis of heads there are two kinds, along that of windows four."""
    query, key = torch.randn(2, 4, 4, 5, 8), torch.randn(2, 2, 4, 5, 8).repeat_interleave(2, 1)
    own, shared = _beside_windows(query, key, 32)
    assert torch.equal(own, query[:, :, 0]) and torch.equal(shared, key[:, :, 0])


def test_rows_of_a_fused_convolution_are_told_apart() -> None:
    stored = torch.randn(12, 5, 1)
    rows = Rows(1, 12, 4, 8)
    found = rows_of(stored, Projection("key", ("w",), 5, 4, False, rows=rows))
    assert torch.equal(found.flatten(0, -2), stored[4:8, :, 0])


class TextAndPicture(nn.Module):
    """Words with positions, and behind them as many regions of a picture without any."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(64, WIDTH), nn.Embedding(16, WIDTH)
        self.region = nn.Linear(8, WIDTH)
        self.blocks = nn.Sequential(*(Block(Mix(causal=False), Think()) for _ in range(3)))

    def forward(self, words: Tensor, regions: Tensor) -> Tensor:
        text = self.word(words) + self.place.weight
        return self.blocks(torch.cat([text, self.region(regions)], 1))


def test_positions_of_one_kind_of_input_are_not_denied() -> None:
    found = edgewise.structure(TextAndPicture(), (torch.randint(64, (2, 16)), torch.randn(2, 16, 8)))
    assert found.absolute is None


class FarAndNear(nn.Module):
    """Blocks over groups of four words, then blocks over the words, to which the groups are added."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.again = nn.Embedding(64, WIDTH), nn.Embedding(64, WIDTH)
        self.inward, self.outward = nn.Linear(4 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.far = nn.Sequential(*(Block(Mix(), Think()) for _ in range(2)))
        self.near = nn.Sequential(*(Block(Mix(), Think()) for _ in range(3)))

    def forward(self, words: Tensor) -> Tensor:
        far = self.far(self.inward(self.word(words).unflatten(1, (-1, 4)).flatten(2)))
        return self.near(self.again(words) + self.outward(far).repeat_interleave(4, 1))


def test_a_stack_with_an_input_of_its_own_is_no_stage() -> None:
    assert {"far", "near"} == {*edgewise.models.stacks(FarAndNear(), torch.randint(64, (2, 32)))}


@pytest.mark.parametrize(("width", "heads"), [(32, 4), (24, 3), (64, None)])
def test_heads_folded_into_entries_beside_chunks(width: int, heads: int | None) -> None:
    """Four that are folded and three on an axis of their own: heads are those that fill the stream."""
    queries = torch.randn(ENTRIES * 4, 3, 5, 8)
    site: Any = SimpleNamespace(traits=SimpleNamespace(heads=None, kv_heads=None, head_width=None))
    _heads_by_letters(site, "bcxd,bcyd->bcxy", queries, queries, width)
    assert site.traits.heads == heads


class Damped(nn.Module):
    """x + a (f(x) - x), a step toward the branch, or a (x + f(x)) beside the stream."""

    def __init__(self, amount: float | Tensor, toward: bool = True) -> None:
        super().__init__()
        self.amount = nn.Parameter(amount) if isinstance(amount, Tensor) else amount
        self.sign, self.parts = -1.0 if toward else 1.0, nn.ModuleList((Mix(), Think()))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for part, norm in zip(self.parts, self.norms, strict=True):
            own = part(norm(x))
            x = x + self.amount * (own - x if self.sign < 0 else own + x)
        return x


@pytest.mark.parametrize(
    ("amount", "toward", "skip", "multiplier"),
    [
        (0.25, True, 0.75, 0.25),
        (torch.tensor(0.25), True, 0.75, 0.25),
        (0.5, False, 1.5, 0.5),
        (torch.full((WIDTH,), 0.1), True, None, None),
    ],
)
def test_a_step_toward_the_branch_keeps_the_rest_of_the_stream(
    amount: float | Tensor, toward: bool, skip: float | None, multiplier: float | None
) -> None:
    """It was stated as a stream times -1; of a vector neither is a number."""
    found = edgewise.structure(Words(*(Damped(amount, toward) for _ in range(3))))
    assert {(b.skip, b.multiplier) for block in found.blocks for b in block} == {(skip, multiplier)}


class Slots(nn.Module):
    """Experts that read mixtures of all tokens: a softmax, and no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.experts = (
            nn.Parameter(torch.randn(WIDTH, 3) / WIDTH),
            nn.ModuleList(Think() for _ in range(3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.place
        slots = scores.softmax(1).mT @ x
        given = torch.stack([expert(slots[:, i]) for i, expert in enumerate(self.experts)], 1)
        return scores.softmax(-1) @ given


def test_a_block_with_two_softmaxes_that_differ_is_one() -> None:
    model = Words(*(Block(Mix(causal=False), Slots()) for _ in range(3)))
    assert edgewise.structure(model).depth == edgewise.measure(model).depth == 3
    assert places_of(model).depth == 3


class WithPictures(nn.Module):
    """A tower that comes first, whose patches take the place of some words."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.table = nn.ModuleList(zoo.Block() for _ in range(2)), nn.Embedding(64, zoo.WIDTH)
        self.blocks, self.readout = nn.ModuleList(zoo.Block() for _ in range(4)), nn.Linear(zoo.WIDTH, 64)

    def forward(self, ids: Tensor, patches: Tensor) -> Tensor:
        for block in self.tower:
            patches = block(patches)
        x = self.table(ids)
        x = x.masked_scatter((ids == 0)[..., None].expand_as(x), patches)
        for block in self.blocks:
            x = block(x)
        return self.readout(x)


def test_the_stack_that_is_measured_is_the_first_of_the_sites() -> None:
    ids = torch.randint(1, 64, (2, 24))
    ids[:, 3:13] = 0
    batch = {"ids": ids, "patches": torch.randn(2, 10, zoo.WIDTH)}
    assert edgewise.structure(WithPictures(), batch).stack == "blocks"
    assert [stack.name for stack in edgewise.models.sites(WithPictures(), batch).stacks] == [
        "blocks",
        "tower",
    ]
