"""The config a model carries with it, and what its family says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgewise.adapters.huggingface_config import FAMILIES, translate
from edgewise.architecture import Architecture

if TYPE_CHECKING:
    from torch import nn


def config_of(model: nn.Module) -> dict[str, Any]:
    """The config of a Hugging Face model as a dictionary; empty if it has none."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict") or not hasattr(config, "model_type"):
        return {}
    return {**config.to_dict(), "model_type": config.model_type}


def described_by_config(model: nn.Module, tokens: int | None = None) -> Architecture | None:
    """What the model's own config says, if it is of a family that is known; or the description it was built from."""
    config, built_from = config_of(model), getattr(model, "architecture", None)
    if isinstance(built_from, Architecture):
        return built_from if tokens is None else built_from.replace(tokens=tokens)
    return translate(config, tokens=tokens) if config.get("model_type") in FAMILIES else None
