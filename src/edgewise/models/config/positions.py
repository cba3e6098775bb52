"""Rotary positions and sliding windows as configs of transformers 4 and 5 spell them.

Version 4 has `rope_theta`, `partial_rotary_factor`, `rope_scaling` at the top; version 5 has one dictionary
`rope_parameters`, which some families split by layer type (`full_attention`, `sliding_attention`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.config.reader import ConfigReader
from edgewise.nouns.knobs import shown

FULL, SLIDING = "full_attention", "sliding_attention"
_UNCHANGED = (None, "default")


def layer_types(config: ConfigReader, depth: int, is_sliding: Callable[[int], bool]) -> tuple[str, ...]:
    """The type of every layer: as the config lists them, else the family's pattern."""
    types = config.get("layer_types")
    if types is None:
        return tuple(SLIDING if is_sliding(i) else FULL for i in range(depth))
    if not isinstance(types, (list, tuple)) or not all(isinstance(kind, str) for kind in types):
        raise BadInput(
            f"layer_types in a {config.family} config must be a list of names such as {FULL}, got {shown(types)}. "
            "Give one entry per layer, or leave layer_types out."
        )
    if len(types) != depth:
        raise BadInput(
            f"layer_types has {len(types)} entries and the {config.family} config has {depth} layers. "
            "Give one entry per layer, or leave layer_types out."
        )
    return tuple(types)


def windows(config: ConfigReader, types: Sequence[str], window: int | None) -> Any:
    """The window of every layer; one value where all agree."""
    unknown = sorted(set(types) - {SLIDING, FULL})
    if unknown:
        config.leave_out(f"layers of type {', '.join(unknown)} are taken as full attention")
    return one_or_all([window if kind == SLIDING else None for kind in types])


def one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else tuple(values)


def rope_parameters(config: ConfigReader, layer_type: str = FULL) -> dict[str, Any]:
    """All that a config says about rotation, old spelling or new, for one type of layer."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise BadInput(f"rope_scaling in a {config.family} config must be a dictionary, got {rope!r}.")
    rope = dict(rope)
    if any(isinstance(value, dict) for value in rope.values()):
        rope = dict(rope.get(layer_type) or {})
    return rope


def rope_base(config: ConfigReader, *names: str, default: float, layer_type: str = FULL) -> float:
    """The base of the frequencies, under `rope_theta` or an older name of the family."""
    inside = rope_parameters(config, layer_type).get("rope_theta")
    return float(inside) if inside is not None else config.number(*names, default=default)


def rope_fraction(config: ConfigReader, *names: str, default: float = 1.0) -> float:
    """The rotated fraction of a head."""
    inside = rope_parameters(config).get("partial_rotary_factor", config.get("partial_rotary_factor", *names))
    return default if inside is None else float(inside)


def rope_scaling(config: ConfigReader) -> float:
    """What long-context scaling multiplies the logits by (YaRN and LongRoPE multiply cos and sin).

    Its other effect, slower rotation of the slow frequencies, is left out, and noted.
    """
    rope = rope_parameters(config)
    kind = rope.get("rope_type", rope.get("type"))
    if kind in _UNCHANGED:
        return 1.0
    config.assume(f"rope scaling {kind!r}: rotation as without it; short inputs do not notice")
    return _attention_factor(config, kind, rope) ** 2 * _all_dimensions(config, rope)


def _attention_factor(config: ConfigReader, kind: str, rope: dict[str, Any]) -> float:
    if kind not in ("yarn", "longrope", "su") or rope.get("attention_factor") is not None:
        return float(rope.get("attention_factor") or 1.0)
    factor, original = _stretch(config, rope)
    if kind != "yarn":
        return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return _magnitude(factor, rope["mscale"]) / _magnitude(factor, rope["mscale_all_dim"])
    return _magnitude(factor)


def _stretch(config: ConfigReader, rope: dict[str, Any]) -> tuple[float, float]:
    """By how much the context was stretched, and from what length."""
    context = config.number("max_position_embeddings", default=4096)
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    original = float(original or context)
    return float(rope.get("factor") or context / original), original


def _all_dimensions(config: ConfigReader, rope: dict[str, Any]) -> float:
    """DeepSeek multiplies the logits of all dimensions, rotated or not, by the square of its magnitude."""
    share = rope.get("mscale_all_dim")
    if not share or config.family != "deepseek_v3":
        return 1.0
    return _magnitude(_stretch(config, rope)[0], share) ** 2


def _magnitude(factor: float, weight: float = 1.0) -> float:
    """0.1 m log(s) + 1 [Peng 2023, YaRN, eq. 22]."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
