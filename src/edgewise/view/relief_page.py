"""Planes as one page to turn with the mouse: no server, no network, no library."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.errors import BadInput
from edgewise.whole_file import whole_file

if TYPE_CHECKING:
    from edgewise.landscape import Plane
    from edgewise.view.relief import Relief

TEMPLATE = "relief_page.html"


def write_page(relief: Relief, path: Path) -> Path:
    """The page, whole or not at all."""
    if not path.parent.is_dir():
        raise BadInput(f"the folder {str(path.parent)!r} for the page is not there. Make it first.")
    with whole_file(path) as file:
        file.write(page(relief).encode())
    return path


def page(relief: Relief) -> str:
    """The template with its title and numbers."""
    template = files("edgewise.view").joinpath(TEMPLATE).read_text(encoding="utf-8")
    limits = list(relief.limits) if np.isfinite(relief.limits[0]) else None
    data = {"title": relief.title, "limits": limits, "planes": [_data(n, p) for n, p in relief.planes.items()]}
    # "</" would end the script that holds the numbers.
    text = json.dumps(data, allow_nan=False, ensure_ascii=False).replace("</", "<\\/")
    return template.replace("{{title}}", html.escape(relief.title)).replace("{{data}}", text)


def _data(name: str, plane: Plane) -> dict[str, Any]:
    # All digits: the range can be tiny beside the loss.
    rows = [[float(v) if np.isfinite(v) else None for v in row] for row in plane.losses]
    path = None if plane.path is None else [[float(f"{c:.5g}") for c in point] for point in plane.path]
    return {"name": name or "loss", "x": plane.x.tolist(), "y": plane.y.tolist(), "z": rows, "path": path,
            "axes": list(plane.names), "note": str(plane.roughness)}  # fmt: skip
