"""Encoders of text, sound and images."""

from __future__ import annotations

import math
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.config.reader import (
    DENSE,
    FULL,
    SLIDING,
    SYMMETRIC,
    ConfigReader,
    Shape,
    assume_tokens,
    layer_types,
    normal_gains,
    one_or_all,
    rope_base,
    rope_scaling,
    truncated,
    windows,
)

Knobs = dict[str, Any]


def vit(config: ConfigReader) -> Knobs:
    """One class token, random positions."""
    return _vision(config, _shape(config), extra=1, random_positions=True)


def deit(config: ConfigReader) -> Knobs:
    """Class and distillation token; positions start at zero in transformers."""
    return _vision(config, _shape(config), extra=2, random_positions=False)


def dinov2(config: ConfigReader) -> Knobs:
    """ViT with a learned scale on every branch; the giant one is gated."""
    gated = config.flag("use_swiglu_ffn")
    width, ratio = config.integer("hidden_size"), config.number("mlp_ratio", default=4)
    inner = int(width * ratio)
    shape = _shape(config, (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner)
    scale = config.number("layerscale_value", default=1.0)
    knobs = _vision(config, shape, extra=1, random_positions=True, gated=gated, patch=14)
    knobs |= {"attention_branch": scale, "mlp_branch": scale}
    return knobs | ({"activation": "silu"} if gated else {})


def _shape(config: ConfigReader, inner: int | None = None) -> Shape:
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    inner = inner or config.integer("intermediate_size")
    return Shape(width, heads, heads, config.head_width(width, heads), inner)


def _vision(
    config: ConfigReader,
    shape: Shape,
    *,
    extra: int,
    random_positions: bool,
    gated: bool = False,
    patch: int = 16,
) -> Knobs:
    s = config.number("initializer_range", default=0.02)
    patches, pixels = _patches(config, patch)
    config.assume(f"embedding_norm: that of {pixels} independent pixels of unit variance in a patch")
    if config.tokens is not None and config.tokens != patches + extra:
        config.assume(f"tokens: {config.tokens} as requested; this image has {patches + extra}")
    return {
        "depth": config.depth(),
        **shape.knobs(),
        **normal_gains(shape, s, gated=gated),
        "tokens": config.tokens or patches + extra,
        "gated": gated,
        "activation": config.activation("hidden_act", default="gelu"),
        "norm": "pre",
        "norm_kind": "layer",
        "embedding_norm": s * s * (pixels + random_positions),
    }


def _patches(config: ConfigReader, side: int) -> tuple[int, int]:
    """Patches of an image, numbers in a patch."""
    image, patch = _sides(config, "image_size", 224), _sides(config, "patch_size", side)
    counts = [whole // part for whole, part in zip(image, patch, strict=True)]
    if 0 in counts:
        raise BadInput(f"a patch_size of {patch} does not fit into an image_size of {image}. Check both.")
    return counts[0] * counts[1], patch[0] * patch[1] * config.integer("num_channels", default=3)


def _sides(config: ConfigReader, name: str, default: int) -> tuple[int, int]:
    value = config.get(name)
    if isinstance(value, (list, tuple)) and len(value) == 2:
        one, other = (ConfigReader({"model_type": config.family, name: side}).integer(name) for side in value)
        return one, other
    side = config.integer(name, default=default)
    return side, side


def bert(config: ConfigReader) -> Knobs:
    """Post-norm; the embeddings end in a LayerNorm, so q = 1 at the input. RoBERTa starts the same way.

    An embedding is token + position + segment, and all tokens of one segment share the last: overlap 1/3.
    """
    width, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    shape = Shape(width, heads, heads, config.head_width(width, heads), config.integer("intermediate_size"))
    causal = config.flag("is_decoder")
    most = DENSE if causal else SYMMETRIC
    config.assume("start overlap: 0; the shared segment embedding makes it 1/3, set --start-overlap 0.333")
    if config.flag("add_cross_attention"):
        config.leave_out("cross-attention is left out")
    return {
        "depth": config.depth(),
        **shape.knobs(),
        **normal_gains(shape, config.number("initializer_range", default=0.02)),
        "tokens": assume_tokens(config, "max_position_embeddings", context=512, most=most),
        "activation": config.activation("hidden_act", default="gelu"),
        "norm": "post",
        "norm_kind": "layer",
        "embedding_norm": 1.0,
        "causal": causal,
    }


def modernbert(config: ConfigReader) -> Knobs:
    """Pre-norm, gated GELU, rotation, windows in two layers of three; weights cut at two sigma."""
    width, heads, depth = config.integer("hidden_size"), config.integer("num_attention_heads"), config.depth()
    shape = Shape(width, heads, heads, config.head_width(width, heads), config.integer("intermediate_size"))
    cutoff = config.number("initializer_cutoff_factor", default=2.0)
    s = truncated(config.number("initializer_range", default=0.02), cutoff)
    every = "global_attn_every_n_layers"
    types = layer_types(config, depth, lambda i: i % config.integer(every, default=3) != 0)
    bases = {
        FULL: rope_base(config, "global_rope_theta", default=160000.0, layer_type=FULL),
        SLIDING: rope_base(config, "local_rope_theta", default=10000.0, layer_type=SLIDING),
    }
    # local_attention counts both sides: |a - b| <= half of it, and our window counts the token itself.
    window = config.integer("local_attention", default=128) // 2 + 1
    return {
        "depth": depth,
        **shape.knobs(),
        **normal_gains(shape, s, output=s / math.sqrt(2 * depth), gated=True, scaling=rope_scaling(config)),
        "tokens": assume_tokens(config, "max_position_embeddings", context=8192),
        "activation": config.activation("hidden_activation", default="gelu"),
        "gated": True,
        "norm": "pre",
        "norm_kind": "layer",
        "embedding_norm": 1.0,
        "window": windows(config, types, window),
        "rope": 1.0,
        "rope_base": one_or_all([bases.get(kind, bases[FULL]) for kind in types]),
    }


def t5(config: ConfigReader) -> Knobs:
    """The encoder of T5: fan-in scaled matrices, unscaled logits with W_Q smaller by sqrt(d_kv): all gains f.

    The norms start at f = initializer_factor too, so every branch input carries another factor f.
    """
    width, heads = config.integer("d_model"), config.integer("num_heads")
    shape = Shape(width, heads, heads, config.integer("d_kv"), config.integer("d_ff"))
    f = config.number("initializer_factor", default=1.0)
    kind = str(config.get("feed_forward_proj") or "relu")
    gated, name = kind.startswith("gated-"), kind.removeprefix("gated-")
    config.leave_out("T5 is described by its encoder alone: no decoder, no cross-attention")
    return {
        "depth": config.depth(),
        **shape.knobs(),
        "tokens": _t5_tokens(config),
        "gated": gated,
        "activation": _t5_activation(config, gated, name),
        "norm": "pre",
        "norm_kind": "rms",
        "embedding_norm": f * f,
        "position_bias": f / math.sqrt(width),
        "score_gain": f**4,
        "key_gain": f * f,
        "value_gain": f**3,
        "output_gain": f,
        "mlp_in_gain": f * f,
        "mlp_out_gain": f,
        **({"mlp_linear_gain": f * f} if gated else {}),
    }


def _t5_activation(config: ConfigReader, gated: bool, name: str) -> str:
    """`gated-gelu` means the tanh form, an accident that transformers keeps."""
    reader = ConfigReader({"model_type": "t5", "name": "gelu_new" if gated and name == "gelu" else name})
    activation = reader.activation("name", default="relu")
    config.unmodelled += reader.unmodelled
    return activation


def _t5_tokens(config: ConfigReader) -> int:
    """T5 has no longest input; its files name the length it was trained at."""
    return assume_tokens(config, context=int(config.get("n_positions") or 512), most=SYMMETRIC)


def torch_encoder(config: ConfigReader) -> Knobs:
    """nn.TransformerEncoder by default: Xavier for the joint q, k, v matrix, nn.Linear's default elsewhere.

    Xavier over (3 d, d) gives gain^2 = 2 d/(d + 3 d) = 1/2 to each of q, k, v; nn.Linear draws from
    U(-1/sqrt(fan_in), 1/sqrt(fan_in)): gain^2 = 1/3, and biases of variance 1/(3 fan_in).
    """
    width, heads = config.integer("d_model"), config.integer("nhead")
    inner = config.integer("dim_feedforward", default=2048)
    shape = Shape(width, heads, heads, config.head_width(width, heads), inner)
    config.assumed += [
        "embedding_norm: 1, what nn.Embedding draws; the encoder itself has no embedding",
        "layers drawn one by one: nn.TransformerEncoder copies one layer, which merges tokens faster; "
        "edgewise.initialize_(model) draws each independently",
        f"bias of linear2: 0; it is drawn with standard deviation {1 / math.sqrt(3 * shape.mlp_width):.3f}",
    ]
    if config.tokens is None:
        config.assume("tokens: 256, the encoder takes any length; set --tokens")
    linear, joint = math.sqrt(1 / 3), math.sqrt(1 / 2)
    return {
        "depth": config.depth(),
        **shape.knobs(),
        "tokens": config.tokens or 256,
        "activation": config.activation("activation", default="relu"),
        "norm": "pre" if config.flag("norm_first") else "post",
        "norm_kind": "layer",
        "embedding_norm": 1.0,
        "score_gain": joint * joint,
        "key_gain": joint,
        "value_gain": joint * linear,
        "output_gain": linear,
        "mlp_in_gain": linear,
        "mlp_out_gain": linear,
        "mlp_bias": 1 / math.sqrt(3 * width),
    }
