"""Server of the page: address, token, and the guard that every request passes."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import parse_qs

from edgewise.errors import BadInput

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAITING = 128  # connections
NEEDED = 'the page needs FastAPI and uvicorn, which are not installed: pip install "edgewise[explore]"'
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
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


def serve(host: str, port: int, share: bool, tell: Callable[[str], None], folder: Path | None = None) -> None:
    """Answer until interrupted; `tell` is given the address once it can be opened; `folder` holds runs and planes."""
    if folder is not None and not folder.is_dir():
        raise BadInput(f"{folder} is not a folder. Give one with runs or planes below it, or none.")
    if host not in LOOPBACK and not share:
        raise BadInput(
            f"--host {host} lets other machines ask. Add --share to allow it: a token will be printed that every "
            "request must carry."
        )
    try:
        import uvicorn

        from edgewise.explorer.server import application
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("edgewise"):
            raise
        raise BadInput(f"{NEEDED} ({error})") from error
    from edgewise.explorer.serve import RequestGuard

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
    server.handle_exit = _leaving(server.handle_exit)  # type: ignore[method-assign]
    from edgewise.explorer.responses import close_workers

    if (
        threading.current_thread() is threading.main_thread()
    ):  # uvicorn raises the signal again when it has stopped
        signal.signal(signal.SIGTERM, _terminate)
    try:
        with listener:
            server.run(sockets=[listener])
    finally:
        close_workers()


def _terminate(number: int, _: FrameType | None) -> None:
    """Close the workers, then end by the signal."""
    from edgewise.explorer.responses import close_workers

    close_workers()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _leaving(leave: Callable[..., None]) -> Callable[..., None]:
    """Ctrl-C ends streams, and what was cut off by it is not reported as an error."""
    from edgewise.explorer.runs import leaving

    def left(*received: Any) -> None:
        leaving.set()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        leave(*received)

    return left


def allowed_hosts(port: int) -> frozenset[str]:
    """Return the names by which a browser on this machine reaches it."""
    return frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only where the protocol is given; with it every answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(WAITING)  # a browser that is faster than the server waits, and is not refused
    except (OSError, OverflowError) as error:
        listener.close()
        message = f"{host}:{port} cannot be used ({error}). Choose another with --port, or 0 for a free one."
        raise BadInput(message) from error
    return listener


class RequestGuard:
    """hosts: the values of Host that are answered, None for any; token: what every request must carry, or None."""

    def __init__(self, app: App, hosts: frozenset[str] | None, token: str | None = None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _refuse(send, *refusal)
        else:
            await self.app(scope, _limited(receive), self._dressed(scope, send))

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.hosts is not None and host not in self.hosts:
            return (
                421,
                "this server answers for this machine only. Open the address that `edgewise explore` printed.",
            )
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return 403, "a page of another origin may not ask here."
        if (
            headers.get("sec-fetch-site") in ("cross-site", "same-site")
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return 403, "a page of another origin may not ask here."
        if (
            not headers.get("content-length", "0").isdecimal()
            or int(headers.get("content-length", "0")) > LARGEST_BODY
        ):
            return 413, f"the request is larger than {LARGEST_BODY:,} bytes. A config is smaller."
        if self.token is not None and not self._has_token(scope, headers):
            return (
                401,
                "the token is missing or wrong. Open the whole address that `edgewise explore` printed.",
            )
        return None

    def _has_token(self, scope: Scope, headers: dict[str, str]) -> bool:
        assert self.token is not None
        candidates = [
            headers.get("x-edgewise-token", ""),
            self._in_address(scope),
            _cookie(headers.get("cookie", "")),
        ]
        return any(
            hmac.compare_digest(value.encode("utf-8", "replace"), self.token.encode()) for value in candidates
        )

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


def _cookie(text: str) -> str:
    try:
        morsel = SimpleCookie(text).get(COOKIE)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


def _encoded(pairs: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(key.encode(), value.encode()) for key, value in pairs]


def _limited(receive: Receive) -> Receive:
    """A body that does not say its size is cut off where it becomes too large."""
    total = 0

    async def limited() -> Message:
        nonlocal total
        message = await receive()
        total += len(message.get("body", b""))
        if total > LARGEST_BODY:
            return {"type": "http.disconnect"}
        return message

    return limited


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = _encoded(
        {**HEADERS, "content-type": "application/json", "content-length": str(len(body))}.items()
    )
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
