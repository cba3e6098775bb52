"""`watch`: rows of a training run at a stated price, and alarms that name the first cause."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgewise.monitor.read_run import trace_at

_HOMES = {"trace_at": "read_run"}
__all__ = ["trace_at"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
