"""Translation of configs against what transformers really builds (measure_gains.py)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from edgewise.models import config as config_package
from edgewise.models.config.reader import truncated
from edgewise.models.config.translate import FAMILIES
from edgewise.models.describe import describe
from edgewise.models.source import preset_config
from edgewise.nouns.architecture import Architecture
from tests.support.models import CONFIGS, GROUPED

MEASURED = json.loads(Path(__file__).with_name("measured_gains.json").read_text())["families"]
WITHIN = 0.05


def mean(value: float | tuple[float, ...]) -> float:
    return sum(value) / len(value) if isinstance(value, tuple) else value


def expected(row: dict) -> dict[str, float]:
    """Our knobs from measured matrices."""
    gains = row["gains"]
    found = {
        "value_gain": gains["v"] * gains["o"],
        "output_gain": gains["o"],
        "mlp_in_gain": gains["in"],
        "mlp_out_gain": gains["out"],
        "score_gain": gains["q"] * gains["k"] * row["logit_scaling"],
        "key_gain": gains["k"],
    }
    found |= {"mlp_linear_gain": gains["linear"]} if "linear" in gains else {}
    found |= {"embedding_norm": row["norm"][0]} if "norm" in row else {}
    return found | ({"mlp_bias": row["bias"]} if "bias" in row else {})


def test_every_family_was_measured() -> None:
    assert set(MEASURED) == set(FAMILIES) - {"gemma3"}  # its text part is gemma3_text


@pytest.mark.parametrize("family", MEASURED)
def test_gains_are_those_of_the_real_matrices(family: str) -> None:
    row, described = MEASURED[family], describe(MEASURED[family]["config"])
    wanted = expected(row)
    if described.qk_norm:  # the matrices no longer set the scores; the logit scaling does
        wanted |= {"score_gain": row["logit_scaling"]}
        wanted.pop("key_gain")
    if family == "gpt_oss":  # YaRN multiplies cos and sin by 0.1 log(factor) + 1, so logits by its square
        wanted["score_gain"] *= (0.1 * math.log(32) + 1) ** 2
    for knob, value in wanted.items():
        assert mean(getattr(described, knob)) == pytest.approx(value, rel=WITHIN), knob


@pytest.mark.parametrize("family", MEASURED)
def test_shapes_and_notes_of_the_small_models(family: str) -> None:
    described = describe(MEASURED[family]["config"])
    assert (described.depth, described.width) == ((6, 512) if family == "torch_encoder" else (4, 256))
    marked = {"gemma2", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "t5"}
    assert bool(described.unmodelled) == (family in marked)


def small(family: str, **changes: object) -> Architecture:
    return describe(MEASURED[family]["config"] | changes)


def test_windows_per_layer() -> None:
    assert small("mistral").window == 16
    assert small("gemma2").window == (16, None, 16, None)
    assert small("gemma3_text").window == 16  # four layers of a pattern of six
    assert small("modernbert").window == (None, 9, 9, None)  # 8 to each side, and the token itself
    assert small("gpt_oss").window == (16, None, 16, None)
    upper = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3, "layer_types": None}
    assert small("qwen2", **upper).window == (None, None, None, 8)


def test_rotary_bases_and_fractions_in_the_spelling_of_both_versions() -> None:
    assert small("modernbert").rope_base == (160000.0, 10000.0, 10000.0, 160000.0)
    six = {"layer_types": None, "num_hidden_layers": 6}
    assert small("gemma3_text", **six).rope_base == (*[10000.0] * 5, 1000000.0)
    old = {"rope_parameters": None, "rope_theta": 7e5, "rope_local_base_freq": 5e3}
    assert small("gemma3_text", **six, **old).rope_base == (*[5e3] * 5, 7e5)
    assert small("gpt_neox").rope == 0.25
    assert small("gpt_neox", rope_parameters=None, rotary_pct=0.5, rotary_emb_base=500).rope == 0.5
    assert small("gpt_neox", rope_parameters=None, rotary_emb_base=500).rope_base == 500.0
    assert small("phi").rope == 0.5
    assert small("phi", rope_parameters=None, partial_rotary_factor=0.4).rope == 0.4
    assert small("llama", rope_parameters=None, rope_theta=3e4).rope_base == 3e4


def test_long_context_scaling_enters_the_logits() -> None:
    plain = small("llama")
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 512}
    stretched = small("llama", rope_parameters=yarn)
    assert stretched.score_gain == pytest.approx(plain.score_gain * (0.1 * math.log(4) + 1) ** 2)
    assert any("yarn" in note for note in stretched.assumed)
    slow = small("llama", rope_parameters={"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4})
    assert slow.score_gain == plain.score_gain
    long = {"rope_scaling": {"type": "longrope"}, "rope_parameters": None, "rope_theta": 1e4}
    phi3 = small("phi3", **long, max_position_embeddings=131072)
    root = math.sqrt(1 + math.log(32) / math.log(4096))
    assert phi3.score_gain == pytest.approx(small("phi3").score_gain * root**2)
    deepseek = {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    }
    scaled = small("deepseek_v3", rope_parameters=deepseek)
    assert scaled.score_gain == pytest.approx(small("deepseek_v3").score_gain * (0.1 * math.log(40) + 1) ** 2)


def test_activations() -> None:
    names = {
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu": "gelu",
        "swish": "silu",
        "relu": "relu",
        "quick_gelu": "quick_gelu",
        "gelu_pytorch_tanh": "gelu_tanh",
    }
    for theirs, ours in names.items():
        described = small("llama", hidden_act=theirs)
        assert (described.activation, described.unmodelled) == (ours, ())
    strange = small("llama", hidden_act="xielu")
    assert strange.activation == "gelu"
    assert "'xielu'" in strange.unmodelled[0]


def test_t5_variants() -> None:
    gated = small("t5", feed_forward_proj="gated-gelu")
    assert (gated.gated, gated.activation) == (True, "gelu_tanh")
    assert small("t5", feed_forward_proj="gated-silu").activation == "silu"
    assert any("'strange'" in reason for reason in small("t5", feed_forward_proj="strange").unmodelled)
    half = small("t5", initializer_factor=0.5)  # the norms carry the factor too
    assert (half.embedding_norm, half.score_gain, half.value_gain) == (0.25, 0.5**4, 0.5**3)


def test_gpt2_switches() -> None:
    by_layer = small("gpt2", scale_attn_by_inverse_layer_idx=True).score_gain
    assert by_layer == pytest.approx([small("gpt2").score_gain / i for i in (1, 2, 3, 4)])
    unscaled = small("gpt2", scale_attn_weights=False).score_gain
    assert unscaled == pytest.approx(small("gpt2").score_gain * 8)
    assert small("gpt2", n_inner=300).mlp_width == 300
    assert "cross-attention is left out" in small("gpt2", add_cross_attention=True).unmodelled


def test_opt_350m_is_post_norm_with_narrow_embeddings() -> None:
    described = small("opt", do_layer_norm_before=False, word_embed_proj_dim=64)
    assert described.norm == "post"
    assert described.embedding_norm == pytest.approx(0.06**2 * (1 + 64 * 0.06**2))


def test_falcon_variants() -> None:
    assert (small("falcon").kv_heads, small("falcon").parallel) == (1, True)
    assert small("falcon", new_decoder_architecture=True, num_kv_heads=2).kv_heads == 2
    assert small("falcon", multi_query=False).kv_heads == 4
    assert not small("falcon", parallel_attn=False).parallel
    linear = small("falcon", alibi=True)
    assert (linear.alibi, linear.rope, linear.symmetric) == (True, 0.0, False)
    assert any("ALiBi" in reason for reason in linear.unmodelled)


def test_granite_multipliers() -> None:
    described = small("granite")
    assert described.attention_branch == described.mlp_branch == 0.3
    assert described.embedding_norm == pytest.approx(12**2 * 0.06**2)


def test_bert_as_a_decoder_is_causal() -> None:
    described = small("bert", is_decoder=True, add_cross_attention=True)
    assert described.causal
    assert described.tokens == 128
    assert "cross-attention is left out" in described.unmodelled


def test_phi_with_normalised_queries() -> None:
    assert small("phi", qk_layernorm=True).qk_norm
    assert not small("phi").qk_norm


def test_dinov2_scales_its_branches_and_may_be_gated() -> None:
    assert small("dinov2").attention_branch == 0.5
    giant = small("dinov2", use_swiglu_ffn=True)
    assert (giant.gated, giant.activation, giant.mlp_width) == (True, "silu", 688)  # 2/3 of 1024, in eights


def test_images_need_not_be_square() -> None:
    assert small("vit", image_size=[64, 32]).tokens == 8 * 4 + 1
    assert any("this image has 65" in note for note in describe(MEASURED["vit"]["config"], tokens=9).assumed)


def test_text_inside_a_model_of_text_and_images() -> None:
    both = {"model_type": "gemma3", "text_config": MEASURED["gemma3_text"]["config"], "vision_config": {}}
    assert describe(both) == small("gemma3_text")
    assert describe(both, depth=7).depth == 7
    assert any("only the text decoder" in note for note in describe(both).assumed)


def test_gemma_in_both_directions() -> None:
    described = small("gemma3_text", use_bidirectional_attention=True)
    assert not described.causal
    assert described.unmodelled


def test_mixed_layers_keep_their_own_gains() -> None:
    """A dense layer among experts: its output gain follows from its own width, its branch is not scaled."""
    described = small("qwen3_moe")
    wide, narrow = 0.06 * math.sqrt(512), 0.06 * math.sqrt(256)
    assert described.mlp_out_gain == pytest.approx((narrow, wide, narrow, narrow))
    assert described.mlp_branch[1] == 1.0
    assert 1 / math.sqrt(4) < described.mlp_branch[0] < 1  # between equal weights and one expert alone


def test_routing_weights_match_simulation() -> None:
    """sqrt(sum of squared weights) against drawn router logits, of both kinds of router."""
    import numpy as np

    def rms(weights: np.ndarray) -> float:
        return float(np.sqrt((weights**2).sum(1).mean()))

    logits = np.random.default_rng(0).normal(0, 0.96, (20000, 16))
    top = np.sort(logits, axis=1)[:, -4:]
    softmax = np.exp(top) / np.exp(top).sum(1, keepdims=True)
    assert small("qwen3_moe").mlp_branch[0] == pytest.approx(rms(softmax), rel=0.05)
    raw = np.exp(top) / np.exp(logits).sum(1, keepdims=True)
    assert small("qwen3_moe", norm_topk_prob=False).mlp_branch[0] == pytest.approx(rms(raw), rel=0.05)
    sigmoid = 1 / (1 + np.exp(-top))
    routed = rms(2.5 * sigmoid / sigmoid.sum(1, keepdims=True))
    assert small("deepseek_v3").mlp_branch[1] == pytest.approx(math.hypot(routed, 1), rel=0.05)
    plain = small("deepseek_v3", norm_topk_prob=False).mlp_branch[1]
    assert plain == pytest.approx(math.hypot(rms(2.5 * sigmoid), 1), rel=0.05)


def test_unknown_layer_types_are_marked() -> None:
    described = small("gemma2", layer_types=["chunked_attention", *["full_attention"] * 3])
    assert described.window is None
    assert any("chunked_attention" in reason for reason in described.unmodelled)


@pytest.mark.parametrize("name", [*CONFIGS, "granite"])
def test_what_a_config_leaves_out_is_the_default_of_transformers(name: str) -> None:
    """Sizes alone, and all that transformers writes into a file, are one description."""
    class_name, _, sizes = CONFIGS.get(name, ("GraniteConfig", "", GROUPED))
    config = getattr(transformers, class_name)(**sizes)
    minimal = {"model_type": config.model_type} | sizes
    if name == "gptoss":  # its long context is in every file, and none is assumed where it is not
        minimal["rope_parameters"] = config.rope_parameters
    assert describe(minimal).knobs() == describe(config.to_dict()).knobs()


def test_a_cut_normal_is_narrower() -> None:
    """Against the textbook value at two sigma, and the limit of no cut."""
    assert truncated(1.0, 2.0) == pytest.approx(0.8796, abs=1e-4)
    assert truncated(0.02, 100.0) == pytest.approx(0.02)


def test_names_come_from_where_the_config_came_from() -> None:
    assert describe(preset_config("gpt2")).name == "gpt2"
    assert describe(preset_config("gpt2") | {"_name_or_path": "mine/own"}).name == "mine/own"


def test_reading_a_config_imports_no_torch() -> None:
    """Every module of models/config, imported alone: what a config says is known without the library it is for."""
    folder = Path(config_package.__file__).parent
    modules = [
        "edgewise.models.config." + ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    ]
    assert "edgewise.models.config.families.decoders" in modules
    script = (
        f"import sys\nfrom importlib import import_module\nfor name in {modules!r}:\n    import_module(name)\n"
        "print('HEAVY', *[m for m in ('torch', 'numpy', 'scipy', 'transformers') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["HEAVY"]
