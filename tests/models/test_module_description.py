"""describe(model): sizes equal to the config's, gains equal to what was drawn, behaviour seen and not guessed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from edgewise.errors import BadInput
from edgewise.models.config.translate import config_of
from edgewise.models.describe import describe
from edgewise.models.model_map import sites
from edgewise.models.module_description import _usual_scales
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.knobs import KNOBS
from tests.support import handwritten
from tests.support.handwritten import EXPECTED, HANDWRITTEN, NanoBlock, NanoGPT, attend
from tests.support.models import FAMILIES, build

GAINS = (
    "score_gain",
    "value_gain",
    "key_gain",
    "output_gain",
    "mlp_in_gain",
    "mlp_linear_gain",
    "mlp_out_gain",
)
MEASURED = (*GAINS, "embedding_norm", "mlp_bias", "attention_branch", "mlp_branch", "position_bias")


def each(value: Any, depth: int) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,) * depth


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_equals_its_config(name: str) -> None:
    """Structure exactly, gains within sampling error: matrices here have at least 12 x 48 entries per layer."""
    model = FAMILIES[name]()
    seen, said = describe(model), describe(model.config)
    assert isinstance(seen, Architecture) and isinstance(said, Architecture)
    for knob in KNOBS:
        if knob not in MEASURED:
            assert getattr(seen, knob) == getattr(said, knob), knob
    for knob in GAINS:
        pairs = zip(each(getattr(seen, knob), seen.depth), each(getattr(said, knob), said.depth), strict=True)
        for measured, drawn in pairs:
            assert measured == drawn or measured == pytest.approx(drawn, rel=0.06), knob
    assert seen.embedding_norm == pytest.approx(said.embedding_norm, rel=0.2)
    # A table of 32 distances for each of 4 heads, of which those that are near count for more pairs.
    assert seen.position_bias == pytest.approx(said.position_bias, rel=0.15)
    assert not any("relative_attention_bias" in part for part in seen.unmodelled)
    for knob in ("attention_branch", "mlp_branch"):
        assert getattr(seen, knob) == pytest.approx(getattr(said, knob), rel=1e-5)


@pytest.mark.parametrize("name", HANDWRITTEN)
def test_classes_never_seen(name: str) -> None:
    found = describe(HANDWRITTEN[name]())
    seen = (
        found.depth,
        found.width,
        found.heads,
        found.kv_heads,
        found.mlp_width,
        found.norm,
        found.parallel,
    )
    assert seen == EXPECTED[name]


@pytest.mark.parametrize(
    "name, activation, gated, causal, kind",
    [
        ("nanogpt", "gelu", False, True, "layer"),
        ("lecture", "relu", False, True, "layer"),
        ("post", "silu", True, False, "rms"),
        ("inline", "tanh", False, True, "rms"),
        ("torch_post", "relu", False, False, "layer"),
        ("timm_style", "gelu", False, False, "layer"),
    ],
)
def test_behaviour_is_seen(name: str, activation: str, gated: bool, causal: bool, kind: str) -> None:
    found = describe(HANDWRITTEN[name]())
    assert (found.activation, found.gated, found.causal, found.norm_kind) == (activation, gated, causal, kind)


def test_gains_are_those_that_were_drawn() -> None:
    """nn.Linear's default: uniform on +-1/sqrt(fan_in), so gain^2 = 1/3; nanoGPT: 0.02, outputs /sqrt(2 depth)."""
    lecture = describe(HANDWRITTEN["lecture"]())
    for knob in ("key_gain", "output_gain", "mlp_in_gain", "mlp_out_gain"):
        assert getattr(lecture, knob) == pytest.approx(math.sqrt(1 / 3), rel=0.03), knob
    assert lecture.mlp_bias == pytest.approx(1 / math.sqrt(3 * 48), rel=0.1)
    assert lecture.embedding_norm == pytest.approx(2.0, rel=0.1)
    nano = describe(HANDWRITTEN["nanogpt"]())
    assert nano.output_gain == pytest.approx(0.02 * math.sqrt(48 / 6), rel=0.03)
    assert nano.embedding_norm == pytest.approx(2 * 0.02**2, rel=0.1)


def test_layers_that_differ_are_described_one_by_one() -> None:
    model = HANDWRITTEN["nanogpt"]()
    with torch.no_grad():
        model.transformer["h"][1].mlp.c_proj.weight.mul_(3)
    found, block = describe(model), model.transformer["h"][1]
    assert isinstance(found.mlp_out_gain, tuple) and isinstance(found.mlp_in_gain, float)
    assert found.mlp_out_gain[1] == pytest.approx(
        block.mlp.c_proj.weight.pow(2).mean().sqrt().item() * 80**0.5
    )
    assert found.mlp_out_gain[1] / found.mlp_out_gain[0] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("name", ["llama", "gemma2", "nanogpt"])
