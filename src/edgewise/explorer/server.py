"""The application: routes of the JSON API and the static page, with refusals in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from threading import BoundedSemaphore
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import Request as HttpRequest

from edgewise import __version__
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.explorer import answers, networks
from edgewise.explorer.requests import MapRequest, PointRequest, Source

AT_ONCE = 4  # computations; others wait their turn
BUSY_SECONDS = 20.0
TYPES = {f".{end}": f"text/{kind}; charset=utf-8" for end, kind in (("html",) * 2, ("css",) * 2, ("js", "javascript"))}
_places = BoundedSemaphore(AT_ONCE)


def application() -> FastAPI:
    """Everything behind the guard; the schema is at /api/1/openapi.json."""
    app = FastAPI(
        title="edgewise explore", version=f"{answers.API}", docs_url=None, redoc_url=None,
        openapi_url=f"/api/{answers.API}/openapi.json",
        description=f"Verdicts and maps of edgewise {__version__}, for this machine's own page.",
    )  # fmt: skip
    app.add_exception_handler(BadInput, _bad_input)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    _add_api(app)
    _add_page(app)
    return app


def _add_api(app: FastAPI) -> None:
    prefix = f"/api/{answers.API}"
    refused: dict[int | str, dict[str, Any]] = {
        422: {"description": "Refused, in words."}, 503: {"description": "Too many computations at once."},
    }  # fmt: skip

    @app.get(f"{prefix}/catalogue")
    def catalogue() -> dict[str, Any]:
        """Presets, knobs and limits."""
        return answers.catalogue()

    @app.post(f"{prefix}/network", responses=refused)
    def network(source: Source) -> dict[str, Any]:
        """A network as the page shows it, with the axes it can be moved along."""
        return in_turn(lambda: answers.description(read(source), _own_tokens(source)))

    @app.post(f"{prefix}/map", responses=refused)
    def map_(wanted: MapRequest) -> Response:
        """The share of networks that trained over two knobs, and both critical lines."""
        return _json(in_turn(lambda: _map(wanted.model_dump_json())))

    @app.post(f"{prefix}/point", responses=refused)
    def point(wanted: PointRequest) -> Response:
        """The exact verdict of one network, with its curves; with its fixes where they are asked for."""
        return _json(in_turn(lambda: _point(wanted.model_dump_json())))

    @app.post(f"{prefix}/report", responses=refused, response_class=Response)
    def report(wanted: PointRequest) -> Response:
        """The report of one network, as a file."""
        text = in_turn(lambda: answers.report(moved(wanted), wanted.readout))
        headers = {"content-disposition": 'attachment; filename="report.html"'}
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def index() -> Response:
        return _file("index.html")

    @app.get("/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        return _file(name)


@lru_cache(maxsize=1)
def _static() -> dict[str, bytes]:
    """The files of the page, by name: nothing else can be asked for."""
    folder = files("edgewise.explorer").joinpath("static")
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(tuple(TYPES))}


def _file(name: str) -> Response:
    if name not in _static():
        raise HTTPException(404, "there is no such page here.")
    return Response(_static()[name], media_type=TYPES["." + name.rpartition(".")[2]])


def read(source: Source) -> Architecture:
    return networks.network(source.preset, source.config, source.name, source.depth, source.tokens)


def _own_tokens(source: Source) -> int | None:
    """The length that the source itself has, where the page follows a shorter one."""
    if source.tokens is not None:
        return None
    if source.preset is not None:
        from edgewise.adapters.describe import describe

        return getattr(describe(source.preset), "tokens", None)
    return networks.from_config(source.config or "", source.name, source.depth, None).tokens


def moved(wanted: PointRequest) -> Architecture:
    return networks.changed(read(wanted.source), dict(wanted.knobs))


@lru_cache(maxsize=64)
def _map(request: str) -> bytes:
    wanted = MapRequest.model_validate_json(request)
    axes = {axis.knob: (axis.low, axis.high) for axis in (wanted.x, wanted.y)}
    return _bytes(answers.map_answer(read(wanted.source), axes, wanted.points, wanted.readout))


@lru_cache(maxsize=2000)
def _point(request: str) -> bytes:
    wanted = PointRequest.model_validate_json(request)
    return _bytes(answers.point(moved(wanted), wanted.readout, wanted.fixes))


def in_turn(compute: Callable[[], Any]) -> Any:
    """A few computations at a time; who waits too long is told so."""
    if not _places.acquire(timeout=BUSY_SECONDS):
        raise HTTPException(503, "too many questions at once. Ask again in a moment.")
    try:
        return compute()
    finally:
        _places.release()


def _bytes(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


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
