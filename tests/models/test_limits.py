"""Numbers of readers of models in closed form, and their limits from both sides."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models import module_description
from edgewise.models.behavior import to_architecture
from edgewise.models.behavior.layout import Layout, layouts
from edgewise.models.behavior.mlp import _misfit
from edgewise.models.config.families.decoders import _routed
from edgewise.models.config.reader import (
    ConfigReader,
    Shape,
    assume_tokens,
    layer_types,
    normal_gains,
    rope_base,
    rope_fraction,
    rope_scaling,
    truncated,
)
from edgewise.models.config.translate import translate
from edgewise.models.names.model_sites import Projection
from edgewise.models.names.weight_gains import (
    Gain,
    is_set,
    is_structured,
    measured_gain,
    norm_gains,
    one_or_each,
    root_mean_square,
)
from edgewise.models.small.sizes import (
    Scale,
    Tower,
    _heads,
    _key_heads,
    _sections,
    _tower,
    _tower_of,
    small_number,
)


# --- configs ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cutoff", [0.5, 1.0, 2.0, 3.0])
def test_the_deviation_of_a_cut_normal_is_its_integral(cutoff: float) -> None:
    whole, _ = integrate.quad(lambda x: math.exp(-x * x / 2), -cutoff, cutoff)
    square, _ = integrate.quad(lambda x: x * x * math.exp(-x * x / 2), -cutoff, cutoff)
    assert truncated(0.3, cutoff) == pytest.approx(0.3 * math.sqrt(square / whole), rel=1e-9)


def test_gains_of_matrices_of_one_deviation() -> None:
    """s sqrt(fan-in): of the width for what reads the stream, of all heads and the hidden width for what writes."""
    shape = Shape(width=64, heads=4, kv_heads=2, head_width=9, mlp_width=100)
    assert normal_gains(shape, 0.5, output=0.25, gated=True, scaling=3.0) == {
        "score_gain": (0.5 * 8) ** 2 * 3,
        "key_gain": 0.5 * 8,
        "value_gain": 0.5 * 8 * 0.25 * 6,
        "output_gain": 0.25 * 6,
        "mlp_in_gain": 0.5 * 8,
        "mlp_out_gain": 0.25 * 10,
        "mlp_linear_gain": 0.5 * 8,
    }
    assert normal_gains(shape, 0.5)["output_gain"] == 0.5 * 6


SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 96}


def knobs(kind: str, **more: Any) -> Any:
    return translate({"model_type": kind, "initializer_range": 0.1} | SIZES | more)


def test_an_image_of_patches_and_its_tokens() -> None:
    """224 / 16 squared and one class token; a patch of 16 · 16 · 3 numbers, and random positions: s² (768 + 1)."""
    found = knobs("vit")
    assert (found.tokens, found.embedding_norm) == (14 * 14 + 1, pytest.approx(0.01 * 769))
    found = knobs("deit", image_size=32, patch_size=8, num_channels=1)
    assert (found.tokens, found.embedding_norm) == (4 * 4 + 2, pytest.approx(0.01 * 64))
    found = knobs("dinov2", layerscale_value=0.3)
    assert (found.tokens, found.embedding_norm) == (16 * 16 + 1, pytest.approx(0.01 * (14 * 14 * 3 + 1)))
    assert (found.mlp_width, found.attention_branch, found.mlp_branch) == (256, 0.3, 0.3)
    assert knobs("dinov2", use_swiglu_ffn=True).mlp_width == 176  # 2/3 of 256 is 170.7: 170 up to eights
    found = knobs("vit", image_size=[32, 16], patch_size=[8, 4])
    assert (found.tokens, found.embedding_norm) == (4 * 4 + 1, pytest.approx(0.01 * (8 * 4 * 3 + 1)))
    with pytest.raises(BadInput, match="does not fit"):
        knobs("vit", image_size=8)


def test_encoders_and_their_lengths() -> None:
    found = knobs("bert")
    assert (found.tokens, found.norm, found.causal, found.embedding_norm) == (512, "post", False, 1.0)
    assert found.score_gain == pytest.approx((0.1 * 8) ** 2) and found.mlp_out_gain == pytest.approx(
        0.1 * 96**0.5
    )
    assert (
        knobs("bert", is_decoder=True).tokens == 128
        and knobs("bert", max_position_embeddings=64).tokens == 64
    )
    found = knobs("modernbert", initializer_cutoff_factor=2.0)
    s = truncated(0.1, 2.0)
    assert found.output_gain == pytest.approx(s / math.sqrt(2 * 3) * 8) and found.key_gain == pytest.approx(
        s * 8
    )
    assert (found.window, found.rope_base) == ((None, 65, 65), (160000.0, 10000.0, 10000.0))
    t5 = {"d_model": 64, "num_heads": 4, "d_kv": 10, "d_ff": 96, "num_layers": 3, "initializer_factor": 0.5}
    found = translate({"model_type": "t5"} | t5)
    assert (found.tokens, found.activation, found.gated, found.head_width) == (512, "relu", False, 10)
    assert (found.embedding_norm, found.position_bias, found.score_gain) == (0.25, 0.5 / 8, 0.5**4)
    assert (found.key_gain, found.value_gain, found.output_gain, found.mlp_in_gain, found.mlp_out_gain) == (
        0.25, 0.125, 0.5, 0.25, 0.5)  # fmt: skip
    assert translate({"model_type": "t5", "n_positions": 40} | t5).tokens == 40
    torch_ = {"model_type": "torch_encoder", "d_model": 64, "nhead": 4, "num_layers": 3}
    found = translate(torch_)
    assert (found.tokens, found.mlp_width, found.activation, found.norm) == (256, 2048, "relu", "post")
    assert found.score_gain == pytest.approx(1 / 2) and found.key_gain == pytest.approx(math.sqrt(1 / 2))
    assert found.value_gain == pytest.approx(math.sqrt(1 / 6)) and found.output_gain == pytest.approx(
        math.sqrt(1 / 3)
    )
    assert found.mlp_bias == pytest.approx(1 / math.sqrt(3 * 64)) and found.mlp_in_gain == pytest.approx(
        math.sqrt(1 / 3)
    )
    assert any("standard deviation 0.013" in note for note in found.assumed)  # 1 / sqrt(3 · 2048) = 0.01276
    assert translate(torch_ | {"norm_first": True}).norm == "pre"


def test_decoders_and_their_own_defaults() -> None:
    found = knobs("llama")
    assert (found.tokens, found.rope, found.rope_base, found.norm) == (128, 1.0, 10000.0, "pre")
    assert (found.embedding_norm, found.activation, found.gated) == (pytest.approx(0.01), "silu", True)
    assert knobs("gpt2", activation_function="relu").embedding_norm == pytest.approx(0.02)
    assert knobs("gpt2").mlp_width == 256 and knobs("gpt2").output_gain == pytest.approx(0.1 / 6**0.5 * 8)
    assert knobs("gemma2", head_dim=16).norm == "sandwich"
    found = knobs("gemma2", head_dim=16, query_pre_attn_scalar=64, sliding_window=7)
    assert found.score_gain == pytest.approx((0.1 * 8) ** 2 * 0.5) and found.embedding_norm == pytest.approx(
        0.64
    )
    assert found.window == (7, None, 7) and found.head_width == 16
    found = knobs(
        "gemma3_text", head_dim=16, sliding_window=7, sliding_window_pattern=3, query_pre_attn_scalar=4
    )
    assert (found.window, found.score_gain, found.qk_norm) == ((7, 7, None), 2.0, True)
    assert found.rope_base == (10000.0, 10000.0, 1000000.0)
    found = knobs("granite", attention_multiplier=0.5, embedding_multiplier=3.0, residual_multiplier=0.2)
    assert found.score_gain == pytest.approx(
        (0.1 * 8) ** 2 * 0.5 * 4
    ) and found.embedding_norm == pytest.approx(0.09)
    assert (found.attention_branch, found.mlp_branch) == (0.2, 0.2)
    opt = knobs("opt", ffn_dim=96, init_std=0.1, word_embed_proj_dim=16)
    assert opt.embedding_norm == pytest.approx(0.01 * 0.16 + 0.01)
    assert knobs("qwen2", use_sliding_window=True, sliding_window=5, max_window_layers=2).window == (
        None,
        None,
        5,
    )
    assert knobs("qwen3").head_width == 128 and knobs("olmo2").norm == "branch"
    assert knobs("falcon").kv_heads == 1 and knobs("falcon", multi_query=False, num_kv_heads=2).kv_heads == 2


def test_weights_of_chosen_experts_are_those_at_their_quantiles() -> None:
    from statistics import NormalDist

    config = ConfigReader({"model_type": "x", "num_experts": 4, "num_experts_per_tok": 2})
    z = [NormalDist().inv_cdf(q) for q in (0.875, 0.625, 0.375, 0.125)]
    scores = np.exp(0.7 * np.array(z))
    part = scores[:2] / scores[:2].sum()
    assert _routed(config, 0.7, normalized=True) == pytest.approx(float(np.sqrt((part**2).sum())))
    part = scores[:2] / scores.sum()
    assert _routed(config, 0.7, normalized=False) == pytest.approx(float(np.sqrt((part**2).sum())))
    with pytest.raises(BadInput, match="standard deviation 51"):
        _routed(config, 51.0, normalized=True)
    assert _routed(config, 50.0, normalized=True) == pytest.approx(1.0, abs=1e-6)


def reader(**values: Any) -> ConfigReader:
    return ConfigReader({"model_type": values.pop("family", "llama")} | values)


def test_long_contexts_multiply_the_logits_by_the_square_of_yarns_magnitude() -> None:
    def magnitude(factor: float, weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1

    scaled = rope_scaling(reader(rope_scaling={"type": "yarn", "factor": 8.0}))
    assert scaled == pytest.approx(magnitude(8) ** 2)
    implied = reader(
        rope_scaling={"type": "yarn", "original_max_position_embeddings": 100}, max_position_embeddings=700
    )
    assert rope_scaling(implied) == pytest.approx(magnitude(7) ** 2)
    shares = {"type": "yarn", "factor": 8.0, "mscale": 2.0, "mscale_all_dim": 0.5}
    assert rope_scaling(reader(rope_scaling=shares)) == pytest.approx(
        (magnitude(8, 2) / magnitude(8, 0.5)) ** 2
    )
    deep = rope_scaling(reader(rope_scaling=shares, family="deepseek_v3"))
    assert deep == pytest.approx((magnitude(8, 2) / magnitude(8, 0.5)) ** 2 * magnitude(8, 0.5) ** 2)
    assert rope_scaling(reader(rope_scaling={"type": "yarn", "factor": 8.0, "attention_factor": 1.5})) == 2.25
    assert rope_scaling(reader(rope_scaling={"type": "linear", "factor": 8.0})) == 1.0
    assert rope_scaling(reader(rope_scaling={"type": "yarn", "factor": 0.5})) == 1.0
    assert rope_scaling(reader(rope_scaling={"rope_type": "default"})) == rope_scaling(reader()) == 1.0
    long = reader(rope_scaling={"type": "longrope", "factor": 4.0, "original_max_position_embeddings": 1000})
    assert rope_scaling(long) == pytest.approx(1 + math.log(4) / math.log(1000))
    assert rope_base(reader(rope_parameters={"rope_theta": 7.0}), "rope_theta", default=3.0) == 7.0
    assert rope_base(reader(rope_theta=5), "rope_theta", default=3.0) == 5.0
    assert (
        rope_fraction(reader(partial_rotary_factor=0.25)) == 0.25
        and rope_fraction(reader(), default=0.5) == 0.5
    )


@pytest.mark.parametrize(
    ("given", "context", "expected"),
    [(None, 100, 100), (None, 128, 128), (None, 129, 128), (40, 100, 40), (200, 100, 200)],
)
def test_the_length_of_a_config(given: int | None, context: int, expected: int) -> None:
    config = ConfigReader({"model_type": "llama", "n": context}, given)
    assert assume_tokens(config, "n", context=7) == expected
    assert bool(config.assumed) is (expected not in (given, context) or (given or 0) > context)
    assert assume_tokens(ConfigReader({"model_type": "llama"}), context=7) == 7


def test_numbers_of_a_config_are_checked() -> None:
    config = reader(a=True, b=2.5, c=0, d=3.0, e=-1, f=[1], g="x", layer_types=["a", "b"])
    assert config.integer("d") == 3 and config.number("c") == 0.0
    for name in "abcefg":
        with pytest.raises(BadInput, match=f"{name} in a llama config must be a whole number from 1"):
            config.integer(name)
    for name in "aefg":
        with pytest.raises(BadInput, match="a number from 0"):
            config.number(name)
    with pytest.raises(BadInput, match="a number above 0"):
        config.positive("c")
    with pytest.raises(BadInput, match="true or false"):
        config.flag("c")
    assert config.flag("a") and config.flag("zz", default=True) and not config.flag("zz")
    with pytest.raises(BadInput, match="2 entries and the llama config has 3 layers"):
        layer_types(config, 3, lambda i: i > 0)
    assert layer_types(reader(), 3, lambda i: i > 1) == (
        "full_attention",
        "full_attention",
        "sliding_attention",
    )
    with pytest.raises(BadInput, match="has no x or y"):
        config.integer("x", "y")
    assert config.integer("x", default=9) == 9 and config.assumed == [
        "x: 9, the config leaves it out (the default of llama)"
    ]


# --- weights ---------------------------------------------------------------------------------------------------------
def drawn(*shape: int, size: float = 1.0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return values * size / values.pow(2).mean().sqrt()


def test_the_gain_of_a_matrix_is_its_size_times_the_root_of_its_fan_in() -> None:
    layer, norm = nn.Linear(16, 6, bias=False), nn.LayerNorm(16)
    layer.weight.data = drawn(6, 16, size=0.5).float()
    model = nn.ModuleDict({"layer": layer, "norm": norm})
    matrix = Projection(role="query", parameters=("layer.weight",), fan_in=16, fan_out=6)
    found = measured_gain(model, matrix)
    assert found.value == pytest.approx(0.5 * 4, rel=1e-6)
    assert found.error == pytest.approx(1 / math.sqrt(2 * 96))
    norm.weight.data = torch.linspace(0.5, 2.0, 16)
    expected = float((layer.weight.detach() * norm.weight.detach()).pow(2).mean().sqrt()) * 4
    assert measured_gain(model, matrix, "norm").value == pytest.approx(expected, rel=1e-5)
    assert root_mean_square(torch.tensor([3.0, 4.0, 0.0, 0.0])) == pytest.approx(2.5)


def test_gains_multiply_with_their_errors_and_agree_within_four() -> None:
    assert Gain(2.0, 0.3) * Gain(3.0, 0.4) == Gain(6.0, 0.5)
    assert Gain(2.0, 0.3) * 5 == Gain(10.0, 0.3)
    near = [Gain(1.0 - 0.039, 0.01), Gain(1.0 + 0.039, 0.01)]
    assert one_or_each(near) == pytest.approx(math.sqrt(1 + 0.039**2))
    assert one_or_each([Gain(1.0 - 0.041, 0.01), Gain(1.0 + 0.041, 0.01)]) == (0.959, 1.041)


@pytest.mark.parametrize(
    ("values", "structured"),
    [
        (drawn(8, 8), False),
        (torch.full((8, 8), 0.3), True),
        (drawn(8, 8) * (torch.arange(64).view(8, 8) >= 33), True),  # 51 % are zero
        (drawn(8, 8) * (torch.arange(64).view(8, 8) >= 32), False),
        (drawn(1, 8).expand(4, 8), True),
        (drawn(1, 8), False),
        (torch.tensor([[1.0, -1.0] * 8] * 2) * torch.tensor([[1.0], [-1.0]]) + 0.24, False),
        (torch.tensor([[1.0, -1.0] * 8] * 2) * torch.tensor([[1.0], [-1.0]]) + 0.27, True),
    ],
)
def test_matrices_that_were_set(values: Tensor, structured: bool) -> None:
    assert is_structured(values) is structured


@pytest.mark.parametrize(
    ("bias", "was_set"),
    [
        (torch.zeros(4), False),
        (torch.ones(4), True),
        (torch.tensor([1.0, 3.0]), True),
        (torch.tensor([-1.0, 2.0]), False),
    ],
)
def test_biases_that_were_set(bias: Tensor, was_set: bool) -> None:
    assert is_set(bias) is was_set


class OnePlus(nn.Module):
    """An RMSNorm that stores its gains less one, as Gemma's."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.linspace(-0.5, 1.0, 8)), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x / x.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt() * (1 + self.weight)


