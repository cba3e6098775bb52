"""From transformers: small models of unusual types, with truths from their modeling files."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .truth import Truth, ids, image, stranger

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 61,
}
LLAMA: dict[str, Any] = {
    "norm_kind": "rms",
    "gated": True,
    "activation": "silu",
    "positions": "rotary",
    "absolute": False,
}
EXPERTS = ("expert", "route", "input", "chosen")


def hf(name: str, kind: str, *truths: Truth, batch: Any = None, config: str = "", **settings: Any) -> None:
    """A model of class `kind` from its config, small."""

    def make() -> nn.Module:
        import transformers

        maker = getattr(transformers, kind)
        configuration = getattr(transformers, config) if config else maker.config_class
        model: nn.Module = maker(configuration(**settings))
        return model.train()

    feed = batch or (lambda: {"input_ids": ids(), "use_cache": False})
    stranger(name, *truths, batch=feed, origin="transformers", package="transformers")(make)


def only_ids() -> Any:
    return {"input_ids": ids()}


GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32, "vocab_size": 61}
hf("gpt-bigcode", "GPTBigCodeForCausalLM", Truth(3, kv_heads=1, tied=True), **GPT, n_inner=64)
hf(
    "gpt-j",
    "GPTJModel",
    Truth(3, parallel=True, positions="rotary", absolute=False),
    **GPT,
    rotary_dim=4,
    n_inner=64,
)
hf(
    "codegen",
    "CodeGenModel",
    Truth(4, parallel=True, positions="rotary", absolute=False),
    **{**GPT, "n_layer": 4},
    rotary_dim=8,
    n_ctx=32,
)
hf(
    "bloom",
    "BloomModel",
    Truth(3, positions="alibi", absolute=False),
    hidden_size=32,
    n_layer=3,
    n_head=4,
    vocab_size=61,
)
hf(
    "mpt",
    "MptModel",
    Truth(3, positions="alibi", absolute=False),
    d_model=32,
    n_layers=3,
    n_heads=4,
    expansion_ratio=2,
    vocab_size=61,
    max_seq_len=32,
)
hf(
    "falcon, new decoder",
    "FalconModel",
    Truth(3, kv_heads=2, parallel=True, positions="rotary", absolute=False),
    **SMALL,
    new_decoder_architecture=True,
    num_kv_heads=2,
    ffn_hidden_size=64,
)
hf(
    "cohere",
    "CohereModel",
    Truth(3, parallel=True, gated=True, activation="silu", positions="rotary", absolute=False),
    **SMALL,
)
hf(
    "olmo 2",
    "Olmo2Model",
    Truth(4, **LLAMA, norm="branch", qk_norm=True),
    **{**SMALL, "num_hidden_layers": 4},
)
hf(
    "gemma 2",
    "Gemma2Model",
    Truth(
        4,
        **{**LLAMA, "activation": "gelu"},
        norm="sandwich",
        kv_heads=2,
        reason=("cap",),
        sees=("causal window", "causal") * 2,
        window=5,
    ),
    **{**SMALL, "num_hidden_layers": 4},
    num_key_value_heads=2,
    head_dim=8,
    sliding_window=5,
)
hf(
    "gemma 3",
    "Gemma3TextModel",
    Truth(
        3,
        **{**LLAMA, "activation": "gelu"},
        norm="sandwich",
        kv_heads=2,
        qk_norm=True,
        sees=("causal window", "causal window", "causal"),
        window=5,
    ),
    **SMALL,
    num_key_value_heads=2,
    head_dim=8,
    sliding_window=5,
    layer_types=["sliding_attention", "sliding_attention", "full_attention"],
)
hf(
    "granite",
    "GraniteModel",
    Truth(3, **LLAMA, kv_heads=2, attention_branch=0.3, mlp_branch=0.3),
    **SMALL,
    num_key_value_heads=2,
    residual_multiplier=0.3,
    embedding_multiplier=4.0,
    attention_multiplier=0.2,
)
hf(
    "gpt-oss",
    "GptOssModel",
    Truth(
        2,
        **{**LLAMA, "gated": None, "activation": None},
        kv_heads=2,
        mlp_branch=None,
        sees=("causal window", "causal"),
        window=5,
        reason=("sink", "sum to one", *EXPERTS),
    ),
    **{**SMALL, "num_hidden_layers": 2},
    num_key_value_heads=2,
    head_dim=8,
    num_local_experts=4,
    num_experts_per_tok=2,
    sliding_window=5,
)
hf(
    "deepseek v3",
    "DeepseekV3Model",
    Truth(3, **LLAMA, mlp_branch=None, qk_norm=None, reason=("latent", *EXPERTS)),
    **SMALL,
    num_key_value_heads=4,
    q_lora_rank=16,
    kv_lora_rank=16,
    qk_rope_head_dim=4,
    qk_nope_head_dim=8,
    v_head_dim=8,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    moe_intermediate_size=32,
    first_k_dense_replace=1,
    n_shared_experts=1,
)
hf(
    "phi",
    "PhiModel",
    Truth(3, parallel=True, positions="rotary", absolute=False),
    **SMALL,
    partial_rotary_factor=0.5,
)
hf(
    "stablelm",
    "StableLmModel",
    Truth(3, gated=True, activation="silu", positions="rotary", absolute=False),
    **SMALL,
    num_key_value_heads=4,
)
hf(
    "persimmon",
    "PersimmonModel",
    Truth(3, qk_norm=True, activation=None, positions="rotary", absolute=False),
    **SMALL,
)
hf(
    "nemotron",
    "NemotronModel",
    Truth(  # its norms multiply by weight + 1, and weights start at one
        3,
        kv_heads=2,
        activation=None,
        positions="rotary",
        absolute=False,
        allowed=("NORM_GAIN_NOT_ONE",),
    ),
    **SMALL,
    num_key_value_heads=2,
    head_dim=8,
)
hf(
    "smollm 3",
    "SmolLM3Model",
    Truth(4, **{**LLAMA, "positions": None}, kv_heads=2, reason=("position", "rotary", "differ")),
    **{**SMALL, "num_hidden_layers": 4},
    num_key_value_heads=2,
    pad_token_id=0,
)
hf(
    "glm 4",
    "Glm4Model",
    Truth(3, **LLAMA, norm="sandwich", kv_heads=2),
    **SMALL,
    num_key_value_heads=2,
    head_dim=8,
    pad_token_id=0,
)
hf(
    "differential llama",
    "DiffLlamaModel",
    Truth(3, **LLAMA, heads=None, qk_norm=None, reason=("differ", "sum to one", "softmax", "mean of values")),
    **SMALL,
    num_key_value_heads=4,
)
hf(
    "opt, post-norm",
    "OPTModel",
    Truth(3, norm="post", activation="relu"),
    **{k: v for k, v in SMALL.items() if k != "intermediate_size"},
    ffn_dim=64,
    do_layer_norm_before=False,
    max_position_embeddings=32,
    word_embed_proj_dim=32,
)
hf("gpt 1", "OpenAIGPTModel", Truth(3, norm="post"), batch=only_ids, **GPT)
hf(
    "albert",
    "AlbertModel",
    Truth(4, norm="post", sees="full", shared=True),
    batch=only_ids,
    **{**SMALL, "num_hidden_layers": 4},
    embedding_size=16,
    max_position_embeddings=32,
)
hf(
    "roberta, pre-norm",
    "RobertaPreLayerNormModel",
    Truth(3, sees="full"),
    batch=only_ids,
    **SMALL,
    max_position_embeddings=40,
)
hf(
    "modernbert",
    "ModernBertModel",
    Truth(
        4,
        **{**LLAMA, "activation": "gelu", "norm_kind": "layer"},
        norm=None,
        sees=("full", "window", "window", "full"),
        window=None,
        reason=("norm", "differ", "window"),
    ),
    batch=only_ids,
    **{**SMALL, "num_hidden_layers": 4},
    local_attention=8,
    global_attn_every_n_layers=3,
    pad_token_id=0,
    cls_token_id=1,
    sep_token_id=2,
)
hf(
    "deberta v2",
    "DebertaV2Model",
    Truth(3, norm="post", sees="full", positions=None, absolute=None, reason=("position", "bias")),
    batch=only_ids,
    **SMALL,
    relative_attention=True,
    pos_att_type=["p2c", "c2p"],
    max_position_embeddings=32,
)
hf(
    "xlnet",
    "XLNetModel",
    Truth(3, norm="post", sees="full", positions=None, absolute=False, reason=("position", "bias")),
    batch=only_ids,
    d_model=32,
    n_layer=3,
    n_head=4,
    d_inner=64,
    vocab_size=61,
)
hf(
    "esm with rotary positions",
    "EsmModel",
    Truth(3, sees="full", positions="rotary", absolute=False),
    batch=only_ids,
    **SMALL,
    position_embedding_type="rotary",
    max_position_embeddings=32,
    pad_token_id=1,
    mask_token_id=60,
)
hf(
    "t5, gated",
    "T5Model",
    Truth(2, norm_kind="rms", sees="full", gated=True, positions="relative", absolute=False),
    Truth(3, norm_kind="rms", gated=True, positions="relative", absolute=False, reason=("cross",)),
    batch=lambda: {"input_ids": ids(), "decoder_input_ids": ids(), "use_cache": False},
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_decoder_layers=3,
    num_heads=4,
    vocab_size=61,
    feed_forward_proj="gated-gelu",
)
hf(
    "whisper",
    "WhisperModel",
    Truth(2, sees="full"),
    Truth(3, reason=("cross",)),
    batch=lambda: {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": ids(), "use_cache": False},
    d_model=32,
    encoder_layers=2,
    decoder_layers=3,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    num_mel_bins=8,
    max_source_positions=16,
    max_target_positions=32,
    vocab_size=61,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
hf(
    "beit with biases and layer scale",
    "BeitModel",
    Truth(3, sees="full", positions=None, absolute=False, attention_branch=0.1, mlp_branch=0.1),
    batch=lambda: {"pixel_values": image()},
    **{k: v for k, v in SMALL.items() if k != "vocab_size"},
    image_size=32,
    patch_size=8,
    use_relative_position_bias=True,
)
hf(
    "dinov2 with gates",
    "Dinov2Model",
    Truth(3, sees="full", gated=True, activation="silu"),
    batch=lambda: {"pixel_values": image()},
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    image_size=32,
    patch_size=8,
    use_swiglu_ffn=True,
)
hf(
    "clip, two towers",
    "CLIPModel",
    Truth(2, sees="causal"),
    Truth(3, sees="full"),
    batch=lambda: {
        "input_ids": ids(),
        "pixel_values": image(),
        "attention_mask": torch.ones(2, 16, dtype=torch.long),
    },
    text_config={
        **SMALL,
        "num_hidden_layers": 2,
        "max_position_embeddings": 32,
        "hidden_act": "gelu",
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 0,
    },
    vision_config={
        **{k: v for k, v in SMALL.items() if k != "vocab_size"},
        "image_size": 32,
        "patch_size": 8,
        "hidden_act": "gelu",
    },
    projection_dim=16,
)
NONE = ("no attention", "without softmax", "no softmax", "not a transformer", "mixer", "state")
hf(
    "fnet",
    "FNetModel",
    Truth(3, softmax=False, norm="post", sees="full", reason=NONE),
    batch=only_ids,
    **{k: v for k, v in SMALL.items() if k != "num_attention_heads"},
    max_position_embeddings=32,
)
hf(
    "rwkv",
    "RwkvModel",
    Truth(3, softmax=False, reason=(*NONE, "recurren")),
    batch=only_ids,
    hidden_size=32,
    num_hidden_layers=3,
    attention_hidden_size=32,
    intermediate_size=64,
    vocab_size=61,
    context_length=32,
)
hf(
    "mamba 2",
    "Mamba2Model",
    Truth(3, softmax=False, norm_kind="rms", reason=(*NONE, "recurren"), keep=("*A_log", "*dt_bias", "*.D")),
    batch=only_ids,
    hidden_size=32,
    num_hidden_layers=3,
    state_size=8,
    num_heads=4,
    head_dim=16,
    n_groups=1,
    vocab_size=61,
    expand=2,
    chunk_size=8,
)
hf(
    "lfm 2, convolutions and attention",
    "Lfm2Model",
    Truth(
        4,
        **{**LLAMA, "positions": None},
        kv_heads=2,
        qk_norm=True,
        attends=2,
        sees=None,
        attention_branch=None,
        reason=("convol", "mixer", "without softmax"),
    ),
    **{**SMALL, "num_hidden_layers": 4},
    num_key_value_heads=2,
    layer_types=["conv", "full_attention", "conv", "full_attention"],
    pad_token_id=0,
)
