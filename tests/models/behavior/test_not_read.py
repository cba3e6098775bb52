"""Models that a trial of the method had wrong: read right, or named with the reason why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Stack
from edgewise.models.behavior.structure import structure_of
from edgewise.models.small.sizes import Scale
from edgewise.models.small.small_model import blueprint

transformers = pytest.importorskip("transformers")

PLAIN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
}
STAGES = {"hidden_sizes": [16, 32, 32, 48], "depths": [2, 2, 3, 2]}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def build(kind: str, **values: Any) -> Any:
    model = getattr(transformers, kind)
    return model(model.config_class(**values))


def unread(stack: Stack) -> bool:
    """Nothing is said of who sees whom, of kinds, heads or norms."""
    branches = stack.branches
    return stack.norm is None and all(b.kind is None and b.sees is None and b.heads is None for b in branches)


@pytest.mark.parametrize(("window", "expected"), [(8, 5), (512, None)])
def test_longformer(window: int, expected: int | None) -> None:
    model = build("LongformerForMaskedLM", **PLAIN, attention_window=window, max_position_embeddings=600)
    stack = read(model).default
    assert stack is not None and not stack.not_read
    assert stack.norm == "post" and stack.causal is False and stack.window == (expected,) * 2
    assert stack.horizon in (47, 48), "the 512 tokens that it pads to are none"
    assert "sum to one" not in str(structure_of(read(model), stack)), (
        "it multiplies chunks, with rows of padding"
    )


def test_led() -> None:
    sizes = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in {"layers": 2, "attention_heads": 2, "ffn_dim": 64}.items()
    }
    model = build(
        "LEDForConditionalGeneration",
        **sizes,
        d_model=32,
        vocab_size=99,
        attention_window=8,
        max_encoder_position_embeddings=600,
        max_decoder_position_embeddings=600,
    )
    encoder, decoder = read(model).stacks
    assert encoder.window == (5, 5) and encoder.causal is False and not encoder.not_read
    assert decoder.causal is True and decoder.window == (None, None) and not decoder.not_read


def test_mobilebert_has_streams_of_two_widths() -> None:
    (stack,) = read(
        build("MobileBertForMaskedLM", **PLAIN, embedding_size=16, intra_bottleneck_size=24)
    ).stacks
    assert stack.not_read == ("its branches have residual streams of their own inside",)
    assert {(b.kind, b.heads) for b in stack.attentions} == {("attention", 2)}, "seen at its softmax"
    plain = PLAIN | {"intermediate_size": 32}
    (stack,) = read(
        build(
            "MobileBertForMaskedLM",
            **plain,
            embedding_size=32,
            use_bottleneck=False,
            num_feedforward_networks=1,
        )
    ).stacks
    assert not stack.not_read and stack.norm == "none" and stack.activation == "relu", "NoNorm is none"


def test_mra_is_not_differentiable_by_token() -> None:
    (stack,) = read(build("MraForMaskedLM", **PLAIN)).stacks
    assert unread(stack) and "outside the residual branches" in stack.not_read[0]


def test_gemma3n_mixes_four_streams() -> None:
    model = build(
        "Gemma3nForCausalLM",
        vocab_size=99,
        vocab_size_per_layer_input=99,
        hidden_size=32,
        intermediate_size=64,
        hidden_size_per_layer_input=8,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=16,
        num_kv_shared_layers=2,
        laurel_rank=8,
        activation_sparsity_pattern=[0.95, *[0.0] * 5],
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )
    reading = read(model)
    assert "model.layers: its 6 blocks are not joined" in reading.not_read[0]
    stack = reading.default
    assert stack is not None and "6 blocks are not joined" in stack.not_read[0]
    assert [(b.kind, b.heads, b.norm_kind) for b in stack.branches] == [("attention", 2, None)] * 6
    assert (stack.name, stack.depth, stack.width) == ("model.layers", 6, 128)
    assert stack.layout == "feature batch token feature"


def test_deepseek_v4_has_hyper_connections() -> None:
    if "deepseek_v4" not in transformers.CONFIG_MAPPING:
        pytest.skip("this transformers has no deepseek_v4")
    plan = blueprint(transformers.CONFIG_MAPPING["deepseek_v4"]())
    reading = read(plan.build(Scale(depth=plan.depth)))
    assert reading.default is not None and "blocks are not joined" in reading.default.not_read[0]
    assert reading.default.layout == "batch token feature feature"


@pytest.mark.parametrize(
    ("kind", "values", "operation"),
    [
        ("ConvNextModel", STAGES, "conv2d"),
        ("ConvNextV2Model", STAGES, "conv2d"),
        ("PoolFormerModel", STAGES, "avg_pool2d"),
    ],
)
def test_channels_first(kind: str, values: dict[str, Any], operation: str) -> None:
    reading = read(build(kind, **values), {"pixel_values": torch.randn(1, 3, 64, 64)})
    assert len(reading.stacks) >= 3 and all(unread(stack) for stack in reading.stacks)
    assert {stack.layout for stack in reading.stacks} <= {None, "batch feature token token"}
    assert all("no attention found" in stack.not_read[0] for stack in reading.stacks)
    assert operation in reading.stacks[0].not_read[0] and operation in reading.notes[-1]


def test_a_residual_net_of_convolutions() -> None:
    model = build("BitModel", **STAGES, embedding_size=16, num_groups=2)
    reading = read(model, {"pixel_values": torch.randn(1, 3, 64, 64)})
    assert all(unread(stack) for stack in reading.stacks)
    assert any("no attention found" in note and "conv2d" in note for note in reading.notes)


def test_a_state_space_is_a_mixer() -> None:
    values = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "state_size": 4}
    reading = read(build("MambaForCausalLM", **values))
    stack = reading.default
    assert stack is not None and not stack.not_read and stack.norm == "pre"
    assert {b.kind for b in stack.branches} == {"mixer"} and stack.causal
    assert "no attention found" in reading.notes[-1]


def test_layers_that_share_their_weights_are_told_apart_by_call() -> None:
    stack = read(build("AlbertForMaskedLM", **PLAIN | {"num_hidden_layers": 3}, embedding_size=16)).default
    assert stack is not None and stack.shared and stack.depth == 3 and not stack.not_read
    assert [block.branches[0].total.call for block in stack.blocks] == [0, 1, 2]