class Multiplies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.linspace(0.5, 2.0, 8)), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias


def test_gains_of_norms_are_what_they_do() -> None:
    model = nn.ModuleDict(
        {"a": nn.LayerNorm(8), "b": OnePlus(), "c": Multiplies(), "d": nn.Identity(), "e": OnePlus(3.0)}
    )
    model["a"].weight.data = torch.linspace(0.5, 2.0, 8)
    model["a"].bias.data = torch.ones(8)
    assert norm_gains(model, "a").tolist() == pytest.approx(torch.linspace(0.5, 2.0, 8).tolist(), rel=1e-4)
    assert norm_gains(model, "b").tolist() == pytest.approx(
        (1 + torch.linspace(-0.5, 1.0, 8)).tolist(), rel=1e-4
    )
    assert norm_gains(model, "c").tolist() == pytest.approx(torch.linspace(0.5, 2.0, 8).tolist(), rel=1e-4)
    assert norm_gains(model, "d").tolist() == [1.0]
    assert norm_gains(model, "e").tolist() == pytest.approx(
        (3 + 3 * torch.linspace(-0.5, 1.0, 8)).tolist(), rel=1e-4
    )


def test_the_usual_scales_of_logits() -> None:
    assert module_description._usual_scales({}, 16) == [1.0, 4.0]
    assert module_description._usual_scales({"query_pre_attn_scalar": 64}, 16) == [0.5, 1.0, 4.0]
    assert module_description._usual_scales({"attention_multiplier": 0.5}, 16) == [2.0, 1.0, 4.0]
    assert (
        module_description._mean((3.0, 4.0)) == pytest.approx(math.sqrt(12.5))
        and module_description._mean(2.0) == 2.0
    )


