"""A figure on disk: refused early when it cannot be written, and written whole or not at all."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 160


def check_path(path: str | Path) -> Path:
    """The path, or a refusal, before anything is computed."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput(
            f"a figure cannot be written as {path.name!r}: its name must end in {', '.join(SUFFIXES)}."
        )
    if not path.parent.is_dir():
        raise BadInput(f"the folder {str(path.parent)!r} for the figure does not exist. Make it first.")
    try:
        with tempfile.TemporaryFile(
            dir=path.parent
        ):  # permissions alone do not tell: some file systems take no files
            writable = not path.is_dir()
    except OSError:
        writable = False
    if not writable:
        raise BadInput(f"the figure {str(path)!r} cannot be written. Name a file in a folder you may change.")
    return path


def save(figure: Figure, path: Path) -> Path:
    """Write beside the goal, then rename: a reader never sees half a picture."""
    suffix = path.suffix.lower()
    from matplotlib import rc_context

    with whole_file(path) as file, rc_context({"svg.hashsalt": "edgewise"}):
        figure.savefig(file, format=suffix[1:], dpi=DOTS_PER_INCH, metadata=_undated(suffix))
    return path


def png(figure: Figure) -> bytes:
    """The picture for a notebook."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def _undated(suffix: str) -> dict[str, None]:
    """No date inside the file: the same numbers give the same bytes."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
