"""A small version of any transformers config: four layers with every kind of layer in it, width 256, 512 tokens.

    config = shrink(CONFIG_MAPPING["mistral"])

What a config calls its sizes is a fact about each family, so the names are listed here; what the list misses keeps its
published value. Where the small sizes contradict each other (the class refuses them), `caution` keeps more of the
published ones: 1 keeps all widths, 2 keeps everything but the depth.
"""

from __future__ import annotations

from typing import Any

LAYERS, WIDTH, HEADS, VOCABULARY, WINDOW = 4, 256, 4, 512, 16
HEAD_WIDTH = WIDTH // HEADS

DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "depth",
    "num_blocks",
    "encoder_layers",
    "decoder_layers",
    "layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "decoder_num_hidden_layers",
    "encoder_num_hidden_layers",
    "resampler_depth",
    "memory_attention_num_layers",
    "t2u_encoder_layers",
    "t2u_decoder_layers",
    "speech_encoder_layers",
)
WIDTHS = (
    "hidden_size",
    "d_model",
    "n_embd",
    "dim",
    "embed_dim",
    "emb_dim",
    "projection_dim",
    "projection_size",
    "word_embed_proj_dim",
    "out_hidden_size",
    "dim_model",
    "embedding_size",
    "text_hidden_size",
    "output_hidden_size",
    "output_dim",
    "encoder_hidden_size",
    "decoder_hidden_size",
    "attention_hidden_size",
    "lru_width",
    "text_embed_dim",
    "vision_embed_dim",
    "cross_attention_hidden_size",
    "pooler_hidden_size",
    "pooler_output_size",
    "hidden_size_global",
    "backbone_hidden_size",
    "mm_hidden_size",
    "text_dim",
    "vision_output_dim",
)
HEAD_COUNTS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "attention_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_num_attention_heads",
    "decoder_num_attention_heads",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_num_heads",
    "speech_encoder_attention_heads",
    "resampler_n_heads",
)
SHARED_HEAD_COUNTS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "encoder_num_key_value_heads",
    "decoder_num_key_value_heads",
    "num_global_key_value_heads",
    "kv_n_heads",
)
HIDDEN = (
    "intermediate_size",
    "ffn_dim",
    "d_ff",
    "n_inner",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ffn_hidden_size",
    "hidden_dim",
    "mlp_dim",
    "intermediate_dim",
    "dim_ff",
    "feed_forward_dim",
    "shared_intermediate_size",
    "intermediate_size_mlp",
    "decoder_intermediate_size",
    "speech_encoder_intermediate_size",
    "encoder_intermediate_size",
)
AT_MOST = {  # upper bounds: a published value below them stays
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "top_k": 2,
    "moe_topk": 2,
    "moe_k": 2,
    "n_group": 1,
    "topk_group": 1,
    "num_expert_group": 1,
    "first_k_dense_replace": 1,
    "num_dense_layers": 1,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "qk_head_dim": 48,
    "head_dim": HEAD_WIDTH,
    "global_head_dim": HEAD_WIDTH,
    "d_kv": HEAD_WIDTH,
    "dim_head": HEAD_WIDTH,
    "kv_channels": HEAD_WIDTH,
    "attention_head_dim": HEAD_WIDTH,
    "rotary_dim": 32,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_head_dim": 32,
    "mamba_d_head": 32,
    "mamba_headdim": 32,
    "mamba_head_dim": 32,
    "mamba_n_heads": 16,
    "mamba_num_heads": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
    "state_size": 16,
    "mamba_d_ssm": 512,
    "time_step_rank": 16,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "n_ctx": 512,
    "max_seq_len": 512,
    "max_source_positions": 512,
    "max_target_positions": 512,
    "sliding_window": WINDOW,
    "local_attention": WINDOW,
    "attention_chunk_size": WINDOW,
    "attention_window_size": WINDOW,
    "index_topk": 16,
    "index_head_dim": 32,
    "index_n_heads": 4,
    "hidden_size_per_layer_input": 32,
    "num_kv_shared_layers": 0,
    "max_2d_position_embeddings": 1024,
    "num_queries": 20,
    "num_denoising": 10,
}
VOCABULARIES = (
    "vocab_size",
    "n_vocab",
    "src_vocab_size",
    "tgt_vocab_size",
    "text_vocab_size",
    "vocab_size_per_layer_input",
    "input_vocab_size",
    "output_vocab_size",
)
IDENTITY = ("transformers_version", "architectures", "model_type", "_name_or_path", "dtype", "torch_dtype")


