"""All strangers by name, each with its half (`truth.half`), or the list it belongs to: `third` or `fourth`."""

from __future__ import annotations

from . import (
    attentions,
    fourth,
    huggingface,
    layers,
    layouts,
    misleading,
    registry,
    residuals,
    third,
    torch_parts,
)
from .truth import STRANGERS, Stranger, half

__all__ = [
    "EVERYONE",
    "attentions",
    "fourth",
    "huggingface",
    "layers",
    "layouts",
    "misleading",
    "registry",
    "residuals",
    "third",
    "torch_parts",
]
EVERYONE: dict[str, tuple[Stranger, str]] = {s.name: (s, s.part or half(s.name)) for s in STRANGERS}
assert len(EVERYONE) == len(STRANGERS), "two strangers of one name"
