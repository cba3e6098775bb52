"""Landscape view: stored planes of the folder, one or two at a time, on equal scales."""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Response
from pydantic import Field
from starlette.requests import Request as HttpRequest

from edgewise.errors import BadInput, MissingArray
from edgewise.explorer.answers import as_bytes, rounded
from edgewise.explorer.requests import PageRequest
from edgewise.explorer.responses import ERRORS, json_reply, pieces, waited
from edgewise.files import Document
from edgewise.present import wording
from edgewise.present.html import prose

if TYPE_CHECKING:
    from edgewise.landscape import Plane

router = APIRouter()
MOST_FILES, DEEPEST_FOLDER, MOST_FOLDERS = 60, 6, 2000
LARGEST_FILE = 2**23  # bytes
FINEST = 61  # points on an axis that are drawn
HEIGHTS = 10_000  # steps from the lowest to the highest loss
BOWL = 0.02  # of the range: how far from a quadratic a surface may be that is called a bowl
EXAMPLES = {  # tools/page_examples.py computes them; they come with the package and are there without a folder
    "example before training": "before_training.npz",
    "example after training": "after_training.npz",
}
CAPTION = (
    "Height is the loss of the network after its weights were moved along two directions; the dot is the network as it "
    "is. Both surfaces have the same scale of heights and colors, so that they can be compared."
)
NO_FOLDER = (
    "This page was started without a folder. Compute a plane, then start the page with the folder it is in."
)
CODE = (
    "from edgewise import landscape\n\n"
    'landscape.plane(model, loss, batch, ("queries", "keys"), file="planes/mine.npz")\n\n'
    "# then, in the shell:  edgewise explore planes"
)


class LandscapeRequest(PageRequest):
    """One or two planes by their names in the list."""

    planes: Annotated[list[Annotated[str, Field(max_length=400)]], Field(min_length=1, max_length=2)]


@router.get("/landscapes")
async def landscapes(request: HttpRequest) -> Response:
    """Return the planes below the folder that the page was started with."""
    return await _by_worker(request, [])


@router.post("/landscape", responses=ERRORS)
async def landscape(wanted: LandscapeRequest, request: HttpRequest) -> Response:
    """Return one or two planes with their figures, and heights on one scale."""
    return await _by_worker(request, wanted.planes)


async def _by_worker(request: HttpRequest, planes: list[str]) -> Response:
    """Planes are read with torch loaded, which takes seconds; files may change, so that no answer is kept."""
    folder = getattr(request.app.state, "folder", None)
    (content,) = await waited([pieces.submit(read_planes, folder, planes)], request)
    return json_reply(content)


def read_planes(folder: Path | None, planes: list[str]) -> bytes:
    """Read the named planes, or list all if none is named; computed by a worker."""
    return as_bytes(answer(folder, planes) if planes else listing(folder))


def listing(folder: Path | None) -> Document:
    """Return names with what each plane is of; files that are something else are not listed."""
    rows = [
        {"name": name, "note": note}
        for name in files(folder)
        if folder is not None and (note := _note(folder, name)) is not None
    ]
    return {
        "planes": rows,
        "code": CODE,
        "caption": CAPTION,
        "empty": NO_FOLDER if folder is None else f"Compute one into {folder.name}, and it is listed here.",
        "examples": list(EXAMPLES),
    }


def files(folder: Path | None) -> list[str]:
    """Return files that may hold planes, as paths from the folder; links that lead out of it are left out."""
    if folder is None:
        return []
    root, found = folder.resolve(), []
    for seen, (place, folders, names) in enumerate(os.walk(root, followlinks=False)):
        here = Path(place).relative_to(root)
        if len(here.parts) >= DEEPEST_FOLDER or seen > MOST_FOLDERS:
            folders.clear()
        found += [(here / name).as_posix() for name in names if name.endswith(".npz")]
    inside = (n for n in sorted(found) if (root / n).resolve().is_relative_to(root) and (root / n).is_file())
    return list(islice(inside, MOST_FILES))


def _note(folder: Path, name: str) -> str | None:
    """Return what a plane is of; the reason if it is one that cannot be drawn; None if it is something else."""
    try:
        plane = _read(folder, name)
    except BadInput as error:
        other = isinstance(error, MissingArray) and error.array == "losses"
        return None if other else f"cannot be shown: {error}"
    return f"{' against '.join(plane.names)}, {len(plane.x)} × {len(plane.y)} points"


def read(folder: Path | None, name: str) -> Plane:
    """Return a plane of the list, or an example; nothing else can be named."""
    if name in EXAMPLES:
        return _loaded(str(Path(__file__).parent / "examples" / EXAMPLES[name]), name, 0)
    if folder is None or name not in files(folder):
        raise BadInput(f"{name[:80]!r} is not among the planes of this page. Choose one of the list.")
    return _read(folder, name)