# --- small models of a config ----------------------------------------------------------------------------------------
def test_small_heads_and_sections_keep_their_proportions() -> None:
    assert [_key_heads(8, 32, small) for small in (4, 6, 16)] == [1, 2, 4]
    assert _key_heads(1, 32, 4) == 1 and _key_heads(32, 32, 4) == 4
    assert (
        _heads(96, 1.0, 12) == (6, 16)
        and _heads(96, 1.0, 1) == (1, 96)
        and _heads(96, 1.0, None) == (None, None)
    )
    tower = Tower("", 1024, 8, 128, 64, 4, 16)
    assert tower.part_of_head(64, Scale()) == 8 and tower.part_of_head(64, Scale(stream=2)) == 16
    assert tower.part_of_head(64, Scale(head=2)) == 4 and tower.part_of_head(3, Scale()) == 2
    assert tower.number_of_heads(8, Scale(head=2)) == 8 and tower.number_of_heads(8, Scale()) == 4
    assert tower.part_of_stream(1024, Scale(stream=2)) == 128 and tower.part_of_stream(4096, Scale()) == 256
    assert tower.part_of_stream(1000, Scale()) == 64 and tower.part_of_stream(10, Scale()) == 4
    assert _sections([16, 24, 24], tower, Scale()) == [2, 3, 3]
    same = Tower("", 128, 4, 32, 128, 4, 32)
    assert same.part_of_head(7, Scale(stream=2)) == 7 and same.part_of_stream(128, Scale(stream=2)) == 128


