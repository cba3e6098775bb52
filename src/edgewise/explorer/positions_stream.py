"""The map with positions as it grows: piece by piece through the workers, so that others have their turn between."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import HTTPException
from starlette.requests import Request as HttpRequest

from edgewise.errors import BadInput
from edgewise.explorer.positions_map import SharesRequest, Stage, map_answer, places, slices, stages
from edgewise.explorer.replies import LEFT, kept, pieces, waited
from edgewise.explorer.requests import AxesRequest, read

SECONDS = 120.0  # for the whole map
AT_ONCE = 2  # pieces of one map in the hands of workers

Place = tuple[float, float]


async def events(wanted: AxesRequest, plain: dict[str, Any], request: HttpRequest) -> AsyncIterator[bytes]:
    """Each with the share that is `done`, some with a `map`; the last one says why, where it is not the whole map."""
    looks, ends = stages(read(wanted.source).tokens), time.monotonic() + SECONDS
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
    except BadInput as refusal:
        yield _event({"error": str(refusal)})
    except HTTPException as reason:
        if reason.status_code != LEFT:
            yield _event({"error": reason.detail})


async def _followed(
    wanted: AxesRequest, look: Stage, request: HttpRequest
) -> AsyncIterator[dict[Place, float]]:
    """The shares of all places of a look, more of them each time."""
    key = wanted.model_dump_json()
    all_places = places(wanted, look)
    values = {place: share for place in all_places if (share := _remembered(key, look, place)) is not None}
    yield values
    while rest := [place for place in all_places if place not in values]:
        parts = list(slices(rest, AT_ONCE))
        jobs = [pieces.ask("shares", _question(wanted, look, part)) for part in parts]
        for part, answer in zip(parts, await waited(jobs, request), strict=True):
            for place, share in zip(part, json.loads(answer), strict=False):
                values[place] = share
                kept.keep(repr(share).encode(), key, _name(look, place))
        yield values


def _question(wanted: AxesRequest, look: Stage, part: list[Place]) -> str:
    return SharesRequest(
        source=wanted.source,
        x=wanted.x.knob,
        y=wanted.y.knob,
        readout=wanted.readout,
        tokens=look.tokens,
        places=part,
    ).model_dump_json()


def _remembered(key: str, look: Stage, place: Place) -> float | None:
    answer = kept.get(key, _name(look, place))
    return None if answer is None else float(answer)


def _name(look: Stage, place: Place) -> str:
    return f"{look.tokens} {place}"


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content, allow_nan=False, separators=(',', ':'))}\n\n".encode()
