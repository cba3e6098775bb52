"""The routes of networks: the map, the exact verdict at its dot, a random network there, and depth.

What takes long is computed by worker processes (`crew`); what is done sooner than a worker is asked, in a thread here.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from starlette.requests import Request as HttpRequest

from edgewise.explorer import answers, networks, tasks
from edgewise.explorer.depth import DepthRequest, FixesRequest, LimitRequest
from edgewise.explorer.positions_map import refuse_without_positions
from edgewise.explorer.positions_stream import events
from edgewise.explorer.replies import REFUSED, by_worker, here, json_reply, pieces, points
from edgewise.explorer.requests import AxesRequest, MapRequest, PointRequest, Source, moved, read
from edgewise.explorer.simulate import SimulateRequest

router = APIRouter()
SHORT_POINT = 96  # blocks without positions: a tenth of a second
SHORT_MAP = 64 * 12**2  # blocks times points
_map = lru_cache(maxsize=64)(tasks.map)
_point = lru_cache(maxsize=2000)(tasks.point)


@router.get("/catalogue")
async def catalogue() -> dict[str, Any]:
    """Presets, knobs and limits. A page that asks will ask for a map next, so that a worker is started."""
    if not points.processes:
        points.ask("ready", "")
    return await here(answers.catalogue)


@router.post("/network", responses=REFUSED)
async def network(source: Source) -> dict[str, Any]:
    """A network as the page shows it, with the axes it can be moved along."""
    return await here(lambda: answers.description(read(source), _own_tokens(source)))


@router.post("/map", responses=REFUSED)
async def map_(wanted: MapRequest, request: HttpRequest) -> Response:
    """The share of networks that trained over two knobs without their positions, and both critical lines."""
    question = wanted.model_dump_json()
    if (await here(lambda: read(wanted.source))).depth * wanted.points**2 <= SHORT_MAP:
        return json_reply(await here(lambda: _map(question)))
    return json_reply(await by_worker(points, request, "map", wanted))


@router.post("/map/positions", responses=REFUSED, response_class=StreamingResponse)
async def map_with_positions(wanted: AxesRequest, request: HttpRequest) -> StreamingResponse:
    """Server-sent events: how much is done, and the map of a network with mask and positions, finer each time.

    Whoever closes the connection stops the computation.
    """
    plain = await by_worker(points, request, "map", MapRequest(**wanted.model_dump()))
    await here(lambda: refuse_without_positions(wanted))
    return StreamingResponse(events(wanted, json.loads(plain), request), media_type="text/event-stream")


@router.post("/point", responses=REFUSED)
async def point(wanted: PointRequest, request: HttpRequest) -> Response:
    """The exact verdict of one network, with its curves; with its fixes where they are asked for."""
    question = wanted.model_dump_json()
    place = await here(lambda: moved(wanted))
    if wanted.fixes:
        return json_reply(await by_worker(pieces, request, "point", wanted))
    if place.symmetric and place.depth <= SHORT_POINT:
        return json_reply(await here(lambda: _point(question)))
    return json_reply(await by_worker(points, request, "point", wanted))


@router.post("/report", responses=REFUSED, response_class=Response)
async def report(wanted: PointRequest, request: HttpRequest) -> Response:
    """The report of one network, as a file."""
    text = json.loads(await _described(request, "report", wanted))
    headers = {"content-disposition": 'attachment; filename="report.html"'}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


@router.post("/simulate", responses=REFUSED)
async def simulate(wanted: SimulateRequest, request: HttpRequest) -> Response:
    """The three curves of one random network, and how it differs from the description."""
    return json_reply(await _described(request, "simulate", wanted))


@router.post("/depth", responses=REFUSED)
async def depth(wanted: DepthRequest, request: HttpRequest) -> Response:
    """The share at each depth, with its range and the outcome."""
    return json_reply(await _described(request, "depth", wanted))


@router.post("/depth/fixes", responses=REFUSED)
async def depth_fixes(wanted: FixesRequest, request: HttpRequest) -> Response:
    """The fixes at the depth of the source, in the shell's words."""
    return json_reply(await _described(request, "depth_fixes", wanted))


@router.post("/depth/limit", responses=REFUSED)
async def depth_limit(wanted: LimitRequest, request: HttpRequest) -> Response:
    """The deepest network that trains, narrowed down between two depths, in a sentence."""
    return json_reply(await _described(request, "depth_limit", wanted))


async def _described(request: HttpRequest, task: str, wanted: PointRequest | FixesRequest) -> bytes:
    """By a worker, once the network is one that can be asked about: a refusal need not wait."""
    await here(lambda: moved(wanted) if isinstance(wanted, PointRequest) else read(wanted.source))
    return await by_worker(pieces, request, task, wanted)


def _own_tokens(source: Source) -> int | None:
    """The length that the source itself has, where the page follows a shorter one."""
    if source.tokens is not None:
        return None
    if source.preset is not None:
        from edgewise.models.describe import describe

        return getattr(describe(source.preset), "tokens", None)
    return networks.from_config(source.config or "", source.name, source.depth, None).tokens