@pytest.mark.parametrize(
    ("name", "value", "small"),
    [
        ("vocab_size", 50000, 512),
        ("vocab_size", 100, 100),
        ("eos_token_id", 511, 511),
        ("eos_token_id", 512, 512 % 504 + 4),
        ("num_hidden_layers", 24, 3),
        ("num_hidden_layers", 2, 2),
        ("sliding_window", 25, 16),
        ("sliding_window", 24, 24),
        ("num_attention_heads", 8, 4),
        ("head_dim", 128, 16),
        ("hidden_size", 1024, 64),
        ("intermediate_size", 4096, 256),
        ("embedding_size", 1024, 64),
        ("embedding_size", 512, 512),
        ("mamba_d_state", 64, 8),
        ("mamba_d_state", 4, 4),
        ("mamba_n_heads", 32, 8),
        ("mamba_d_ssm", 2048, 128),
        ("something", 77, 77),
    ],
)
def test_numbers_of_a_small_config(name: str, value: int, small: int) -> None:
    tower = Tower("", 1024, 8, 128, 64, 4, 16)
    assert small_number(name, value, tower, {"": tower}, Scale(depth=3)) == small


def test_the_small_width_is_the_narrowest_that_keeps_the_proportions() -> None:
    values = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    found = _tower("", 1024, values, [])
    assert (found.width, found.heads, found.head_width) == (1024, 16, 64)
    assert (found.small_width, found.small_heads, found.small_head_width) == (64, 4, 16)
    other = _tower("x", 768, values | {"hidden_size": 768, "num_attention_heads": 12}, [found])
    assert other.small_width not in (64,) and other.small_width % 16 == 0
    assert _tower("x", 1024, values, [found]).small_width == 64
    assert _tower("", 128, values, []).small_width == 128  # narrow already
    # experts are told by their shape: neither 64 nor, twice as wide, 128 may be the width of the stream
    assert _tower("", 1024, values | {"num_experts": 128}, []).small_width not in (64, 128)


