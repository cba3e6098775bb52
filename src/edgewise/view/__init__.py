"""Figures: traces and verdicts to figure data to drawing.

Every function returns a `Sheet`: numbers that can be read, tested and drawn; only `draw` knows matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_ROOM = {
    "depth_profile": "profiles", "overlap": "profiles", "phase_diagram": "phase_planes",
    "perceptron_plane": "perceptron_planes", "vector_field": "phase_planes", "prediction": "documents",
    "comparison": "documents", "Sheet": "sheet", "Panel": "sheet", "Curve": "sheet", "Map": "sheet", "Dots": "sheet",
    "Marker": "sheet", "finite_limit": "sheet", "block_numbers": "profiles",
    "landscape": "relief", "landscape_line": "relief", "Relief": "relief",
    "check_path": "files", "beside": "measured", "measurement": "documents",
}  # fmt: skip
__all__ = list(_ROOM)


def __getattr__(name: str) -> Any:
    if name not in _ROOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOM[name]}"), name)
