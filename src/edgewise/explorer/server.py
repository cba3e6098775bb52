"""The application: routes of the JSON API and the static page, with refusals in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import FastAPI, HTTPException, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.requests import Request as HttpRequest

from edgewise import __version__
from edgewise.errors import BadInput
from edgewise.explorer import (
    answers,
    flow,
    landscape,
    papers,
    perceptron,
    routes,
    runs,
    simplex,
    trace_file,
)

ROUTERS = (  # of networks, then one for each other view
    routes.router,
    flow.router,
    perceptron.router,
    simplex.router,
    runs.router,
    landscape.router,
    papers.router,
    trace_file.router,
)
TYPES = {
    f".{end}": f"text/{kind}; charset=utf-8"
    for end, kind in (("html",) * 2, ("css",) * 2, ("js", "javascript"))
}


def application(folder: Path | None = None) -> FastAPI:
    """Everything behind the guard; the schema is at /api/1/openapi.json. Files are read below `folder` alone."""
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
    for router in ROUTERS:
        app.include_router(router, prefix=f"/api/{answers.API}")
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
