"""Figures: traces and verdicts to figure data to drawing.

Every function returns a `Sheet`: numbers that can be read, tested and drawn; only `draw` knows matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "depth_profile": "profiles",
    "overlap": "profiles",
    "block_numbers": "profiles",
    "beside": "measured",
    "phase_diagram": "phase_planes",
    "vector_field": "phase_planes",
    "perceptron_plane": "perceptron_planes",
    "learning_rates": "rates",
    "landscape": "relief",
    "landscape_line": "relief",
    "Relief": "relief",
    "prediction": "documents",
    "comparison": "documents",
    "measurement": "documents",
    "Sheet": "sheet",
    "Panel": "panel",
    "Curve": "panel",
    "Map": "panel",
    "Dots": "panel",
    "Marker": "panel",
    "finite_limit": "panel",
    "check_path": "files",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
