"""Decoders: Llama and its descendants, mixtures of experts; GPT-2 and those after it, with LayerNorm and biases."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.config.reader import (
    FULL,
    SLIDING,
    ConfigReader,
    Shape,
    assume_tokens,
    gain,
    layer_types,
    normal_gains,
    one_or_all,
    rope_base,
    rope_fraction,
    rope_scaling,
    windows,
    with_query_key_norm,
)

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
    """Qwen2 with normalized queries and keys, and heads of 128 unless the config says otherwise."""
    return with_query_key_norm(qwen2(config, head_width=128), rope_scaling(config))


def olmo2(config: ConfigReader) -> Knobs:
    """Norms after the branches and none before them; normalized queries and keys (over all heads at once)."""
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
    """Gemma 2 with normalized queries and keys; five windowed layers, of their own base, to one full."""
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


MOST_EXPERTS, WIDEST = (
    100_000,
    50.0,
)  # beyond them one expert takes everything, or exp(logit) leaves the numbers


def mixtral(config: ConfigReader) -> Knobs:
    """Mistral with chosen experts, their weights summing to 1."""
    knobs = mistral(config, base=1_000_000.0)
    return knobs | {"mlp_branch": _routed(config, knobs["mlp_in_gain"], normalized=True)}


def qwen3_moe(config: ConfigReader) -> Knobs:
    """Qwen3 with experts in all layers but those named."""
    window = window_of(config) if config.flag("use_sliding_window") else None
    knobs = with_query_key_norm(llama(config), rope_scaling(config)) | {"window": window}
    s, narrow = config.number("initializer_range", default=0.02), config.integer("moe_intermediate_size")
    weight = _routed(config, knobs["mlp_in_gain"], normalized=config.flag("norm_topk_prob"))
    plain, step = set(config.get("mlp_only_layers") or ()), config.integer("decoder_sparse_step", default=1)
    dense = [i in plain or (i + 1) % step != 0 for i in range(knobs["depth"])]
    return knobs | _mixed(dense, s, wide=knobs["mlp_width"], narrow=narrow, weight=weight)


def gpt_oss(config: ConfigReader) -> Knobs:
    """Alternating windows, attention sinks, and experts (up + 1) * quick_gelu(gate)."""
    knobs = llama(config, base=150000.0, head_width=64)
    types = layer_types(config, knobs["depth"], lambda i: i % 2 == 0)
    config.unmodelled += [
        "attention sinks are left out",
        "the linear half of the experts is shifted by 1 and clamped, which is left out",
    ]
    return knobs | {
        "activation": "quick_gelu",
        "window": windows(config, types, window_of(config)),
        "mlp_branch": _routed(config, knobs["mlp_in_gain"], normalized=True),
    }


def deepseek_v3(config: ConfigReader) -> Knobs:
    """Latent attention, a few dense layers, then one shared expert beside the chosen ones."""
    knobs, s = llama(config), config.number("initializer_range", default=0.02)
    narrow, shared = config.integer("moe_intermediate_size"), config.number("n_shared_experts", default=1)
    scale = config.number("routed_scaling_factor", default=2.5)
    normalized = config.flag("norm_topk_prob", default=True)
    weight = scale * _routed(config, knobs["mlp_in_gain"], normalized=normalized, score=_sigmoid)
    first = int(config.number("first_k_dense_replace", default=0))
    dense = [i < first for i in range(knobs["depth"])]
    # The shared expert is always on and `shared` experts wide: it adds `shared` to the squared weights.
    mlp = _mixed(dense, s, wide=knobs["mlp_width"], narrow=narrow, weight=math.sqrt(weight**2 + shared))
    return knobs | mlp | _latent_attention(config, s, rope_scaling(config))


def _latent_attention(config: ConfigReader, s: float, scaling: float) -> Knobs:
    """Queries, keys and values are read from normalized low-rank latents, so the ranks are the fan-ins.

    The rotated part of a key is read from the stream itself, with another gain; the score gain is that of the
    mean square over both parts, and the rotated fraction is the rotated part's share of it.
    """
    config.leave_out("latent attention: the latents are taken as wide, so that their norms do not fluctuate")
    shape = decoder_shape(config)
    plain, rotated = config.integer("qk_nope_head_dim"), config.integer("qk_rope_head_dim")
    rank = config.integer("kv_lora_rank")
    query = gain(s, config.integer("q_lora_rank") if config.get("q_lora_rank") else shape.width)
    still, turned = plain * gain(s, rank) ** 2, rotated * gain(s, shape.width) ** 2
    key = math.sqrt((still + turned) / (plain + rotated))
    output = gain(s, shape.heads * config.integer("v_head_dim"))
    return {
        "head_width": plain + rotated,
        "rope": rotated * shape.width / (plain * rank + rotated * shape.width),
        "score_gain": query * key * scaling,
        "key_gain": key,
        "value_gain": gain(s, rank) * output,
        "output_gain": output,
    }


def _routed(config: ConfigReader, spread: float, *, normalized: bool, score: Any = math.exp) -> float:
    """sqrt(sum of squared routing weights) of the chosen experts.

    Router logits are Gaussian with standard deviation `spread` (the router is drawn like any matrix); the k
    largest of m are put at their quantiles.
    """
    experts = config.integer("num_local_experts", "num_experts", "n_routed_experts")
    active = config.integer("num_experts_per_tok", "top_k")
    config.leave_out(
        f"mixture-of-experts routing: {active} of {experts} experts stand as one, scaled by mean weights"
    )
    if experts > MOST_EXPERTS or not spread <= WIDEST:
        raise BadInput(
            f"{experts} experts with router logits of standard deviation {spread:.3g} in a {config.family} config: "
            f"expected at most {MOST_EXPERTS} and {WIDEST:g}. Check the number of experts and initializer_range."
        )
    quantiles = (NormalDist().inv_cdf((experts - i - 0.5) / experts) for i in range(experts))
    scores = [score(spread * z) for z in quantiles]
    total = sum(scores[:active]) if normalized else (sum(scores) if score is math.exp else 1.0)
    return math.sqrt(sum((w / total) ** 2 for w in scores[:active]))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _mixed(dense: list[bool], s: float, *, wide: int, narrow: int, weight: float) -> Knobs:
    """Wide MLPs in some layers, narrow experts in the others: the width of most, the exact gains of each."""
    return {
        "mlp_width": wide if sum(dense) * 2 > len(dense) else narrow,
        "mlp_out_gain": one_or_all([gain(s, wide if plain else narrow) for plain in dense]),
        "mlp_branch": one_or_all([1.0 if plain else weight for plain in dense]),
    }


# GPT-2 and the decoders made after it: LayerNorm, a plain MLP with biases (0 at the start).


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
