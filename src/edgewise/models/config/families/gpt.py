"""GPT-2 and the decoders made after it: LayerNorm, a plain MLP with biases (0 at the start)."""

from __future__ import annotations

import math
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.config.reader import (
    ConfigReader,
    Shape,
    assume_tokens,
    gain,
    normal_gains,
    rope_base,
    rope_fraction,
    rope_scaling,
    with_query_key_norm,
)

Knobs = dict[str, Any]


def gpt2(config: ConfigReader) -> Knobs:
    """Output matrices s/sqrt(2 depth), positions added to the tokens: q = 2 s^2 at the input."""
    width, heads = config.integer("n_embd", "hidden_size"), config.integer("n_head", "num_attention_heads")
    depth, s = config.depth(), config.number("initializer_range", default=0.02)
    inner = config.integer("n_inner") if config.get("n_inner") else 4 * width
    shape = Shape(width, heads, heads, config.head_width(width, heads), inner)
    gains = normal_gains(shape, s, output=s / math.sqrt(2 * depth))
    if config.flag("add_cross_attention"):
        config.leave_out("cross-attention is left out")
    return {
        "depth": depth,
        **shape.knobs(),
        **gains,
        "score_gain": _gpt2_scores(config, gains["score_gain"], shape, depth),
        "tokens": assume_tokens(config, "n_positions", "max_position_embeddings", context=1024),
        "activation": config.activation("activation_function", default="gelu_new"),
        "norm": "pre",
        "norm_kind": "layer",
        "embedding_norm": 2 * s * s,
        "causal": True,
    }


def _gpt2_scores(config: ConfigReader, score: float, shape: Shape, depth: int) -> float | list[float]:
    """Logits may be left undivided by sqrt(head width), and may be divided by the number of the layer."""
    score *= 1.0 if config.flag("scale_attn_weights", default=True) else math.sqrt(shape.head_width)
    by_layer = config.flag("scale_attn_by_inverse_layer_idx")
    return [score / (i + 1) for i in range(depth)] if by_layer else score


def opt(config: ConfigReader) -> Knobs:
    """One standard deviation for all, positions added; post-norm in the 350M model only."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    s = config.number("init_std", default=0.02)
    shape = Shape(width, heads, heads, config.head_width(width, heads), config.integer("ffn_dim"))
    narrow = config.integer("word_embed_proj_dim") if config.get("word_embed_proj_dim") else width
    token = s * s if narrow == width else s * s * gain(s, narrow) ** 2
    return {
        "depth": config.depth(),
        **shape.knobs(),
        **normal_gains(shape, s),
        "tokens": assume_tokens(config, "max_position_embeddings", context=2048),
        "activation": config.activation("activation_function", default="relu"),
        "norm": "pre" if config.flag("do_layer_norm_before", default=True) else "post",
        "norm_kind": "layer",
        "embedding_norm": token + s * s,
        "causal": True,
    }


def gpt_neox(config: ConfigReader) -> Knobs:
    """Pythia: a parallel block, a quarter of each head rotated."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    shape = Shape(width, heads, heads, config.head_width(width, heads), config.integer("intermediate_size"))
    depth = config.depth()
    inward, outward = _neox_deviations(config, width, depth)
    return {
        "depth": depth,
        **shape.knobs(),
        **normal_gains(shape, inward, output=outward, scaling=rope_scaling(config)),
        "tokens": assume_tokens(config, "max_position_embeddings", context=2048),
        "activation": config.activation("hidden_act", default="gelu"),
        "norm": "pre",
        "norm_kind": "layer",
        "embedding_norm": inward * inward,
        "causal": True,
        "parallel": config.flag("use_parallel_residual", default=True),
        "rope": rope_fraction(config, "rotary_pct", default=0.25),
        "rope_base": rope_base(config, "rotary_emb_base", "rope_theta", default=10000.0),
    }


def _neox_deviations(config: ConfigReader, width: int, depth: int) -> tuple[float, float]:
    """Standard deviations of the inner and the output matrices.

    transformers draws both with `initializer_range`. GPT-NeoX, which trained Pythia, names two methods in its
    own files; where a config carries them they win: small_init sqrt(2/(5 d)) [Nguyen 2019], wang_init
    2/(L sqrt d), scaled_normal s/sqrt(2 L).
    """
    s = config.number("initializer_range", default=0.02)
    methods = {
        "normal": s,
        "small_init": math.sqrt(2 / (5 * width)),
        "wang_init": 2 / (depth * math.sqrt(width)),
        "scaled_normal": s / math.sqrt(2 * depth),
    }
    names = [config.get(key) or "normal" for key in ("init_method", "output_layer_init_method")]
    for name in names:
        if name not in methods:
            raise BadInput(f"init method {name!r} of a gpt_neox config is unknown: use {', '.join(methods)}.")
    return methods[names[0]], methods[names[1]]


def phi(config: ConfigReader) -> Knobs:
    """Phi 1 and 2: a parallel block with one norm, half of each head rotated."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads") if config.get("num_key_value_heads") else heads
    inner = config.integer("intermediate_size")
    shape = Shape(width, heads, kv_heads, config.head_width(width, heads), inner)
    s, scaling = config.number("initializer_range", default=0.02), rope_scaling(config)
    gains = normal_gains(shape, s, scaling=scaling)
    return {
        "depth": config.depth(),
        **shape.knobs(),
        **(with_query_key_norm(gains, scaling) if config.flag("qk_layernorm") else gains),
        "tokens": assume_tokens(config, "max_position_embeddings", context=2048),
        "activation": config.activation("hidden_act", default="gelu_new"),
        "norm": "pre",
        "norm_kind": "layer",
        "embedding_norm": s * s,
        "causal": True,
        "parallel": True,
        "rope": rope_fraction(config, default=0.5),
        "rope_base": rope_base(config, "rope_theta", default=10000.0),
    }


def falcon(config: ConfigReader) -> Knobs:
    """A parallel block with one or two norms, one key head or a few, rotation or ALiBi."""
    width = config.integer("hidden_size", "n_embed")
    heads = config.integer("num_attention_heads", "n_head")
    new = config.flag("new_decoder_architecture")
    inner = config.integer("ffn_hidden_size") if config.get("ffn_hidden_size") else 4 * width
    shape = Shape(width, heads, _falcon_kv_heads(config, heads, new), config.head_width(width, heads), inner)
    s, alibi = config.number("initializer_range", default=0.02), config.flag("alibi")
    if alibi:
        config.leave_out("Falcon divides ALiBi slopes by sqrt(head width); full slopes are used")
    return {
        "depth": config.depth(),
        **shape.knobs(),
        **normal_gains(shape, s, scaling=1.0 if alibi else rope_scaling(config)),
        "tokens": assume_tokens(config, "max_position_embeddings", context=2048),
        "activation": config.activation("activation", default="gelu"),
        "norm": "pre",
        "norm_kind": "layer",
        "embedding_norm": s * s,
        "causal": True,
        "parallel": new or config.flag("parallel_attn", default=True),
        "alibi": alibi,
        "rope": 0.0 if alibi else 1.0,
        "rope_base": 10000.0 if alibi else rope_base(config, "rope_theta", default=10000.0),
    }


def _falcon_kv_heads(config: ConfigReader, heads: int, new: bool) -> int:
    if not new and config.flag("multi_query", default=True):
        return 1
    return config.integer("num_kv_heads", "n_head_kv") if config.get("num_kv_heads", "n_head_kv") else heads
