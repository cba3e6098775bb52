"""FastAPI application of the page: routes of networks, routers of the other views, static files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

from fastapi import APIRouter, FastAPI, HTTPException, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import Request as HttpRequest

from edgewise import __version__
from edgewise.errors import BadInput
from edgewise.explorer import (
    answers,
    flow,
    landscape,
    papers,
    perceptron_view,
    runs,
    simplex,
)
from edgewise.explorer import depth as depth_view
from edgewise.explorer.answers import SimulateRequest
from edgewise.explorer.depth import DepthRequest, FixesRequest, LimitRequest
from edgewise.explorer.positions_map import events, refuse_without_positions
from edgewise.explorer.requests import (
    AxesRequest,
    Document,
    MapRequest,
    NetworkSource,
    PointRequest,
    from_config,
    moved,
    read,
)
from edgewise.explorer.responses import REFUSED, by_thread, by_worker, here, json_reply, pieces, points

ROUTERS = (  # one for each view beside that of networks
    flow.router,
    perceptron_view.router,
    simplex.router,
    runs.router,
    landscape.router,
    papers.router,
)
TYPES = {
    f".{end}": f"text/{kind}; charset=utf-8"
    for end, kind in (("html",) * 2, ("css",) * 2, ("js", "javascript"))
}
router = APIRouter()
Q = TypeVar("Q", PointRequest, SimulateRequest, FixesRequest, DepthRequest, LimitRequest)
SHORT_POINT = 96  # blocks without positions: a tenth of a second
SHORT_MAP = 64 * 12**2  # blocks times points


def application(folder: Path | None = None) -> FastAPI:
    """Return everything behind the guard; the schema is at /api/1/openapi.json. Files are read below `folder` alone."""
    app = FastAPI(
        title="edgewise explore",
        version=f"{answers.API}",
        docs_url=None,
        redoc_url=None,
        openapi_url=f"/api/{answers.API}/openapi.json",
        description=f"Verdicts and maps of edgewise {__version__}, for this machine's own page.",
    )
    app.state.folder = folder
    app.add_exception_handler(BadInput, _bad_input)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    for each in (router, *ROUTERS):
        app.include_router(each, prefix=f"/api/{answers.API}")
    _add_page(app)
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return _file("index.html")

    @app.get("/{name:path}", include_in_schema=False)
    def static(name: str) -> Response:
        return _file(name)


@lru_cache(maxsize=1)
def _static() -> dict[str, bytes]:
    """The files of the page, by path: nothing else can be asked for."""
    return dict(_walk(files("edgewise.explorer").joinpath("static"), ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(tuple(TYPES)):
            yield prefix + entry.name, entry.read_bytes()


def _file(name: str) -> Response:
    if name not in _static():
        raise HTTPException(404, "there is no such page here.")
    return Response(_static()[name], media_type=TYPES["." + name.rpartition(".")[2]])


def _bad_input(_: HttpRequest, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error).encode("utf-8", "replace").decode()}, 422)


def _http(_: HttpRequest, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _invalid(_: HttpRequest, error: Exception) -> JSONResponse:
    """The first field that will not do, and why."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body") or "the request"
    return JSONResponse({"error": f"{place}: {first['msg']}.".encode("utf-8", "replace").decode()}, 422)


@router.get("/catalogue")
async def catalogue() -> Document:
    """Return presets, knobs and limits. A page that asks will ask for a map next, so that a worker is started."""
    if not points.processes:
        points.submit(answers.ready)
    return await here(answers.catalogue)


@router.post("/network", responses=REFUSED)
async def network(source: NetworkSource) -> Document:
    """Return a network as the page shows it, with the axes it can be moved along."""
    return await here(lambda: answers.description(read(source), _own_tokens(source)))


@router.post("/map", responses=REFUSED)
async def map_(wanted: MapRequest, request: HttpRequest) -> Response:
    """Return the share of networks that trained over two knobs without their positions, and both critical lines."""
    if (await here(lambda: read(wanted.source))).depth * wanted.points**2 <= SHORT_MAP:
        return json_reply(await by_thread(answers.map_answer, wanted))
    return json_reply(await by_worker(points, request, answers.map_answer, wanted))


@router.post("/map/positions", responses=REFUSED, response_class=StreamingResponse)
async def map_with_positions(wanted: AxesRequest, request: HttpRequest) -> StreamingResponse:
    """Return server-sent events: how much is done, and the map of a network with mask and positions, finer each time.

    Whoever closes the connection stops the computation.
    """
    plain = await by_worker(points, request, answers.map_answer, MapRequest(**wanted.model_dump()))
    await here(lambda: refuse_without_positions(wanted))
    return StreamingResponse(events(wanted, json.loads(plain), request), media_type="text/event-stream")


@router.post("/point", responses=REFUSED)
async def point(wanted: PointRequest, request: HttpRequest) -> Response:
    """Return the exact verdict of one network, with its curves; with its fixes where they are asked for."""
    place = await here(lambda: moved(wanted))
    if wanted.fixes:
        return json_reply(await by_worker(pieces, request, answers.point, wanted))
    if place.symmetric and place.depth <= SHORT_POINT:
        return json_reply(await by_thread(answers.point, wanted))
    return json_reply(await by_worker(points, request, answers.point, wanted))


@router.post("/report", responses=REFUSED, response_class=Response)
async def report(wanted: PointRequest, request: HttpRequest) -> Response:
    """Return the report of one network, as a file."""
    text = json.loads(await _described(request, answers.report, wanted))
    headers = {"content-disposition": 'attachment; filename="report.html"'}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


@router.post("/simulate", responses=REFUSED)
async def simulate(wanted: SimulateRequest, request: HttpRequest) -> Response:
    """Return the three curves of one random network, and how it differs from the description."""
    return json_reply(await _described(request, answers.simulate, wanted))


@router.post("/depth", responses=REFUSED)
async def depth(wanted: DepthRequest, request: HttpRequest) -> Response:
    """Return the share at each depth, with its range and the outcome."""
    return json_reply(await _described(request, depth_view.answer, wanted))


@router.post("/depth/fixes", responses=REFUSED)
async def depth_fixes(wanted: FixesRequest, request: HttpRequest) -> Response:
    """Return the fixes at the depth of the source, in the shell's words."""
    return json_reply(await _described(request, depth_view.fixes_answer, wanted))


@router.post("/depth/limit", responses=REFUSED)
async def depth_limit(wanted: LimitRequest, request: HttpRequest) -> Response:
    """Return the deepest network that trains, narrowed down between two depths, in a sentence."""
    return json_reply(await _described(request, depth_view.limit, wanted))


async def _described(request: HttpRequest, function: Callable[[Q], object], wanted: Q) -> bytes:
    """By a worker, once the network is one that can be asked about: a refusal need not wait."""
    await here(lambda: moved(wanted) if isinstance(wanted, PointRequest) else read(wanted.source))
    return await by_worker(pieces, request, function, wanted)


def _own_tokens(source: NetworkSource) -> int | None:
    """The length that the source itself has, where the page follows a shorter one."""
    if source.tokens is not None:
        return None
    if source.preset is not None:
        from edgewise.models.describe import describe

        return getattr(describe(source.preset), "tokens", None)
    return from_config(source.config or "", source.name, source.depth, None).tokens