def shrink(config_class: type, caution: int = 0, settings: dict[str, Any] | None = None) -> Any:
    """The small config of a class; settings replace what the rules choose, part by part."""
    settings = settings or {}
    try:
        published = config_class()
    except Exception:  # noqa: BLE001  some classes have no default; then the settings must say what it needs
        published = config_class(**settings)
    return config_class(**_merged(_changes(published, caution), settings))


def _merged(values: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in settings.items():
        part = merged.get(name)
        merged[name] = _merged(part, value) if isinstance(part, dict) and isinstance(value, dict) else value
    return merged


def _plain(config: Any) -> dict[str, Any]:
    return {name: value for name, value in config.to_dict().items() if name not in IDENTITY}


def _changes(config: Any, caution: int) -> dict[str, Any]:
    values = _plain(config)
    depth = next((values[name] for name in DEPTHS if isinstance(values.get(name), int)), None)
    stages = any(isinstance(values.get(name), (list, tuple)) for name in (*HEAD_COUNTS, "depths"))
    changes: dict[str, Any] = {}
    for name, value in values.items():
        part = vars(config).get(name)
        if hasattr(part, "to_dict"):
            changes[name] = {**_plain(part), **_changes(part, caution), "model_type": part.model_type}
        elif isinstance(value, list) and depth and len(value) == depth:
            changes[name] = _one_of_each(value)
        elif name == "out_features" and value and not stages:
            changes |= {name: [f"stage{i}" for i in range(1, LAYERS + 1)][-len(value) :], "out_indices": None}
        elif isinstance(value, int) and not isinstance(value, bool):
            small = _small(name, value, values, caution, stages)
            if small != value:
                changes[name] = small
    return changes | ({} if caution else _rotary_sections(values))


def _one_of_each(kinds: list[Any]) -> list[Any]:
    """Four entries in their published order that hold as many different ones as there are."""
    first = kinds[:LAYERS]
    absent = [kind for kind in dict.fromkeys(map(str, kinds)) if kind not in map(str, first)]
    extra = [next(kind for kind in kinds if str(kind) == name) for name in absent][: LAYERS - 1]
    return first[: LAYERS - len(extra)] + extra


def _small(name: str, value: int, values: dict[str, Any], caution: int, stages: bool) -> int:
    if name in DEPTHS and value > 0:
        return LAYERS
    if caution > 1:
        return value
    if name in VOCABULARIES:
        return min(value, VOCABULARY)
    if name.endswith(("token_id", "token_index")):
        return value if value < VOCABULARY else 10 + sum(map(ord, name)) % 100
    if caution or stages:
        return value
    return _narrow(name, value, values)


def _narrow(name: str, value: int, values: dict[str, Any]) -> int:
    if name in WIDTHS and value > 0:
        return WIDTH
    if name in HEAD_COUNTS and value > 0:
        return HEADS
    if name in SHARED_HEAD_COUNTS:
        heads = next((values[known] for known in HEAD_COUNTS if isinstance(values.get(known), int)), value)
        return HEADS if value >= heads else min(value, HEADS // 2)
    if name in HIDDEN and value > 0:
        return 2 * WIDTH
    if name == "image_size":
        return 64
    if name == "patch_size" and value > 8:
        return 8
    return min(value, AT_MOST.get(name, value))


def _rotary_sections(values: dict[str, Any]) -> dict[str, Any]:
    """Sections of a rotation over time, height and width, which add up to half of what is rotated in a head."""
    changes = {}
    for name in ("rope_parameters", "rope_scaling"):
        rope = values.get(name)
        if isinstance(rope, dict) and "mrope_section" in rope:
            pairs = int(HEAD_WIDTH * rope.get("partial_rotary_factor", 1.0)) // 2
            changes[name] = {
                **rope,
                "mrope_section": [pairs // 2, pairs // 4, pairs - pairs // 2 - pairs // 4],
            }
    return changes
