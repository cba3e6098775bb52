"""The map: a network, the share of its neighbours that trained over two knobs, and the exact verdict of one of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from fastapi import APIRouter, Response

from edgewise.explorer import answers, networks
from edgewise.explorer.replies import REFUSED, as_bytes, in_turn, json_reply
from edgewise.explorer.requests import MapRequest, PointRequest, Source, moved, read

router = APIRouter()


@router.get("/catalogue")
def catalogue() -> dict[str, Any]:
    """Presets, knobs and limits."""
    return answers.catalogue()


@router.post("/network", responses=REFUSED)
def network(source: Source) -> dict[str, Any]:
    """A network as the page shows it, with the axes it can be moved along."""
    return in_turn(lambda: answers.description(read(source), _own_tokens(source)))


@router.post("/map", responses=REFUSED)
def map_(wanted: MapRequest) -> Response:
    """The share of networks that trained over two knobs, and both critical lines."""
    return json_reply(in_turn(lambda: _map(wanted.model_dump_json())))


@router.post("/point", responses=REFUSED)
def point(wanted: PointRequest) -> Response:
    """The exact verdict of one network, with its curves; with its fixes where they are asked for."""
    return json_reply(in_turn(lambda: _point(wanted.model_dump_json())))


@router.post("/report", responses=REFUSED, response_class=Response)
def report(wanted: PointRequest) -> Response:
    """The report of one network, as a file."""
    text = in_turn(lambda: answers.report(moved(wanted), wanted.readout))
    headers = {"content-disposition": 'attachment; filename="report.html"'}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def _own_tokens(source: Source) -> int | None:
    """The length that the source itself has, where the page follows a shorter one."""
    if source.tokens is not None:
        return None
    if source.preset is not None:
        from edgewise.adapters.describe import describe

        return getattr(describe(source.preset), "tokens", None)
    return networks.from_config(source.config or "", source.name, source.depth, None).tokens


@lru_cache(maxsize=64)
def _map(request: str) -> bytes:
    wanted = MapRequest.model_validate_json(request)
    axes = {axis.knob: (axis.low, axis.high) for axis in (wanted.x, wanted.y)}
    return as_bytes(answers.map_answer(read(wanted.source), axes, wanted.points, wanted.readout))


@lru_cache(maxsize=2000)
def _point(request: str) -> bytes:
    wanted = PointRequest.model_validate_json(request)
    return as_bytes(answers.point(moved(wanted), wanted.readout, wanted.fixes))
