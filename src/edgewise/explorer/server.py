"""Server of the page: routes of networks, routers of the other views, static files; address, token, guard."""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from types import FrameType
from typing import TypeVar
from urllib.parse import parse_qs

import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgewise import __version__
from edgewise.errors import BadInput
from edgewise.explorer import answers, flows, landscape, papers, perceptron_view, runs
from edgewise.explorer.answers import DepthRequest, FixesRequest, LimitRequest, SimulateRequest
from edgewise.explorer.positions_map import events, refuse_without_positions
from edgewise.explorer.requests import AxesRequest, MapRequest, NetworkSource, PointRequest, moved, read
from edgewise.explorer.responses import (
    ERRORS,
    attachment,
    by_thread,
    by_worker,
    close_workers,
    here,
    pieces,
    points,
)
from edgewise.files import Document

VIEWS = (flows, perceptron_view, runs, landscape, papers)  # beside that of networks
KINDS = {".html": "html", ".css": "css", ".js": "javascript"}  # of the page's files
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAITING = 128  # connections
LARGEST_BODY = 400_000  # bytes
COOKIE = "edgewise"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
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
    for kind in (BadInput, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _failed)
    for each in (router, *(view.router for view in VIEWS)):
        app.include_router(each, prefix=f"/api/{answers.API}")

    @app.get("/{name:path}", include_in_schema=False)
    def page(name: str) -> Response:
        if (name or "index.html") not in _page_files():
            raise HTTPException(404, "this page was not found.")
        content, kind = _page_files()[name or "index.html"]
        return Response(content, media_type=f"text/{kind}; charset=utf-8")

    return app


@cache
def _page_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page by path, each with its kind of text: nothing else can be requested."""
    folder = Path(__file__).parent / "static"
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), KINDS[path.suffix])
        for path in folder.rglob("*")
        if path.suffix in KINDS
    }


def _failed(_: HttpRequest, error: Exception) -> JSONResponse:
    """Return what is wrong in a sentence; of an invalid request the first field that will not do."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code)
    sentence = str(error)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "the request"
        sentence = f"{place}: {first['msg']}."
    return JSONResponse({"error": sentence.encode("utf-8", "replace").decode()}, 422)


@router.get("/catalogue")
async def catalogue() -> Document:
    """Return presets, knobs and limits. A page that asks will ask for a map next, so that a worker is started."""
    if not points.processes:
        points.submit(answers.ready)
    return await here(answers.catalogue)


@router.post("/network", responses=ERRORS)
async def network(source: NetworkSource) -> Document:
    """Return a network as the page shows it, with the axes it can be moved along."""
    return await here(lambda: answers.description(read(source), answers.own_tokens(source)))


@router.post("/map", responses=ERRORS)
async def map_(wanted: MapRequest, request: HttpRequest) -> Response:
    """Return the share of networks that trained over two knobs without their positions, and both critical lines."""
    if (await here(lambda: read(wanted.source))).depth * wanted.points**2 <= SHORT_MAP:
        return await by_thread(answers.map_answer, wanted)
    return await by_worker(points, request, answers.map_answer, wanted)


@router.post("/map/positions", responses=ERRORS, response_class=StreamingResponse)
async def map_with_positions(wanted: AxesRequest, request: HttpRequest) -> StreamingResponse:
    """Return server-sent events: how much is done, and the map of a network with mask and positions, finer each time.

    Whoever closes the connection stops the computation.
    """
    plain = await by_worker(points, request, answers.map_answer, MapRequest(**wanted.model_dump()))
    await here(lambda: refuse_without_positions(wanted))
    return StreamingResponse(
        events(wanted, json.loads(bytes(plain.body)), request), media_type="text/event-stream"
    )


@router.post("/point", responses=ERRORS)
async def point(wanted: PointRequest, request: HttpRequest) -> Response:
    """Return the exact verdict of one network, with its curves; with its fixes if they are asked for."""
    place = await here(lambda: moved(wanted))
    if wanted.fixes:
        return await by_worker(pieces, request, answers.point, wanted)
    if place.symmetric and place.depth <= SHORT_POINT:
        return await by_thread(answers.point, wanted)
    return await by_worker(points, request, answers.point, wanted)


@router.post("/report", responses=ERRORS, response_class=Response)
async def report(wanted: PointRequest, request: HttpRequest) -> Response:
    """Return the report of one network, as a file."""
    return attachment(
        json.loads(bytes((await _described(request, answers.report, wanted)).body)), "report.html"
    )


@router.post("/simulate", responses=ERRORS)
async def simulate(wanted: SimulateRequest, request: HttpRequest) -> Response:
    """Return the three curves of one random network, and how it differs from the description."""
    return await _described(request, answers.simulate, wanted)


@router.post("/depth", responses=ERRORS)
async def depth(wanted: DepthRequest, request: HttpRequest) -> Response:
    """Return the share at each depth, with its range and the outcome."""
    return await _described(request, answers.depth_answer, wanted)


