"""Configs, files and modules of others to a description (`Architecture`): what is where in a model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.models.behavior.read import stacks
    from edgewise.models.model_map import sites

_HOMES = {"sites": "model_map", "stacks": "behavior.read"}
__all__ = ["sites", "stacks"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
