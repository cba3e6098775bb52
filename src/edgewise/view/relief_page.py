"""The page of a relief: the template with a title and numbers in which nothing can be read as markup.

Names come from parameters and from files of others. Every piece is escaped for its place and all are put in at once,
so that none is looked through for places again; a content security policy allows the template's own script and
style by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgewise.errors import BadInput
from edgewise.files import whole_file

if TYPE_CHECKING:
    from edgewise.landscape import Plane

TEMPLATE = "relief_page.html"
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_IN_SCRIPT = str.maketrans({"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"})


def write_page(path: Path, title: str, limits: tuple[float, float], planes: Mapping[str, Plane]) -> Path:
    """The page, whole or not at all."""
    if not path.parent.is_dir():
        raise BadInput(f"the folder {str(path.parent)!r} for the page does not exist. Make it first.")
    with whole_file(path) as file:
        file.write(
            page(title, limits, planes).encode(errors="replace")
        )  # a lone surrogate in a name is no text
    return path


def page(title: str, limits: tuple[float, float], planes: Mapping[str, Plane]) -> str:
    """The template with its policy, title and numbers."""
    template = files("edgewise.view").joinpath(TEMPLATE).read_text(encoding="utf-8")
    scale = list(limits) if np.isfinite(limits[0]) else None
    data = {"title": title, "limits": scale, "planes": [_data(name, plane) for name, plane in planes.items()]}
    pieces = {"policy": policy(template), "title": html.escape(title), "data": script_json(data)}
    return _PLACE.sub(lambda place: pieces[place[1]], template)


def script_json(data: Any) -> str:
    """JSON in ASCII without <, > and &: no end of the script, no comment, no U+2028."""
    return json.dumps(data, allow_nan=False, ensure_ascii=True).translate(_IN_SCRIPT)


def policy(template: str) -> str:
    """Nothing is loaded or sent; only the script and the style of the template run."""
    script, style = (_source(template, f"<{tag}>", f"</{tag}>") for tag in ("script", "style"))
    return f"default-src 'none'; script-src {script}; style-src {style}; base-uri 'none'; form-action 'none'"


def _source(template: str, start: str, end: str) -> str:
    """'sha256-...' of the text between two tags."""
    text = template.partition(start)[2].partition(end)[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(name: str, plane: Plane) -> dict[str, Any]:
    # All digits: the range can be tiny beside the loss.
    rows = [[float(v) if np.isfinite(v) else None for v in row] for row in plane.losses]
    path = None if plane.path is None else [[float(f"{c:.5g}") for c in point] for point in plane.path]
    return {
        "name": name or "loss",
        "x": plane.x.tolist(),
        "y": plane.y.tolist(),
        "z": rows,
        "path": path,
        "axes": list(plane.names),
        "note": str(plane.roughness),
    }
