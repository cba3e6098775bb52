"""Map of a network with mask and positions: computed piece by piece by workers and sent while it grows.

Points are drawn with one set of few random heads, which moves a share by less than 0.005; the verdict of a single
network, which has more and twice, is never read from here.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np
from fastapi import HTTPException
from pydantic import Field
from starlette.requests import Request as HttpRequest

from edgewise.arrays import Array
from edgewise.errors import BadInput, VanishedStream
from edgewise.explorer.answers import LEFT_OUT, as_json, axis_of, colored, levels_of
from edgewise.explorer.requests import AxesRequest, Knob, NetworkSource, PageRequest, Value, changed, read
from edgewise.explorer.responses import LEFT, kept, pieces, waited
from edgewise.files import Document
from edgewise.judgement.outcome import score_of, training_probability
from edgewise.judgement.profile import read as read_trace
from edgewise.nouns.architecture import Architecture

HEADS, DRAWS = 8, 1
FEW = 16  # tokens of the first look
COARSE, FINE = 9, 17  # points on an axis; every other one of the second is one of the first
PIECE_SECONDS = 1.0  # then others have their turn
SECONDS = 120.0  # for the whole map
AT_ONCE = 2  # pieces of one map in the hands of workers
Place = tuple[float, float]


class SharesRequest(PageRequest):
    """Places on the plane of two knobs, of a network followed over so many tokens."""

    source: NetworkSource
    x: Knob
    y: Knob
    readout: Literal["token", "pooled"] = "token"
    tokens: int
    places: Annotated[list[tuple[Value, Value]], Field(max_length=FINE**2)]


class MapResolution(NamedTuple):
    """A view of the plane: how many points on an axis, over how many tokens."""

    points: int
    tokens: int


def resolutions(tokens: int) -> list[MapResolution]:
    """Return few points and tokens first, then more."""
    first = [MapResolution(COARSE, FEW)] if tokens > FEW else []
    return [*first, MapResolution(COARSE, tokens), MapResolution(FINE, tokens)]


def refuse_without_positions(wanted: AxesRequest) -> None:
    if read(wanted.source).symmetric:
        raise BadInput(
            "this network has neither a mask nor positions: its map leaves nothing out. Ask for `map`."
        )


def places(wanted: AxesRequest, stage: MapResolution) -> list[tuple[float, float]]:
    """Return row by row from below, as shares are stored."""
    x, y = (grid(low, high, stage.points).tolist() for low, high in wanted.axes.values())
    return [(across, up) for up in y for across in x]


def grid(low: float, high: float, points: int) -> Array:
    return np.linspace(low, high, FINE)[:: (FINE - 1) // (points - 1)]


def shares(wanted: SharesRequest) -> list[float]:
    """Return the share at the first of the places, as many as are done in a second, at least one."""
    ends, found = time.monotonic() + PIECE_SECONDS, []
    base = read(wanted.source).replace(tokens=wanted.tokens)
    for x, y in wanted.places:
        found.append(share(changed(base, {wanted.x: x, wanted.y: y}), wanted.readout))
        if time.monotonic() > ends:
            break
    return found


def share(network: Architecture, readout: str) -> float:
    """Return the probability of training of one network; 0 where its stream vanishes or leaves the range of numbers."""
    from edgewise.theory.gram.drive import propagate_gram

    try:
        trace = propagate_gram(network, readout=readout, draws=DRAWS, samples=HEADS)
    except VanishedStream:  # a gain of 0: nothing passes
        return 0.0
    score = score_of(read_trace(trace))
    return 0.0 if score is None else training_probability(score, trace).value


def map_answer(
    wanted: AxesRequest, stage: MapResolution, values: Mapping[tuple[float, float], float], plain: Document
) -> Document:
    """Return the map of a stage in the form of that without positions, whose lines it keeps."""
    (x_name, x_span), (y_name, y_span) = wanted.axes.items()
    x, y = grid(*x_span, stage.points), grid(*y_span, stage.points)
    share = np.array([values[place] for place in places(wanted, stage)]).reshape(len(y), len(x))
    return (
        plain
        | colored(share, levels_of(x, y, share))
        | {"x": axis_of(x_name, x), "y": axis_of(y_name, y), "caption": caption(plain["caption"], stage)}
    )


def caption(plain: str, stage: MapResolution) -> str:
    """Return what was followed, and what is interpolated."""
    size = f"{stage.points} × {stage.points}"
    return plain.replace(
        LEFT_OUT,
        f"Color has mask and positions in it: {size} networks were followed over {stage.tokens} tokens, and what lies "
        "between them is interpolated. Lines leave mask and positions out. The verdict of the dot is exact.",
    )


def slices(rest: list[tuple[float, float]], count: int) -> Iterator[list[tuple[float, float]]]:
    """Yield runs of places for so many workers, none of them long."""
    size = max(1, min(32, -(-len(rest) // count)))
    for first in range(0, min(len(rest), size * count), size):
        yield rest[first : first + size]


async def events(wanted: AxesRequest, plain: Document, request: HttpRequest) -> AsyncIterator[bytes]:
    """Yield each with the share that is `done`, some with a `map`.

    The last one says why, if it is not the whole map.
    """
    looks, ends = resolutions(read(wanted.source).tokens), time.monotonic() + SECONDS
    total, before = sum(look.points**2 for look in looks), 0
    try:
        for look in looks:
            values: dict[Place, float] = {}
            async for values in _followed(wanted, look, request):
                yield _event({"done": (before + len(values)) / total})
                if time.monotonic() > ends:
                    yield _event({"stopped": f"Stopped after {SECONDS:g} seconds."})
                    return
            before += look.points**2
            yield _event({"done": before / total, "map": map_answer(wanted, look, values, plain)})
    except BadInput as error:
        yield _event({"error": str(error)})
    except HTTPException as reason:
        if reason.status_code != LEFT:
            yield _event({"error": reason.detail})


async def _followed(
    wanted: AxesRequest, look: MapResolution, request: HttpRequest
) -> AsyncIterator[dict[Place, float]]:
    """Yield the shares of all places of a look, more of them each time."""
    key = wanted.model_dump_json()
    all_places = places(wanted, look)
    answers = ((place, kept.get(key, _name(look, place))) for place in all_places)
    values = {place: float(answer) for place, answer in answers if answer is not None}
    yield values
    while rest := [place for place in all_places if place not in values]:
        parts = list(slices(rest, AT_ONCE))
        knobs = {"x": wanted.x.knob, "y": wanted.y.knob, "readout": wanted.readout, "tokens": look.tokens}
        questions = [SharesRequest(source=wanted.source, places=part, **knobs) for part in parts]
        jobs = [pieces.submit(as_json, shares, question) for question in questions]
        for part, answer in zip(parts, await waited(jobs, request), strict=True):
            for place, share in zip(part, json.loads(answer), strict=False):
                values[place] = share
                kept.keep(repr(share).encode(), key, _name(look, place))
        yield values


def _name(look: MapResolution, place: Place) -> str:
    return f"{look.tokens} {place}"


def _event(content: Document) -> bytes:
    return f"data: {json.dumps(content, allow_nan=False, separators=(',', ':'))}\n\n".encode()
