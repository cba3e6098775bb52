"""A config with its sizes changed: the same class, the same kinds of layers, the same initialization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgewise.models.small.sizes import (
    CONTEXT,
    DEPTH,
    DROPPED,
    HEADS,
    KEY_HEADS,
    PATCHES,
    POSITIONS,
    STAGES,
    Scale,
    Tower,
    inner_configs,
    small_number,
)


def small_config(config: Any, all_towers: Mapping[str, Tower], scale: Scale, path: str = "") -> Any:
    """The config at another scale; a list with one entry per layer is cut with the depth."""
    full = config.to_dict()
    values = {k: v for k, v in full.items() if k not in DROPPED}
    tower = _tower_of(path, all_towers)
    staged = any(isinstance(values.get(name), (list, tuple)) for name in STAGES)
    own = Scale(scale.stream, scale.head, scale.window, scale.depth, scale.narrow and not staged)
    depths = {v for k, v in values.items() if DEPTH.match(k) and isinstance(v, int)}
    inner = dict(inner_configs(config))
    for name, value in values.items():
        if name in inner:
            below = small_config(inner[name], all_towers, scale, f"{path}.{name}" if path else name)
            values[name] = {**below.to_dict(), "model_type": inner[name].model_type}
        elif name in STAGES and isinstance(value, (list, tuple)):
            values[name] = [min(number, 2) for number in value]
        elif isinstance(value, int) and not isinstance(value, bool) and not (staged and DEPTH.match(name)):
            values[name] = small_number(name, value, tower, all_towers, own)
        elif (
            isinstance(value, (list, tuple))
            and scale.depth
            and len(value) in depths
            and len(value) > scale.depth
        ):
            values[name] = list(value[: scale.depth])
    _keep_together(full, values, tower, own)
    return type(config)(**values)


def _tower_of(path: str, all_towers: Mapping[str, Tower]) -> Tower | None:
    """Its own; a config without a width shares that of the config around it."""
    while path not in all_towers:
        if not path:
            return None
        path = path.rpartition(".")[0]
    return all_towers[path]


def _keep_together(
    full: Mapping[str, Any], values: dict[str, Any], tower: Tower | None, scale: Scale
) -> None:
    """Numbers that go with others: key heads with heads, sections of a rotation with a head, images with patches."""
    heads = next((k for k, v in values.items() if HEADS.match(k) and isinstance(v, int)), None)
    for name, value in full.items():
        if heads and KEY_HEADS.search(name) and isinstance(value, int) and value > 0:
            values[name] = _key_heads(value, full[heads], values[heads])
    if not any(
        full.get(name) for name in ("rope_parameters", "rope_scaling")
    ):  # long rotations count positions
        for name in values:
            if CONTEXT.match(name) and isinstance(values[name], int):
                values[name] = min(values[name], POSITIONS)
    image, patch = values.get("image_size"), values.get("patch_size")
    if scale.narrow and isinstance(image, int) and isinstance(patch, int) and image > PATCHES * patch:
        values["image_size"] = PATCHES * patch
    if tower is not None and scale.narrow:
        for name in ("rope_parameters", "rope_scaling"):
            if isinstance(values.get(name), Mapping) and "mrope_section" in values[name]:
                values[name] = values[name] | {
                    "mrope_section": _sections(values[name]["mrope_section"], tower, scale)
                }


def _key_heads(value: int, heads: int, small_heads: int) -> int:
    """So that about as many heads share a key head; at least one, and a divisor of the heads."""
    wanted = max(round(small_heads * value / heads), 1)
    return max(number for number in range(1, wanted + 1) if small_heads % number == 0)


def _sections(sections: list[int], tower: Tower, scale: Scale) -> list[int]:
    """Of the pairs of a head, in as many parts."""
    total = tower.part_of_head(2 * sum(sections), scale) // 2
    shares = [max(round(total * section / sum(sections)), 1) for section in sections]
    return [*shares[:-1], total - sum(shares[:-1])]
