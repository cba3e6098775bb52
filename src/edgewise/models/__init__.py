"""Configs, files and modules of others to a description (`Architecture`): what is where in a model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.models.model_map import sites, stacks

__all__ = ["sites", "stacks"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.model_map"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