def test_gains_of_norms_are_folded_in(name: str) -> None:
    """A norm of gain 2 before attention doubles queries, keys and values; Gemma stores that as 1."""
    make = FAMILIES.get(name) or HANDWRITTEN[name]
    plain, model = describe(make()), make()
    for block in sites(model).blocks:
        norm = block.norm("before attention")
        assert norm is not None
        nn.init.constant_(model.get_submodule(norm.name).weight, 1.0 if name == "gemma2" else 2.0)
    found = describe(model)
    assert found.score_gain == pytest.approx(4 * plain.score_gain, rel=1e-4)
    assert found.value_gain == pytest.approx(2 * plain.value_gain, rel=1e-4)
    assert found.mlp_in_gain == pytest.approx(plain.mlp_in_gain)


def test_layer_scale_and_t5_factor() -> None:
    assert describe(build("dinov2", layerscale_value=0.25)).attention_branch == pytest.approx(0.25)
    model = build("t5", initializer_factor=0.5)
    found, said = describe(model), describe(model.config)
    for knob in ("score_gain", "value_gain", "mlp_in_gain", "mlp_out_gain"):
        assert getattr(found, knob) == pytest.approx(getattr(said, knob), rel=0.06), knob


def test_norms_left_out_and_norms_inside() -> None:
    """timm's style: an Identity in place of q_norm is no norm; one before the output matrix is not modelled."""
    found = describe(HANDWRITTEN["timm_style"]())
    assert not found.qk_norm
    assert any("norms inside the branches: blocks.0.attn.norm" in line for line in found.unmodelled)
    assert found.attention_branch == pytest.approx(0.1) and found.mlp_branch == pytest.approx(0.1)


def test_a_zero_branch_does_not_hide_the_position() -> None:
    """Branches that start at zero leave stream and norm inputs equal; the watched run has weights of its own."""
    model = HANDWRITTEN["nanogpt"]()
    for block in model.transformer["h"]:
        nn.init.zeros_(block.attn.c_proj.weight)
        nn.init.zeros_(block.mlp.c_proj.weight)
    found = describe(model)
    assert (found.norm, found.parallel, found.value_gain, found.mlp_out_gain) == ("pre", False, 0.0, 0.0)


class Rotary(nn.Module):
    """Attention that tells positions apart by itself, and a norm after each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = handwritten.NanoAttention(), handwritten.NanoMLP()
        self.after_1, self.after_2 = nn.LayerNorm(48), nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        turn = torch.linspace(0.5, 1.5, x.shape[1])[:, None]
        q, k, v = self.attn.c_attn(x).chunk(3, -1)
        x = x + self.after_1(self.attn.c_proj(attend(q * turn, k * turn, v, 4)))
        return x + self.after_2(self.mlp(x))


class BothSides(NanoBlock):
    def __init__(self) -> None:
        super().__init__()
        self.norm_post_attn, self.norm_post_mlp = nn.LayerNorm(48), nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norm_post_attn(self.attn(self.ln_1(x)))
        return x + self.norm_post_mlp(self.mlp(self.ln_2(x)))


class Bare(NanoBlock):
    def __init__(self) -> None:
        super().__init__()
        del self.ln_1, self.ln_2

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.mlp(x)


class Both(NanoBlock):
    """A norm before attention and one on the sum after the MLP: no position of the theory."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return self.ln_2(x + self.mlp(x))


def with_blocks(kind: type[nn.Module]) -> nn.Module:
    model = NanoGPT()
    model.transformer["h"] = nn.ModuleList([kind() for _ in range(3)])
    return model


POSITIONS = [(Rotary, "branch"), (BothSides, "sandwich"), (Bare, "none"), (NanoBlock, "pre")]


@pytest.mark.parametrize("kind, norm", POSITIONS)
def test_every_position_is_seen(kind: type[nn.Module], norm: str) -> None:
    found = describe(with_blocks(kind))
    assert found.norm == norm
    assert any("positions do inside attention" in line for line in found.unmodelled) == (kind is Rotary)


