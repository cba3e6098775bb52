"""Mixtures of experts, described as one expert with its branch scaled by the routing weights: extrapolated.

A token's output is sum_i w_i expert_i over the chosen experts, which are independent at the start, so its
norm is that of one expert times sqrt(sum w_i^2). That two tokens may visit different experts is not modelled.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.config.families.llama import decoder_shape, llama, mistral, window_of
from edgewise.models.config.gains import gain, with_query_key_norm
from edgewise.models.config.positions import layer_types, one_or_all, rope_scaling, windows
from edgewise.models.config.reader import ConfigReader

Knobs = dict[str, Any]
MOST_EXPERTS, WIDEST = (
    100_000,
    50.0,
)  # beyond them one expert takes everything, or exp(logit) leaves the numbers


def mixtral(config: ConfigReader) -> Knobs:
    """Mistral with chosen experts, their weights summing to 1."""
    knobs = mistral(config, base=1_000_000.0)
    return knobs | {"mlp_branch": _routed(config, knobs["mlp_in_gain"], normalised=True)}


def qwen3_moe(config: ConfigReader) -> Knobs:
    """Qwen3 with experts in all layers but those named."""
    window = window_of(config) if config.flag("use_sliding_window") else None
    knobs = with_query_key_norm(llama(config), rope_scaling(config)) | {"window": window}
    s, narrow = config.number("initializer_range", default=0.02), config.integer("moe_intermediate_size")
    weight = _routed(config, knobs["mlp_in_gain"], normalised=config.flag("norm_topk_prob"))
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
        "mlp_branch": _routed(config, knobs["mlp_in_gain"], normalised=True),
    }


def deepseek_v3(config: ConfigReader) -> Knobs:
    """Latent attention, a few dense layers, then one shared expert beside the chosen ones."""
    knobs, s = llama(config), config.number("initializer_range", default=0.02)
    narrow, shared = config.integer("moe_intermediate_size"), config.number("n_shared_experts", default=1)
    scale = config.number("routed_scaling_factor", default=2.5)
    normalised = config.flag("norm_topk_prob", default=True)
    weight = scale * _routed(config, knobs["mlp_in_gain"], normalised=normalised, score=_sigmoid)
    first = int(config.number("first_k_dense_replace", default=0))
    dense = [i < first for i in range(knobs["depth"])]
    # The shared expert is always on and `shared` experts wide: it adds `shared` to the squared weights.
    mlp = _mixed(dense, s, wide=knobs["mlp_width"], narrow=narrow, weight=math.sqrt(weight**2 + shared))
    return knobs | mlp | _latent_attention(config, s, rope_scaling(config))


def _latent_attention(config: ConfigReader, s: float, scaling: float) -> Knobs:
    """Queries, keys and values are read from normalised low-rank latents, so the ranks are the fan-ins.

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


def _routed(config: ConfigReader, spread: float, *, normalised: bool, score: Any = math.exp) -> float:
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
    total = sum(scores[:active]) if normalised else (sum(scores) if score is math.exp else 1.0)
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
