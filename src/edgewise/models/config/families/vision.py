"""Vision transformers: pre-norm, bidirectional, as long as the image has patches.

The stream starts as a projection of the pixels: q = s^2 (numbers in a patch) for independent pixels of unit
variance, plus s^2 for random positions. Real patches are smoother and more alike: start `predict` from them.
"""

from __future__ import annotations

from typing import Any

from edgewise.errors import BadInput
from edgewise.models.config.gains import Shape, normal_gains
from edgewise.models.config.reader import ConfigReader

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