@router.post("/depth/fixes", responses=ERRORS)
async def depth_fixes(wanted: FixesRequest, request: HttpRequest) -> Response:
    """Return the fixes at the depth of the source, in the shell's words."""
    return await _described(request, answers.depth_fixes, wanted)


@router.post("/depth/limit", responses=ERRORS)
async def depth_limit(wanted: LimitRequest, request: HttpRequest) -> Response:
    """Return the deepest network that trains, narrowed down between two depths, in a sentence."""
    return await _described(request, answers.depth_limit, wanted)


async def _described(request: HttpRequest, function: Callable[[Q], object], wanted: Q) -> Response:
    """By a worker, once the network is one that can be computed: an error need not wait."""
    await here(lambda: moved(wanted) if isinstance(wanted, PointRequest) else read(wanted.source))
    return await by_worker(pieces, request, function, wanted)


def serve(host: str, port: int, share: bool, tell: Callable[[str], None], folder: Path | None = None) -> None:
    """Answer until interrupted; `tell` is given the address once it can be opened; `folder` holds runs and planes."""
    if folder is not None and not folder.is_dir():
        raise BadInput(f"{folder} is not a folder. Give one with runs or planes below it, or none.")
    if host not in LOOPBACK and not share:
        raise BadInput(
            f"--host {host} lets other machines ask. Add --share to allow it: a token will be printed that every "
            "request must carry."
        )
    token = secrets.token_urlsafe(24) if share else None
    listener = _listener(host, port)
    own_port = listener.getsockname()[1]
    app = RequestGuard(application(folder), None if share else allowed_hosts(own_port), token)
    shown = f"[{host}]" if ":" in host else host
    tell(f"http://{shown}:{own_port}/" + (f"?token={token}" if token else ""))
    config = uvicorn.Config(
        app,
        log_level="warning",
        server_header=False,
        ws="none",
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    stop = server.handle_exit

    def leave(number: int, frame: FrameType | None) -> None:
        """End streams; what is cut off by it is not reported as an error."""
        runs.leaving.set()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        stop(number, frame)

    server.handle_exit = leave  # type: ignore[method-assign, assignment]
    # uvicorn raises the signal again when it has stopped
    if threading.current_thread() is threading.main_thread():

        def terminate(number: int, _: FrameType | None) -> None:
            """Close the workers, then end by the signal."""
            close_workers()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

        signal.signal(signal.SIGTERM, terminate)
    try:
        with listener:
            server.run(sockets=[listener])
    finally:
        close_workers()


def allowed_hosts(port: int) -> frozenset[str]:
    """Return the names by which a browser on this machine reaches it."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only if the protocol is given; with it every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name != "nt":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(WAITING)  # a browser that is faster than the server waits, and is not turned away
    except (OSError, OverflowError) as error:
        listener.close()
        message = f"{host}:{port} cannot be used ({error}). Choose another with --port, or 0 for a free one."
        raise BadInput(message) from error
    return listener


class RequestGuard:
    """hosts: the values of Host that are answered, None for any; token: what every request must carry, or None."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        error = self._error(scope, headers)
        if error is None:
            await self.app(scope, _limited(receive), self._dressed(scope, send))
            return
        status, sentence = error
        body = json.dumps({"error": sentence}).encode()
        about = {**HEADERS, "content-type": "application/json", "content-length": str(len(body))}
        await send({"type": "http.response.start", "status": status, "headers": _encoded(about.items())})
        await send({"type": "http.response.body", "body": body})

    def _error(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.hosts is not None and host not in self.hosts:
            only = (
                "this server answers for this machine only. Open the address that `edgewise explore` printed."
            )
            return 421, only
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "a page of another origin may not ask here."
        elsewhere = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return 403, "a page of another origin may not ask here."
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > LARGEST_BODY:
            return 413, f"the request is larger than {LARGEST_BODY:,} bytes. A config is smaller."
        if self.token is not None and not self._has_token(scope, headers):
            return (
                401,
                "the token is missing or wrong. Open the whole address that `edgewise explore` printed.",
            )
        return None

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        assert self.token is not None
        candidates = [headers.get("x-edgewise-token", ""), self._in_address(scope)]
        with suppress(CookieError):
            if cookie := SimpleCookie(headers.get("cookie", "")).get(COOKIE):
                candidates.append(cookie.value)
        own = self.token.encode()
        return any(hmac.compare_digest(value.encode("utf-8", "replace"), own) for value in candidates)

    @staticmethod
    def _in_address(scope: Scope) -> str:
        return parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]

    def _dressed(self, scope: Scope, send: Send) -> Send:
        """Every answer with the policy; the first visit with the token leaves it in a cookie of this page alone."""
        extra = dict(HEADERS)
        if self.token is not None and self._in_address(scope):
            extra["set-cookie"] = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_encoded(extra.items())]
            await send(message)

        return dressed


def _encoded(pairs: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(key.encode(), value.encode()) for key, value in pairs]


def _limited(receive: Receive) -> Receive:
    """Cut off a body that does not say its size where it becomes too large."""
    total = 0

    async def limited() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > LARGEST_BODY:
            return {"type": "http.disconnect"}
        return message

    return limited
