"""Base and rotated fraction of rotary positions as a config has them; which layers rotate was read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edgewise.models.config.positions import one_or_all, rope_parameters
from edgewise.models.config.reader import ConfigReader
from edgewise.nouns.architecture import Architecture

BASES = ("rope_theta", "rotary_emb_base", "rope_base")


def with_rotation(description: Architecture, config: ConfigReader) -> Architecture:
    """The description with what its config says about rotation."""
    rope = (
        description.rope if isinstance(description.rope, tuple) else (description.rope,) * description.depth
    )
    if not any(rope):
        return description
    types = config.get("layer_types")
    kinds = types if types and len(types) == description.depth else ["full_attention"] * description.depth
    bases = [_base(config, kind) for kind in kinds]
    fractions = [_fraction(config, kind, description.head_width) for kind in kinds]
    turned = [fraction if rotates else 0.0 for fraction, rotates in zip(fractions, rope, strict=True)]
    changes: dict[str, Any] = {"rope": one_or_all(turned)}
    assumed = description.assumed
    if None not in bases:
        changes["rope_base"] = one_or_all(bases)
        assumed = tuple(line for line in assumed if not line.startswith("rope_base"))
    return replace(description.replace(**changes), assumed=assumed)


def _base(config: ConfigReader, kind: str) -> float | None:
    inside = rope_parameters(config, kind).get("rope_theta")
    value = inside if inside is not None else config.get(*BASES)
    return None if value is None else float(value)


def _fraction(config: ConfigReader, kind: str, head_width: int) -> float:
    part = config.get("rotary_dim", "qk_rope_head_dim")
    if part is not None:
        return float(part) / head_width
    inside = rope_parameters(config, kind).get("partial_rotary_factor")
    return float(inside if inside is not None else config.get("partial_rotary_factor", "rotary_pct") or 1.0)
