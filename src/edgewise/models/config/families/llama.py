"""Llama and the decoders made after it: pre-norm (or around it), RMSNorm, gated MLP, rotary positions.

transformers draws every matrix of these families with one standard deviation, `initializer_range`, whatever
its fan-in and the depth, and the norms start at 1.
"""

from __future__ import annotations

import math
from typing import Any

from edgewise.models.config.gains import Shape, normal_gains, with_query_key_norm
from edgewise.models.config.positions import (
    FULL,
    SLIDING,
    layer_types,
    one_or_all,
    rope_base,
    rope_fraction,
    rope_scaling,
    windows,
)
from edgewise.models.config.reader import ConfigReader, assume_tokens

Knobs = dict[str, Any]


def llama(
    config: ConfigReader, *, activation: str = "silu", base: float = 10000.0, head_width: int | None = None
) -> Knobs:
    """Llama 1 to 3; the others change what differs."""
    shape, s = decoder_shape(config, head_width), config.number("initializer_range", default=0.02)
    return {
        "depth": config.depth(),
        **shape.knobs(),
        "tokens": assume_tokens(config, "max_position_embeddings", context=2048),
        "activation": config.activation("hidden_act", "hidden_activation", default=activation),
        "gated": True,
        "norm": "pre",
        "norm_kind": "rms",
        "embedding_norm": s * s,
        "causal": True,
        "rope": rope_fraction(config),
        "rope_base": rope_base(config, "rope_theta", default=base),
        **normal_gains(shape, s, gated=True, scaling=rope_scaling(config)),
    }


def decoder_shape(config: ConfigReader, head_width: int | None = None) -> Shape:
    """Sizes under their usual names; heads are width/heads wide unless config or family say otherwise."""
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if head_width or config.get("head_dim"):
        head_width = config.integer("head_dim", default=head_width)
    else:
        head_width = config.head_width(width, heads)
    kv_heads = config.integer("num_key_value_heads") if config.get("num_key_value_heads") else heads
    return Shape(width, heads, kv_heads, head_width, config.integer("intermediate_size"))


def mistral(config: ConfigReader, base: float = 10000.0) -> Knobs:
    """Llama with a sliding window in every layer (null in later versions)."""
    return llama(config, base=base) | {"window": window_of(config)}


phi3 = mistral  # fused matrices, the same numbers


def window_of(config: ConfigReader) -> int | None:
    return config.integer("sliding_window") if config.get("sliding_window") else None


def qwen2(config: ConfigReader, head_width: int | None = None) -> Knobs:
    """Llama with biases (0 at the start) and a window in the upper layers, if switched on."""
    knobs = llama(config, head_width=head_width)
    if not config.flag("use_sliding_window"):
        return knobs
    first = "max_window_layers"
    types = layer_types(config, knobs["depth"], lambda i: i >= config.integer(first, default=28))
    return knobs | {"window": windows(config, types, window_of(config))}


def qwen3(config: ConfigReader) -> Knobs:
    """Qwen2 with normalised queries and keys, and heads of 128 unless the config says otherwise."""
    return with_query_key_norm(qwen2(config, head_width=128), rope_scaling(config))


def olmo2(config: ConfigReader) -> Knobs:
    """Norms after the branches and none before them; normalised queries and keys (over all heads at once)."""
    return with_query_key_norm(llama(config), rope_scaling(config)) | {"norm": "branch"}


def granite(config: ConfigReader) -> Knobs:
    """Llama with the multipliers of maximal update parametrization."""
    knobs = llama(config)
    embedding = config.number("embedding_multiplier", default=1.0)
    branch = config.number("residual_multiplier", default=1.0)
    logit = config.number("attention_multiplier", default=1.0) * math.sqrt(knobs["head_width"])
    return knobs | {
        "embedding_norm": knobs["embedding_norm"] * embedding**2,
        "score_gain": knobs["score_gain"] * logit,
        "attention_branch": branch,
        "mlp_branch": branch,
    }


def gemma2(config: ConfigReader) -> Knobs:
    """Norms on both sides of a branch, embeddings times sqrt(width), every second layer with a window."""
    knobs = llama(config, activation="gelu_pytorch_tanh", head_width=256)
    types = layer_types(config, knobs["depth"], lambda i: i % 2 == 0)
    if config.get("attn_logit_softcapping"):
        config.leave_out(f"logits are capped softly at {config.get('attn_logit_softcapping')}")
    return _gemma(config, knobs) | {
        "score_gain": knobs["score_gain"] * _query_scaling(config, knobs["head_width"]),
        "window": windows(config, types, window_of(config)),
    }


def gemma3(config: ConfigReader) -> Knobs:
    """Gemma 2 with normalised queries and keys; five windowed layers, of their own base, to one full."""
    knobs = llama(config, activation="gelu_pytorch_tanh", base=1_000_000.0, head_width=256)
    period = ("sliding_window_pattern", "_sliding_window_pattern")
    types = layer_types(config, knobs["depth"], lambda i: (i + 1) % config.integer(*period, default=6) != 0)
    bases = {
        FULL: rope_base(config, "rope_theta", default=1_000_000.0, layer_type=FULL),
        SLIDING: rope_base(config, "rope_local_base_freq", default=10000.0, layer_type=SLIDING),
    }
    return with_query_key_norm(_gemma(config, knobs), _query_scaling(config, knobs["head_width"])) | {
        "window": windows(config, types, window_of(config)),
        "rope_base": one_or_all([bases.get(kind, bases[FULL]) for kind in types]),
    }


def _gemma(config: ConfigReader, knobs: Knobs) -> Knobs:
    if config.flag("use_bidirectional_attention"):
        config.leave_out("a decoder used in both directions: its window is taken as given")
    return knobs | {
        "norm": "sandwich",
        "embedding_norm": knobs["embedding_norm"] * knobs["width"],
        "causal": not config.flag("use_bidirectional_attention"),
    }


def _query_scaling(config: ConfigReader, head_width: int) -> float:
    """Logits are divided by sqrt(query_pre_attn_scalar), not by sqrt(head width)."""
    return math.sqrt(head_width / config.positive("query_pre_attn_scalar", default=256.0))
