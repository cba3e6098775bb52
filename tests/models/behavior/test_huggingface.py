"""Models that nobody here wrote, from config with their own initialization, against their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Reading, Stack

transformers = pytest.importorskip("transformers")
SIZES = dict(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=48,
    vocab_size=96,
    max_position_embeddings=64,
)
GROUPED = SIZES | dict(num_key_value_heads=2, head_dim=8)
SPECIAL = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
VISION = dict(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=48,
    image_size=16,
    patch_size=4,
)


def causal(kind: str, **settings: Any) -> Callable[[], Any]:
    def build() -> Any:
        config = getattr(transformers, f"{kind}Config")(**SPECIAL | settings)
        names = [f"{kind}ForCausalLM", f"{kind}LMHeadModel", f"{kind}Model"]
        return getattr(transformers, next(name for name in names if hasattr(transformers, name)))(config)

    return build


def masked(kind: str, **settings: Any) -> Callable[[], Any]:
    return lambda: getattr(transformers, f"{kind}ForMaskedLM")(
        getattr(transformers, f"{kind}Config")(**SPECIAL | settings)
    )


ROTARY, NOTHING = ("rotary",), ()
GPT = dict(n_layer=2, n_embd=32, n_head=4, vocab_size=96, n_positions=64)
CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "gpt2": (
        causal("GPT2", **GPT),
        dict(
            norm="pre",
            norm_kind="layer",
            causal=True,
            activation="gelu_tanh",
            gated=False,
            absolute=True,
            positions=(NOTHING,) * 2,
        ),
    ),
    "llama": (
        causal("Llama", **GROUPED),
        dict(
            norm="pre",
            norm_kind="rms",
            causal=True,
            activation="silu",
            gated=True,
            absolute=False,
            qk_norm=False,
            positions=(ROTARY,) * 2,
        ),
    ),
    "gemma2": (
        causal("Gemma2", **GROUPED, sliding_window=9),
        dict(norm="sandwich", norm_kind="rms", window=(9, None), activation="gelu_tanh", gated=True),
    ),
    "olmo2": (causal("Olmo2", **SIZES), dict(norm="branch", qk_norm=True, positions=(ROTARY,) * 2)),
    "bert": (
        masked("Bert", **SIZES),
        dict(norm="post", norm_kind="layer", causal=False, activation="gelu", absolute=True),
    ),
    "bloom": (
        causal("Bloom", n_layer=2, hidden_size=32, n_head=4, vocab_size=96),
        dict(positions=(("alibi",),) * 2, causal=True, norm="pre", absolute=False),
    ),
    "mpt": (
        causal("Mpt", n_layers=2, d_model=32, n_heads=4, vocab_size=96),
        dict(positions=(("alibi",),) * 2, causal=True, norm="pre", activation="gelu"),
    ),
    "falcon": (
        causal("Falcon", num_hidden_layers=2, hidden_size=32, num_attention_heads=4, vocab_size=96),
        dict(parallel=True, positions=(ROTARY,) * 2, causal=True),
    ),
    "gptj": (causal("GPTJ", **GPT, rotary_dim=4), dict(parallel=True, positions=(ROTARY,) * 2, gated=False)),
    "granite": (causal("Granite", **GROUPED | dict(residual_multiplier=0.22)), dict(norm="pre", gated=True)),
    "mistral": (causal("Mistral", **GROUPED, sliding_window=7), dict(window=(7, 7), causal=True)),
    "clip text": (
        lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**SIZES, **SPECIAL)),
        dict(causal=True, activation="quick_gelu", absolute=True, norm="pre"),
    ),
    "albert": (
        masked("Albert", **SIZES, embedding_size=16),
        dict(norm="post", causal=False, shared=True, activation="gelu_tanh"),
    ),
    "gpt_oss": (
        causal("GptOss", **GROUPED, sliding_window=7, num_local_experts=4, num_experts_per_tok=2),
        dict(window=(7, None), causal=True, positions=(ROTARY,) * 2, activation=None, gated=None),
    ),
    "qwen3_moe": (
        causal("Qwen3Moe", **GROUPED, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
        dict(qk_norm=True, activation="silu", gated=True),
    ),
    "vit": (
        lambda: transformers.ViTModel(transformers.ViTConfig(**VISION)),
        dict(
            causal=False,
            absolute=True,
            norm="pre",
            activation="gelu",
            positions=(NOTHING,) * 2,
            language=False,
        ),
    ),
    "cohere2": (
        causal("Cohere2", **GROUPED | dict(num_hidden_layers=4), sliding_window=7),
        dict(
            parallel=True,
            window=(7, 7, 7, None),
            positions=(ROTARY, ROTARY, ROTARY, NOTHING),
            norm_kind="layer",
        ),
    ),
    "modernbert": (
        masked(
            "ModernBert",
            **SIZES,
            local_attention=8,
            global_attn_every_n_layers=2,
            cls_token_id=1,
            sep_token_id=2,
        ),
        dict(causal=False, window=(None, 5), gated=True, norm="pre"),
    ),
    "opt": (
        causal(
            "OPT",
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            ffn_dim=48,
            vocab_size=96,
            max_position_embeddings=64,
            word_embed_proj_dim=32,
        ),
        dict(activation="relu", causal=True, norm="pre", absolute=True),
    ),
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def described(reading: Reading) -> Stack:
    stack = reading.default
    assert stack is not None and not stack.not_read and not reading.not_read, (stack, reading.not_read)
    return stack


@pytest.mark.parametrize("name", CASES)
def test_families(name: str) -> None:
    build, expected = CASES[name]
    stack = described(read(build().train()))
    assert stack.depth == expected.pop("depth", len(stack.window))
    assert {key: getattr(stack, key) for key in expected} == expected
    heads = {(b.heads, b.head_width) for b in stack.attentions}
    assert heads == {(4, 8)}


def test_sizes_of_grouped_heads_and_experts() -> None:
    stack = described(read(CASES["gemma2"][0]()))
    assert {branch.kv_heads for branch in stack.attentions} == {2}
    assert {branch.hidden_width for branch in stack.mlps} == {48}
    moe = described(read(CASES["qwen3_moe"][0]()))
    assert all(branch.experts and branch.hidden_width == 24 for branch in moe.mlps)


def test_sinks_and_clamped_gates_are_shown_as_numbers() -> None:
    stack = described(read(CASES["gpt_oss"][0]()))
    assert {branch.rows_sum_to_one for branch in stack.attentions} == {False}
    powers = stack.mlps[0].powers
    assert powers is not None and powers.small == pytest.approx(1, abs=0.05) and powers.large < 0.1


def test_residual_multipliers() -> None:
    stack = described(read(CASES["granite"][0]()))
    assert {branch.multiplier for branch in stack.branches} == {0.22}
    settings = GROUPED | dict(
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["full_attention"] * 2,
        full_attn_alpha_factor=3.5,
        full_attn_beta_factor=0.5,
        mlp_alpha_factor=2.0,
    )
    minimax = described(read(causal("MiniMax", **settings)()))
    assert {(b.skip, b.multiplier) for b in minimax.attentions} == {(3.5, 0.5)}
    assert {branch.skip for branch in minimax.mlps} == {2.0}


def test_encoder_and_decoder_are_two_stacks() -> None:
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=96, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config)
    encoder, decoder = read(model).stacks
    assert (encoder.name, decoder.name, encoder.default) == ("encoder.block", "decoder.block", True)
    assert (encoder.causal, decoder.causal) == (False, True) and not encoder.not_read and not decoder.not_read
    assert encoder.positions == decoder.positions == (("bias",),) * 2
    bias = model.encoder.block[0].layer[0].SelfAttention.compute_bias(encoder.tokens, encoder.tokens)
    seen = [branch.gains.position for branch in encoder.attentions if branch.gains]
    assert seen == pytest.approx([bias.detach().var(-1).mean().sqrt().item()] * 2, rel=1e-4)
    assert [branch.kind for branch in decoder.blocks[0].branches] == ["attention", "cross-attention", "mlp"]
    chosen = read(transformers.T5ForConditionalGeneration(config), stack="decoder.block").default
    assert chosen is not None and chosen.name == "decoder.block"


def test_the_language_stack_of_a_vision_language_model_is_the_default() -> None:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**GROUPED),
        vision_config=transformers.CLIPVisionConfig(**VISION),
        image_token_index=5,
    )
    reading = read(transformers.LlavaForConditionalGeneration(config))
    vision, text = reading.stacks
    assert text.default and text.causal and not vision.causal and vision.activation == "quick_gelu"
    assert text.activation == "silu" and not text.not_read


def test_state_spaces_are_measured_and_not_called_attention() -> None:
    model = causal("Mamba", num_hidden_layers=2, hidden_size=32, state_size=4, vocab_size=96)()
    stack = described(read(model))
    assert [branch.kind for branch in stack.branches] == ["mixer", "mixer"] and stack.causal
    assert [block.module for block in stack.blocks] == ["backbone.layers.0", "backbone.layers.1"]


@pytest.mark.parametrize(
    "kind, settings",
    [
        (
            "Gemma3nText",
            GROUPED
            | dict(
                vocab_size_per_layer_input=96,
                hidden_size_per_layer_input=8,
                laurel_rank=4,
                num_kv_shared_layers=0,
                layer_types=["full_attention"] * 2,
                activation_sparsity_pattern=[0.0, 0.0],
            ),
        ),
        ("MobileBert", SIZES | dict(embedding_size=16, intra_bottleneck_size=16)),
    ],
)
def test_several_streams_are_not_read(kind: str, settings: dict[str, Any]) -> None:
    model = (
        getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM", None)
        or transformers.MobileBertForMaskedLM
    )
    reading = read(model(getattr(transformers, f"{kind}Config")(**settings)))
    assert reading.not_read or all(stack.not_read for stack in reading.stacks)


def test_a_batch_of_the_users_own() -> None:
    model = CASES["llama"][0]()
    ids = torch.randint(3, 96, (3, 20))
    mask = torch.ones_like(ids)
    mask[0, 5:], mask[1, :8] = 0, 0  # one padded on the right, one on the left
    reading = read(model, {"input_ids": ids, "attention_mask": mask, "labels": ids})
    assert described(reading).causal and "input_ids (1, 20)" in reading.batch
