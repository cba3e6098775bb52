"""Models that were written here, and read back from what they do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Reading, Stack
from edgewise.models.model_map import stacks
from tests.models.behavior import strangers
from tests.models.behavior.strangers import DEPTH, HEADS, HIDDEN, WIDTH, Think, blocks, ids
from tests.support.handwritten import EXPECTED, HANDWRITTEN


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def only(model: nn.Module, batch: Any = None) -> Stack:
    """The one stack of a model, which must be read in full."""
    reading = read(model, batch)
    assert len(reading.stacks) == 1
    assert not reading.not_read and not reading.stacks[0].not_read, (
        reading.not_read,
        reading.stacks[0].not_read,
    )
    return reading.stacks[0]


def test_a_plain_block() -> None:
    stack = only(blocks(), ids())
    assert (stack.depth, stack.width, stack.norm, stack.norm_kind, stack.causal) == (
        DEPTH,
        WIDTH,
        "pre",
        "layer",
        True,
    )
    assert (stack.activation, stack.gated, stack.qk_norm, stack.parallel) == ("gelu", False, False, False)
    assert stack.positions == ((),) * DEPTH and stack.window == (None,) * DEPTH and stack.absolute is False
    assert [block.module for block in stack.blocks] == [f"stuff.{i}" for i in range(DEPTH)]
    attention, mlp = stack.blocks[0].branches
    assert (attention.kind, mlp.kind) == ("attention", "mlp")
    assert (attention.heads, attention.kv_heads, attention.head_width) == (HEADS, HEADS, WIDTH // HEADS)
    assert mlp.hidden_width == HIDDEN and attention.rows_sum_to_one and attention.linear
    assert stack.language and stack.default and stack.copies is False and not stack.shared


def test_a_share_is_the_branch_over_the_stream() -> None:
    model = blocks()
    batch = ids(entries=1)
    branch = only(model, batch).blocks[0].branches[0]
    with torch.no_grad():
        x = model.table(batch)
        b = model.stuff[0].mix(model.stuff[0].norms[0](x))
    assert branch.share == pytest.approx(float(b.norm() / x.norm()), rel=1e-5)


@pytest.mark.parametrize(
    "style, norm, kind",
    [
        ("pre", "pre", "layer"),
        ("in place", "pre", "rms"),
        ("sandwich", "sandwich", "layer"),
        ("branch", "branch", "rms"),
        ("post", "post", "layer"),
    ],
)
def test_the_place_and_kind_of_norms(style: str, norm: str, kind: str) -> None:
    stack = only(blocks(style), ids())
    assert (stack.depth, stack.norm, stack.norm_kind) == (DEPTH, norm, kind)
    assert all(branch.skip == pytest.approx(3.0 if style == "post" else 1.0) for branch in stack.branches)


def test_multipliers_of_skip_and_branch() -> None:
    assert {branch.multiplier for branch in only(blocks(amount=0.22), ids()).branches} == {0.22}
    attention, mlp = only(blocks("alpha"), ids()).blocks[1].branches
    assert (attention.skip, attention.multiplier) == (1.0, 0.5)
    assert (mlp.skip, mlp.multiplier) == (0.25, 2.0)
    rescaled = only(blocks("rescaled"), ids())
    assert [block.branches[-1].rescale for block in rescaled.blocks[:-1]] == [0.5] * (DEPTH - 1)


def test_parallel_branches_written_as_two_sums_or_one() -> None:
    apart, together = only(blocks("parallel"), ids()), only(blocks("parallel together"), ids())
    for stack in (apart, together):
        assert stack.depth == DEPTH and stack.parallel
        assert [sorted(str(b.kind) for b in block.branches) for block in stack.blocks] == [
            ["attention", "mlp"]
        ] * DEPTH
    assert {branch.multiplier for branch in together.branches} == {0.5}


@pytest.mark.parametrize(
    "mix, expected",
    [
        ({"causal": False}, {"causal": False}),
        ({"window": 5}, {"causal": True, "window": (5,) * DEPTH}),
        ({"window": 4, "causal": False}, {"causal": False, "window": (4,) * DEPTH}),
        ({"turn": True}, {"positions": (("rotary",),) * DEPTH}),
        ({"bias": True}, {"positions": (("alibi",),) * DEPTH}),
        ({"bias": True, "turn": True}, {"positions": (("rotary", "bias"),) * DEPTH}),
        ({"qk_norm": True}, {"qk_norm": True, "positions": ((),) * DEPTH}),
        ({"qk_norm": True, "turn": True}, {"qk_norm": True, "positions": (("rotary",),) * DEPTH}),
    ],
)
def test_what_attention_sees(mix: dict[str, Any], expected: dict[str, Any]) -> None:
    stack = only(blocks(**mix), ids())
    assert {name: getattr(stack, name) for name in expected} == expected


def test_sinks_and_gates_are_not_plain_attention() -> None:
    sunk = only(blocks(sink=True), ids()).attentions
    assert [branch.rows_sum_to_one for branch in sunk] == [False] * DEPTH
    gated = only(blocks(gate=True), ids()).attentions
    assert [branch.linear for branch in gated] == [False] * DEPTH
    fused = only(strangers.Words(*(strangers.Fused() for _ in range(DEPTH))), ids()).attentions
    assert [branch.linear for branch in fused] == [False] * DEPTH


@pytest.mark.parametrize(
    "activation, name",
    [
        (torch.relu, "relu"),
        (F.gelu, "gelu"),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu_tanh"),
        (F.silu, "silu"),
        (torch.tanh, "tanh"),
        (lambda x: torch.relu(x) ** 2, "relu2"),
        (lambda x: x, "linear"),
    ],
)
@pytest.mark.parametrize("gated", [False, True])
def test_the_activation_is_found_by_its_formula(
    activation: Callable[..., Any], name: str, gated: bool
) -> None:
    stack = only(blocks(think=lambda: Think(activation, gated)), ids())
    assert (stack.activation, stack.gated) == (name, gated)


def test_an_unknown_activation_is_shown_as_numbers() -> None:
    stack = only(blocks(think=lambda: Think(lambda x: x**3 + x.abs())), ids())
    assert stack.activation is None and stack.gated is None
    powers = stack.mlps[0].powers
    assert powers is not None and powers.parity > 0.5
    assert (powers.small, powers.large) == (pytest.approx(1, abs=0.01), pytest.approx(3, abs=0.01))


def test_experts_in_a_loop() -> None:
    stack = only(blocks(think=strangers.Experts), ids())
    assert [branch.experts for branch in stack.mlps] == [True] * DEPTH
    assert (stack.activation, stack.gated) == ("silu", True)


def test_blocks_without_a_module_of_their_own() -> None:
    pairs = only(strangers.Pairs(), ids())
    assert (pairs.depth, pairs.causal, pairs.activation, pairs.norm) == (DEPTH, True, "relu", "pre")
    alternating = only(strangers.Alternating(), ids())
    assert (alternating.depth, alternating.norm) == (DEPTH, "pre")
    assert all(len(block.branches) == 2 for block in alternating.blocks)


def test_a_mask_that_the_caller_makes() -> None:
    stack = only(strangers.ByCaller(), ids())
    assert (stack.depth, stack.causal, stack.activation, stack.qk_norm) == (DEPTH, True, "silu", False)
    assert stack.attentions[0].heads == HEADS


def test_shared_blocks_are_told_apart_by_call() -> None:
    stack = only(strangers.Shared(), ids())
    assert stack.depth == DEPTH and stack.shared and stack.causal is False
    assert len({branch.total for branch in stack.branches}) == 2 * DEPTH


def test_silent_branches_are_read_with_their_zeros_filled() -> None:
    stack = only(strangers.Diffusion(), (torch.randn(2, 3, 16, 16), torch.rand(2)))
    assert all(branch.silent and branch.share == 0 for branch in stack.branches)
    assert (stack.depth, stack.norm, stack.causal, stack.activation) == (DEPTH, "pre", False, "gelu")
    assert stack.gated is False and stack.absolute is True and not stack.language
    rezero = only(blocks("rezero"), ids())
    assert all(branch.silent and branch.multiplier == 0 for branch in rezero.branches)
    assert (rezero.norm, rezero.causal, rezero.activation) == ("none", True, "gelu")


def test_a_state_space_is_not_called_attention() -> None:
    model = strangers.Words(*(strangers.Block(strangers.Decay(), Think()) for _ in range(DEPTH)))
    stack = only(model, ids())
    assert [block.branches[0].kind for block in stack.blocks] == ["mixer"] * DEPTH
    assert stack.causal is True and stack.window == (None,) * DEPTH


def test_hybrid_stacks_are_read_branch_by_branch() -> None:
    model = strangers.Words(
        strangers.Block(strangers.Decay(), Think()),
        strangers.Block(strangers.Mix(), Think()),
        strangers.Block(strangers.Decay(), Think()),
    )
    kinds = [block.branches[0].kind for block in only(model, ids()).blocks]
    assert kinds == ["mixer", "attention", "mixer"]


def test_checkpoints_leave_the_columns() -> None:
    stack = only(blocks("checkpoint", window=5), ids())
    assert (stack.causal, stack.window, stack.norm) == (True, (5,) * DEPTH, "pre")


@pytest.mark.parametrize("style", ["highway", "weighed by channel"])
def test_what_is_not_a_plain_residual_stream_is_not_read(style: str) -> None:
    reading = read(blocks(style), ids())
    assert reading.not_read or all(stack.not_read for stack in reading.stacks)


def test_mixed_streams_are_not_read() -> None:
    reading = read(strangers.HyperConnected(), ids())
    assert reading.not_read or all(stack.not_read for stack in reading.stacks)


def test_as_many_tokens_as_a_head_has_features() -> None:
    """The axes of keys are then told apart by what reads them."""
    stack = only(strangers.blocks(), ids(strangers.WIDTH // strangers.HEADS))
    assert stack.positions == ((),) * DEPTH


def test_convolutions_in_channels_first_are_not_called_tokens() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = nn.Conv2d(16, 16, 3, 1, 1, groups=16)
            self.up, self.down = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(F.gelu(self.up(self.deep(x))))

    model = nn.Sequential(nn.Conv2d(3, 16, 4, 4), *(Part() for _ in range(DEPTH)))
    reading = read(model, torch.randn(2, 3, 32, 32))
    assert all(stack.not_read and stack.layout == "batch feature token token" for stack in reading.stacks)
    assert (
        "mixes them by conv2d" in reading.stacks[0].not_read[0]
        and "not proven" in reading.stacks[0].not_read[1]
    )


def test_channels_first_is_proven_where_a_branch_keeps_positions_apart() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep, self.up, self.down = (
                nn.Conv2d(16, 16, 3, 1, 1),
                nn.Conv2d(16, 32, 1),
                nn.Conv2d(32, 16, 1),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.deep(x)
            return x + self.down(F.relu(self.up(x)))

    stack = only(
        nn.Sequential(nn.Conv2d(3, 16, 4, 4), *(Part() for _ in range(DEPTH))), torch.randn(2, 3, 32, 32)
    )
    assert stack.layout == "batch feature token token" and stack.width == 16
    assert [b.kind for b in stack.blocks[0].branches] == ["mixer", "mlp"] and stack.activation == "relu"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_torch_encoder_in_both_layouts(batch_first: bool, norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, batch_first=batch_first, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
    for batch in (None, torch.randn(14, 18, WIDTH)):
        stack = only(model, batch)
        assert stack.layout == ("batch token feature" if batch_first else "token batch feature")
        assert (stack.norm, stack.causal, stack.copies) == ("pre" if norm_first else "post", False, True)
        assert (stack.depth, stack.activation, stack.attentions[0].heads) == (DEPTH, "relu", HEADS)
    assert stack.tokens == (18 if batch_first else 14)


def test_torch_decoder_reads_another_stack() -> None:
    reading = read(nn.Transformer(WIDTH, HEADS, 2, 2, HIDDEN, batch_first=True))
    assert [stack.name for stack in reading.stacks] == ["encoder.layers", "decoder.layers"]
    assert [b.kind for b in reading.stacks[1].blocks[0].branches] == ["attention", "cross-attention", "mlp"]
    assert not any(stack.not_read for stack in reading.stacks)


@pytest.mark.parametrize("name", HANDWRITTEN)
def test_the_other_handwritten_models(name: str) -> None:
    model = HANDWRITTEN[name]()
    depth, width, heads, kv_heads, hidden, norm, parallel = EXPECTED[name]
    if name == "torch_decoder":
        stack = only(model, (torch.randn(2, 20, width), torch.randn(2, 12, width)))
    else:
        stack = only(model, None if name.startswith("torch") else ids() % 30)
    assert (stack.depth, stack.width, stack.norm, stack.parallel) == (depth, width, norm, parallel)
    assert {branch.hidden_width for branch in stack.mlps} == {hidden}
    if name != "lecture":  # one module per head: the first head is looked at
        assert {(b.heads, b.kv_heads) for b in stack.attentions} <= {(heads, kv_heads), (heads, heads)}


def test_windows_are_looked_for_up_to_the_length_of_the_batch() -> None:
    model = blocks(window=60)
    assert only(model, ids(tokens=40)).window == (None,) * DEPTH
    long = only(model, ids(tokens=100))
    assert long.window == (60,) * DEPTH and long.horizon == 100


def test_the_record_goes_through_json_and_back() -> None:
    import json

    reading = read(blocks(), ids())
    assert Reading.from_dict(json.loads(json.dumps(reading.to_dict()))) == reading
    unknown = read(blocks(think=lambda: Think(lambda x: x**3)), ids())
    assert Reading.from_dict(json.loads(json.dumps(unknown.to_dict()))) == unknown


def test_a_stack_is_chosen_by_name() -> None:
    model = nn.Transformer(WIDTH, HEADS, 2, 2, HIDDEN, batch_first=True)
    assert stacks(model) == ("encoder.layers", "decoder.layers")
    chosen = read(model, stack="decoder.layers").default
    assert chosen is not None and chosen.name == "decoder.layers"
    with pytest.raises(BadInput, match=r"it has encoder\.layers, decoder\.layers"):
        read(model, stack="layers")


def test_the_default_stack_of_a_detector_is_its_transformer_and_not_the_convolutions_before_it() -> None:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.two(torch.relu(self.one(x)))

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.backbone = (
                nn.Conv2d(3, 32, 4, 4),
                nn.Sequential(*(Convolution() for _ in range(4))),
            )
            self.between = nn.Linear(32, 32)
            self.encoder = nn.ModuleList(
                nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(2)
            )

        def forward(self, pixels: Tensor) -> Tensor:
            x = self.between(self.backbone(self.stem(pixels)).flatten(2).transpose(1, 2))
            for layer in self.encoder:
                x = layer(x)
            return x

    reading = read(Detector().eval(), torch.randn(2, 3, 20, 20))
    assert {stack.name for stack in reading.stacks} == {"backbone", "encoder"}
    assert reading.default is not None
    assert reading.default.name == "encoder"
    assert stacks(Detector().eval(), torch.randn(2, 3, 20, 20))[0] == "encoder"


def test_a_model_that_does_not_run_says_so_with_its_own_traceback() -> None:
    with pytest.raises(
        BadInput, match=r"did not run on the batch \(argument 0 \(2, 20\)\): IndexError"
    ) as refusal:
        read(blocks(), ids() + 1000)
    assert isinstance(refusal.value.__cause__, IndexError)
    with pytest.raises(BadInput, match="holds no tensor"):
        read(blocks(), {"ids": 3})
    with pytest.raises(BadInput, match="cannot be of type int"):
        read(blocks(), 3)


def test_a_model_that_does_not_run_when_edited_is_listed_with_what_it_said() -> None:
    class Fussy(strangers.Words):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.start(ids)
            for block in self.stuff:
                x = block(x)
                if float(x.detach().pow(2).mean()) > 50:
                    raise ArithmeticError("too loud")
            return self.out(x)

    reading = read(Fussy(*blocks().stuff), ids())
    assert reading.stacks[0].depth == DEPTH and "too loud" in reading.stacks[0].not_read[0]


def test_trained_weights_are_recognized() -> None:
    model = blocks()
    assert read(model, ids()).trained is False
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter += (
                    0.5 * torch.outer(torch.randn(len(parameter)), torch.randn(parameter.shape[1])) / 5
                )
    reading = read(model, ids())
    assert reading.trained is True and math.isfinite(reading.spectral_edge or math.nan)


def test_a_model_without_residual_sums() -> None:
    model = nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    reading = read(model, torch.arange(24)[None])
    assert not reading.stacks and "no chain of residual sums" in reading.not_read[0]


RUNS: list[int] = []  # outside the model, whose attributes a reading puts back


class Counted(nn.Linear):
    """A head that counts how often it runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RUNS.append(len(x))
        return super().forward(x)


@pytest.fixture
def headed() -> nn.Module:
    RUNS.clear()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(50, 32), stack, Counted(32, 50)).eval()


def test_edited_passes_end_before_the_head(headed: nn.Module) -> None:
    reading = read(headed, torch.arange(24).reshape(2, 12))
    # Whole: the traced pass, two that ask whether the forward is random, and one that finds where the stream starts.
    assert len(RUNS) <= 4 and reading.passes > 10


def test_passes_are_whole_where_a_hook_waits_for_the_end(headed: nn.Module) -> None:
    """What a user's hook begins on the way in, another ends on the way out."""
    open_: list[int] = []
    plain = read(headed, torch.arange(24).reshape(2, 12))
    headed.register_forward_pre_hook(lambda *_: open_.append(1))
    headed.register_forward_hook(lambda *_: open_.pop() and None)
    RUNS.clear()
    assert read(headed, torch.arange(24).reshape(2, 12)) == plain
    assert open_ == [] and len(RUNS) > 10
