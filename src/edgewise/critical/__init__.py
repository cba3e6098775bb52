"""Critical settings of a transformer: exponents, phase diagrams, asymptotics, where training is possible."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.critical.stream_flow import perceptron_maps, vector_field

_HOMES = {"perceptron_maps": "stream_flow", "vector_field": "stream_flow"}
__all__ = ["perceptron_maps", "vector_field"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