TEXT = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "pad_token_id": 0,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQUENCE = {
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "vocab_size": 96,
}
OTHERS = {  # families without a translation of their config: (config, norm, parallel, causal, activation, rope)
    "gemma": (TEXT | {"head_dim": 16, "num_key_value_heads": 2}, "pre", False, True, "gelu_tanh", 1.0),
    "cohere": (TEXT, "pre", True, True, "silu", 1.0),
    "bloom": (
        {"hidden_size": 48, "n_layer": 3, "n_head": 4, "vocab_size": 96},
        "pre",
        False,
        True,
        "gelu_tanh",
        0.0,
    ),
    "electra": (TEXT | {"embedding_size": 48}, "post", False, False, "gelu", 0.0),
    "bart": (SEQUENCE, "post", False, False, "gelu", 0.0),
    "albert": (TEXT | {"embedding_size": 48}, "post", False, False, "gelu_tanh", 0.0),
    "olmoe": (TEXT | {"num_experts": 4, "num_experts_per_tok": 2}, "pre", False, True, "silu", 1.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_families_nobody_has_translated_are_watched(name: str) -> None:
    """Blocks that want masks and rotations run inside their model; what is seen is what their authors wrote."""
    transformers = pytest.importorskip("transformers")
    config, norm, parallel, causal, activation, rope = OTHERS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **config)).eval()
    found = describe(model)
    assert (found.depth, found.width, found.heads) == (3, 48, 4)
    seen = (found.norm, found.parallel, found.causal, found.activation, found.rope)
    assert seen == (norm, parallel, causal, activation, rope)
    if rope:
        assert found.rope_base == pytest.approx(model.config.rope_parameters["rope_theta"], rel=1e-3)
    if name == "olmoe":
        assert found.qk_norm and any("mixture" in line for line in found.unmodelled)


def test_a_position_without_a_word_is_refused() -> None:
    with pytest.raises(BadInput, match="no position the theory knows"):
        describe(with_blocks(Both))


class NoName(NanoBlock):
    """Attention whose number of heads is written in its forward pass only."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn.c_proj(attend(*self.attn.c_attn(self.ln_1(x)).chunk(3, -1), 2))
        return x + self.mlp(self.ln_2(x))


def test_heads_that_nobody_names_are_read() -> None:
    assert describe(with_blocks(NoName)).heads == 2


def test_a_stale_config_is_overruled_and_said() -> None:
    model = FAMILIES["llama"]()
    model.model.layers = model.model.layers[:2]
    found = describe(model)
    assert found.depth == 2
    assert any("depth: 2 as the model behaves; the config says 3" in line for line in found.assumed)


def test_another_depth_is_refused_and_tokens_are_taken() -> None:
    model = HANDWRITTEN["nanogpt"]()
    assert describe(model, tokens=17).tokens == 17
    assert describe(model, depth=3).depth == 3
    with pytest.raises(BadInput, match="depth must be that of this model, 3, got 12"):
        describe(model, depth=12)


def test_a_model_without_weights_is_refused() -> None:
    with torch.device("meta"):
        empty = NanoGPT()
    with pytest.raises(BadInput, match="meta device"):
        describe(empty)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "nanogpt", "post"])
def test_half_precision_changes_nothing_that_matters(name: str) -> None:
    make = FAMILIES.get(name) or HANDWRITTEN[name]
    full, half = describe(make()), describe(make().to(torch.bfloat16))
    for knob in KNOBS:
        if knob not in MEASURED:
            assert getattr(half, knob) == getattr(full, knob), knob
    assert half.score_gain == pytest.approx(full.score_gain, rel=0.01)
    assert half.embedding_norm == pytest.approx(full.embedding_norm, rel=0.01)


def test_describing_changes_nothing() -> None:
    model = FAMILIES["mixtral"]().train()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    describe(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(module.training and not module._forward_pre_hooks for module in model.modules())


def test_the_usual_scales_of_scores() -> None:
    """What configs have for it first, then scores over sqrt(head width), then scores that are not scaled."""
    for given, own in (
        ({}, []),
        ({"query_pre_attn_scalar": 4}, [2.0]),
        ({"attention_multiplier": 0.5}, [2.0]),
        ({"attention_multiplier": 0.0, "query_pre_attn_scalar": 0}, []),
    ):
        model = nn.Linear(2, 2)
        model.config = PretrainedConfig(**given)  # type: ignore[assignment]
        assert _usual_scales(config_of(model), 16) == [*own, 1.0, 4.0]


def test_an_encoder_of_torch_stands_behind_an_embedding_of_unit_size() -> None:
    """Xavier over the joint matrix gives q, k and v the gain sqrt(1/2), nn.Linear has sqrt(1/3)."""
    config = {
        "model_type": "torch_encoder",
        "d_model": 32,
        "nhead": 4,
        "num_layers": 2,
        "dim_feedforward": 64,
    }
    post, pre = describe(config), describe(config | {"norm_first": True})
    assert (post.norm, pre.norm, post.embedding_norm, post.activation) == ("post", "pre", 1.0, "relu")
    gains = (post.score_gain, post.value_gain, post.mlp_in_gain, post.mlp_out_gain, post.mlp_bias)
    assert gains == pytest.approx((1 / 2, math.sqrt(1 / 6), *[math.sqrt(1 / 3)] * 2, 1 / math.sqrt(3 * 32)))
