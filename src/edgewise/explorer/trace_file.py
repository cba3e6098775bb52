"""A saved trace that was dropped on the page: only its description is read, within bounds, and becomes a config.

The arrays of the file stay where they are: no number of it is shown, so that none can be large or wrong.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from edgewise.errors import BadInput
from edgewise.explorer.networks import from_config
from edgewise.explorer.replies import REFUSED, in_turn
from edgewise.explorer.requests import Request
from edgewise.files import read_arrays, read_json

router = APIRouter()
LARGEST = 280_000  # bytes of the file
LARGEST_META = 2**22  # bytes, once unpacked: numpy has four for a letter
META = "meta"


class TraceRequest(Request):
    """A file that Trace.save wrote, in base64."""

    data: Annotated[str, Field(max_length=4 * (LARGEST // 3 + 1))]
    name: Annotated[str, Field(max_length=200)] = "trace.npz"


@router.post("/trace", responses=REFUSED)
def trace(wanted: TraceRequest) -> dict[str, Any]:
    """The network that a saved trace describes, as a config, and what is said about it."""
    return in_turn(lambda: described(wanted.data, wanted.name))


def described(data: str, name: str) -> dict[str, Any]:
    """The description of a trace as the text of a config, which is then read like any other."""
    meta = _meta(data, name)
    values = meta.get("architecture")
    if values is None:
        raise BadInput(
            f"{name} is a trace without a description: it holds what was measured, but not the knobs of a network, so "
            f"it has no place on the map. Drop the model's config.json; `edgewise report {name}` shows the curves."
        )
    if meta.get("kind") != "Architecture" or not isinstance(values, dict):
        raise BadInput(
            f"{name} is a trace of a perceptron, and this page places transformers. `edgewise report {name}` shows it."
        )
    text = json.dumps(values)
    network = from_config(text, name, None, None)
    return {"config": text, "name": name, "note": _note(str(meta.get("source", "")), network.name)}


def _note(source: str, network: str) -> str:
    what = "a predicted" if source.startswith("theory") else "a measured"
    return (
        f"The dot is the description ({network[:60]}) of {what} trace; verdict and curves are theory for that "
        "description, not the numbers in the file."
    )


def _meta(data: str, name: str) -> dict[str, Any]:
    try:
        content = base64.b64decode(data, validate=True)
    except ValueError as error:  # also of letters beyond ASCII
        raise BadInput(f"{name} did not arrive as base64 ({error}).") from error
    if len(content) > LARGEST:
        raise BadInput(
            f"{name} has {len(content):,} bytes; this page reads traces of at most {LARGEST:,}. "
            "`edgewise report` reads all."
        )
    try:
        text = _text(content)
    except BadInput as error:
        raise BadInput(
            f"{name} is not a saved trace ({str(error)[:200]}). Write one with Trace.save."
        ) from error
    meta = read_json(text, name)
    if not isinstance(meta, dict) or not {"sites", "source", "architecture"} <= meta.keys():
        raise BadInput(
            f"{name} is not a saved trace: it says neither sites nor source. Write one with Trace.save."
        )
    return meta


def _text(content: bytes) -> str:
    """The one string of a zip of arrays."""
    stored = read_arrays(io.BytesIO(content), (META,), LARGEST_META)[META]
    if stored.shape != () or stored.dtype.kind != "U":
        raise BadInput(f"its {META} is {stored.dtype} of shape {stored.shape}, expected one text")
    return str(stored)
