"""describe(config) of classes without a family, against the real model of that config, built and read."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.models.behavior.to_architecture import describe_reading
from edgewise.models.describe import describe
from edgewise.models.small import small_model
from edgewise.models.small.small_model import model_classes
from edgewise.nouns.architecture import Architecture

transformers = pytest.importorskip("transformers")

STRUCTURE = (
    "depth",
    "width",
    "heads",
    "head_width",
    "kv_heads",
    "mlp_width",
    "activation",
    "gated",
    "norm",
    "norm_kind",
    "parallel",
    "causal",
    "window",
    "alibi",
    "qk_norm",
)
GAINS = (
    "score_gain",
    "value_gain",
    "mlp_in_gain",
    "mlp_linear_gain",
    "mlp_out_gain",
    "attention_branch",
    "mlp_branch",
    "attention_skip",
    "mlp_skip",
)
WITHIN = 0.07  # both sides scatter by a few hundredths at these widths
DECODER = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 640,
    "num_hidden_layers": 8,
    "vocab_size": 700,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    k: v for k, v in DECODER.items() if k not in ("num_key_value_heads", "bos_token_id", "eos_token_id")
}
OLD = {"n_embd": 256, "n_head": 4, "n_layer": 8, "vocab_size": 700, "n_positions": 128}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3": ("SmolLM3Config", DECODER),
    "distilbert": (
        "DistilBertConfig",
        {"dim": 256, "hidden_dim": 640, "n_heads": 4, "n_layers": 6, "vocab_size": 700},
    ),
    "gptj": ("GPTJConfig", {**OLD, "rotary_dim": 16}),
    "cohere2": ("Cohere2Config", {**DECODER, "sliding_window": 32, "sliding_window_pattern": 4}),
    "gemma": ("GemmaConfig", {**DECODER, "head_dim": 64}),
    "olmo": ("OlmoConfig", DECODER),
    "starcoder2": ("Starcoder2Config", {**DECODER, "sliding_window": None}),
    "cohere": ("CohereConfig", DECODER),
    "glm": ("GlmConfig", {**DECODER, "head_dim": 64}),
    "electra": ("ElectraConfig", ENCODER),
    "xlm-roberta": ("XLMRobertaConfig", {**ENCODER, "pad_token_id": 1}),
    "olmo3": ("Olmo3Config", {**DECODER, "sliding_window": 32}),
    "ministral": ("MinistralConfig", {**DECODER, "head_dim": 64, "sliding_window": 32}),
    "exaone4": ("Exaone4Config", {**DECODER, "sliding_window": 32, "sliding_window_pattern": 4}),
    "minicpm3": (
        "MiniCPM3Config",
        {
            **DECODER,
            "num_key_value_heads": 4,
            "q_lora_rank": 96,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
        },
    ),
    "bloom": ("BloomConfig", {"hidden_size": 256, "n_head": 4, "n_layer": 8, "vocab_size": 700}),
    "mpt": ("MptConfig", {"d_model": 256, "n_heads": 4, "n_layers": 8, "vocab_size": 700}),
    "codegen": ("CodeGenConfig", {**OLD, "rotary_dim": 16}),
    "bart": (
        "BartConfig",
        {
            "d_model": 256,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 640,
            "decoder_ffn_dim": 640,
            "vocab_size": 700,
        },
    ),
    "beit": (
        "BeitConfig",
        {
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 640,
            "num_hidden_layers": 8,
            "image_size": 64,
            "patch_size": 16,
        },
    ),
    "albert": ("AlbertConfig", ENCODER),
    "olmoe": ("OlmoeConfig", {**DECODER, "num_experts": 16, "num_experts_per_tok": 4}),
}
FAST = ("distilbert", "gptj")


def config_of(kind: str) -> Any:
    name, changes = SMALL[kind]
    return getattr(transformers, name)(**changes)


def rms(value: Any) -> float:
    values = value if isinstance(value, tuple) else (value,)
    return math.sqrt(sum(v * v for v in values) / len(values))


def rotating(description: Architecture) -> list[bool]:
    rope = (
        description.rope if isinstance(description.rope, tuple) else (description.rope,) * description.depth
    )
    return [part > 0 for part in rope]


def agree(config: Any, stack: str | None = None) -> Architecture:
    """The description by small models, after comparing it with the real model of the same config."""
    description = describe(config, stack=stack)
    assert isinstance(description, Architecture)
    torch.manual_seed(1)
    model = next(model_classes(config))(config).eval()
    real = describe_reading(read(model, stack=stack))
    assert {k: getattr(description, k) for k in STRUCTURE} == {k: getattr(real, k) for k in STRUCTURE}
    assert rotating(description) == rotating(real)
    for knob in GAINS:
        assert rms(getattr(description, knob)) == pytest.approx(rms(getattr(real, knob)), rel=WITHIN), knob
    assert description.embedding_norm == pytest.approx(
        real.embedding_norm, rel=3 * WITHIN
    )  # a square, of 47 tokens
    return description


@pytest.mark.parametrize("kind", [k if k in FAST else pytest.param(k, marks=pytest.mark.slow) for k in SMALL])
def test_small_models_stand_for_the_real_one(kind: str) -> None:
    agree(config_of(kind))


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["text_model.encoder.layers", "vision_model.encoder.layers"])
@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_every_stack_of_a_model_of_text_and_images(kind: str, stack: str) -> None:
    text = {**ENCODER, "max_position_embeddings": 64, "projection_dim": 256, "projection_size": 256}
    vision = {
        "hidden_size": 192,
        "num_attention_heads": 6,
        "intermediate_size": 512,
        "num_hidden_layers": 5,
        "image_size": 64,
        "patch_size": 16,
        "projection_dim": 256,
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=vision, projection_dim=256
    )
    if kind == "Siglip":
        config.text_config.projection_size = 192
    description = agree(config, stack)
    assert description.width == (256 if "text" in stack else 192)
    assert description.depth == (8 if "text" in stack else 5)


@pytest.mark.slow
def test_a_text_and_image_config_gives_the_language_stack() -> None:
    text = {
        **DECODER,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "sliding_window": 32,
        "model_type": "gemma3_text",
    }
    vision = {
        "hidden_size": 192,
        "num_attention_heads": 6,
        "intermediate_size": 512,
        "num_hidden_layers": 5,
        "image_size": 64,
        "patch_size": 16,
    }
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    by_family, by_behaviour = describe(config), describe(config, stack="language_model.layers")
    assert (by_behaviour.window, by_behaviour.norm) == (by_family.window, by_family.norm)
    assert by_behaviour.value_gain == pytest.approx(by_family.value_gain, rel=WITHIN)


def test_sizes_notes_and_a_depth_of_its_own() -> None:
    description = describe(transformers.StableLmConfig(initializer_range=0.05), depth=20, tokens=96)
    assert (description.depth, description.tokens, description.width) == (20, 96, 2560)
    assert description.mlp_in_gain == pytest.approx(0.05 * math.sqrt(2560), rel=WITHIN)
    assert description.rope == 0.25
    (how,) = (line for line in description.assumed if line.startswith("read from StableLmModel"))
    assert "at width 64 and " in how and how.endswith("scaled to width 2560 and 20 layers")
    assert any("default of StableLmConfig" in line for line in description.assumed)


def test_scores_that_are_divided_by_the_number_of_the_layer() -> None:
    plain = transformers.GPT2Config(n_embd=256, n_head=4, n_layer=5, vocab_size=700, n_positions=128)
    config = transformers.GPT2Config(**plain.to_diff_dict() | {"scale_attn_by_inverse_layer_idx": True})
    by_layer, usual = describe(config, stack="h").score_gain, describe(plain, stack="h").score_gain
    assert isinstance(by_layer, tuple)
    assert by_layer == pytest.approx([usual / i for i in range(1, 6)], rel=2 * WITHIN)


def test_code_from_the_hub_is_never_run() -> None:
    remote = {
        "model_type": "stranger",
        "auto_map": {"AutoModel": "modeling_stranger.Stranger"},
        "hidden_size": 64,
    }
    with pytest.raises(BadInput, match=r"comes from the Hub .*not run here"):
        describe(remote)
    with pytest.raises(BadInput, match=r"'stabelm' is neither a family.*Did you mean stablelm"):
        describe({"model_type": "stabelm"})


def test_a_config_that_its_class_refuses_is_named_with_its_words() -> None:
    with pytest.raises(
        BadInput, match=r"transformers does not take this stablelm config: .*hidden_size"
    ) as error:
        describe({"model_type": "stablelm", "hidden_size": "wide"})
    assert error.value.__cause__ is not None


def test_without_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=r"pip install 'edgewise\[hf\]'"):
        describe({"model_type": "stablelm"})


def test_a_stack_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(BadInput, match=r"stack = 'tower'.*layers"):
        describe(transformers.OlmoConfig(), stack="tower")


def test_state_space_layers_have_their_true_reason() -> None:
    with pytest.raises(BadInput, match="without softmax attention"):
        describe(transformers.BambaConfig(attn_layer_indices=[1], num_hidden_layers=2))


@pytest.mark.parametrize(
    "config, words",
    [
        (
            {"model_type": "bart", "encoder_layers": 10**9, "d_model": 64},
            "encoder_layers must be at most 10,000",
        ),
        (
            {"model_type": "clip", "vision_config": {"num_hidden_layers": 10**9}},
            "num_hidden_layers must be at",
        ),
        (
            {"model_type": "swin", "depths": [2, 10**9]},
            "depths must be at most 10,000 in a config, got 1000000000",
        ),
    ],
)
def test_numbers_of_layers_without_end_are_rejected_at_once(config: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        describe(config)


def test_a_model_of_too_many_parts_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the config calls them."""
    monkeypatch.setattr(small_model, "MOST_CALLS", 2000)
    config = {"model_type": "bart", "encoder_layers": 40, "decoder_layers": 2, "d_model": 64}
    with pytest.raises(BadInput, match=r"too many parts \(layers, experts or heads\)"):
        describe(config)