def test_a_config_without_a_width_shares_that_of_the_config_around_it() -> None:
    outer, inner = Tower("", 1024, 8, 128, 64, 4, 16), Tower("text", 512, 8, 64, 80, 4, 16)
    known = {"": outer, "text": inner}
    assert _tower_of("text", known) is inner and _tower_of("text.audio.part", known) is inner
    assert _tower_of("vision.part", known) is outer and _tower_of("", known) is outer
    assert _tower_of("text.part", {"vision": inner}) is None


# --- behavior --------------------------------------------------------------------------------------------------------
def test_the_axis_of_the_batch_grows_and_features_are_last_or_second() -> None:
    assert layouts((2, 4, 8), (3, 4, 8), 2, 3) == [Layout(0, 2, 3), Layout(0, 1, 3)]
    assert layouts((2, 4, 8, 8), (3, 4, 8, 8), 2, 3) == [Layout(0, 3, 4), Layout(0, 1, 4)]
    assert layouts((4, 2, 8), (4, 3, 8), 2, 3) == [Layout(1, 2, 3)]
    assert layouts((2, 4, 8), (4, 4, 8), 2, 3) == layouts((2, 4, 8), (3, 4), 2, 3) == []
    assert layouts((4, 4, 8), (6, 4, 8), 2, 3) == [
        Layout(0, 2, 3),
        Layout(0, 1, 3),
    ]  # two rows for each entry


def test_a_gain_a_shift_and_a_factor_for_each_token_leave_nothing() -> None:
    rows = drawn(64, 12) + torch.linspace(0.5, 2.0, 12)
    gain, shift = torch.linspace(0.5, 3.0, 12), torch.linspace(-1.0, 1.0, 12)
    normed = rows / rows.pow(2).mean(-1, keepdim=True).sqrt()
    assert _misfit(rows, gain * normed + shift) < 1e-9
    centred = rows - rows.mean(-1, keepdim=True)
    assert _misfit(rows, gain * centred / centred.pow(2).mean(-1, keepdim=True).sqrt() + shift) < 1e-9
    assert _misfit(rows, drawn(64, 12).roll(1, 0)) > 0.5 and _misfit(rows, rows[:, :5]) == math.inf


def test_the_linear_half_is_both_together_where_the_halves_were_not_told_apart() -> None:
    def branch(**gains: float | None) -> Any:
        return SimpleNamespace(gains=SimpleNamespace(**gains), module="mlp")

    assert to_architecture._linear(branch(linear=None, inward=2.0)) == 2.0
    assert to_architecture._linear(branch(linear=3.0, inward=2.0)) == 3.0