def _read(folder: Path, name: str) -> Plane:
    path = folder.resolve() / name
    status = path.stat()
    if status.st_size > LARGEST_FILE:
        raise BadInput(
            f"{name} has {status.st_size:,} bytes; this page draws planes of at most {LARGEST_FILE:,}."
        )
    return _loaded(str(path), name, status.st_mtime_ns)


@lru_cache(maxsize=16)
def _loaded(path: str, name: str, _changed: int) -> Plane:
    from edgewise.landscape import Plane

    try:
        plane = Plane.load(path)
    except BadInput as error:
        error.args = (str(error).replace(path, name),)
        raise
    if len(plane.axes) != 2 or min(plane.losses.shape) < 3:
        raise BadInput(
            f"{name} holds losses of shape {plane.losses.shape}; a plane has at least 3 × 3 points."
        )
    if any(not np.ptp(axis) > 0 for axis in plane.axes):
        raise BadInput(f"{name} has an axis without extent. Compute it again.")
    if not np.isfinite(plane.losses).any():
        raise BadInput(f"{name} holds no finite loss, so that there is nothing to draw.")
    return plane


def answer(folder: Path | None, names: list[str]) -> Document:
    """Return surfaces, figures and the common limits of height."""
    planes = {name: read(folder, name) for name in dict.fromkeys(names)}
    heights = np.concatenate([plane.losses[np.isfinite(plane.losses)] for plane in planes.values()])
    low, high = float(heights.min()), float(heights.max())
    surfaces = [surface(name, plane, low, high) for name, plane in planes.items()]
    return {"planes": surfaces, "caption": CAPTION, "low": low, "high": high, "steps": HEIGHTS} | reading(
        planes
    )


def surface(name: str, plane: Plane, low: float, high: float) -> Document:
    """Return heights in steps of the common scale, row by row from below, at most FINEST on an axis; and figures."""
    rows, columns = (_places(size) for size in plane.losses.shape)
    with np.errstate(all="ignore"):
        heights = HEIGHTS * (plane.losses[np.ix_(rows, columns)] - low) / max(high - low, 1e-300)
    return {
        "name": name,
        "axes": list(plane.names),
        "x": rounded(plane.x[columns]),
        "y": rounded(plane.y[rows]),
        "z": [[round(float(v)) if np.isfinite(v) else None for v in row] for row in heights],
        "path": None if plane.path is None else [rounded(point) for point in plane.path[-400:]],
        "figures": figures(plane),
        "note": "" if plane.roughness.visible else f"{plane.roughness}.",
    }


def _places(size: int) -> Any:
    return np.unique(np.linspace(0, size - 1, min(size, FINEST)).round().astype(int))


def figures(plane: Plane) -> list[list[str]]:
    """Return the roughness of a plane as rows of a table."""
    measured = plane.roughness
    sharp = np.isfinite(np.array(measured.curvature)).all()
    rows = [
        ["loss at the center", f"{plane.centre:.4g}"],
        ["lowest to highest", f"{measured.range:.3g}"],
        ["sharpest curvature", f"{measured.sharpness:.3g}" if sharp else "not finite"],
        ["away from a bowl", f"{_share(measured.residual)} of the range"],
        ["dips inside", str(measured.minima)],
    ]
    if measured.finite < 1:
        rows.append(["without a finite loss", f"{_share(1 - measured.finite)} of the points"])
    return rows


def reading(planes: dict[str, Plane]) -> dict[str, str]:
    """Return what one surface is like, or how two differ."""
    names, parts = list(planes), [plane.roughness for plane in planes.values()]
    if len(parts) == 1:
        title = "Nearly a bowl" if parts[0].residual < BOWL else "Not a bowl"
        why = f"The best quadratic surface is off by {_share(parts[0].residual)} of the range of the loss."
        dips = "one dip" if parts[0].minima == 1 else f"{parts[0].minima or 'no'} dips"
        return {"title": title, "sentences": prose(f"{why} It has {dips} inside.")}
    rougher, ratio = _larger(*(part.residual for part in parts))
    taller, times = _larger(*(part.range for part in parts))
    even = ratio < 1.2
    title = "Equally rough" if even else f"{names[rougher]} is rougher"
    first = "Both are about as far from a bowl." if even else f"It is {_times(ratio)} as far from a bowl."
    second = f"The loss of {names[taller]} varies {_times(times)} as much over its plane."
    return {"title": title, "sentences": prose(f"{first} {second}")}


def _larger(first: float, second: float) -> tuple[int, float]:
    """Return which of two is larger, and how many times."""
    one, other = max(first, 1e-12), max(second, 1e-12)
    return (0, one / other) if one >= other else (1, other / one)


def _times(ratio: float) -> str:
    return f"{wording.number(ratio)} times" if ratio < 1000 else "over 1 000 times"


def _share(value: float) -> str:
    """Two digits; what is less than a ten-thousandth is said so."""
    return prose(f"{100 * value:.2g} %" if value >= 1e-4 else "under 0.01 %")
