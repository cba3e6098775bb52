"""Run the page: on this machine alone, or for others with a token."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAITING = 128  # connections
NEEDED = 'the page needs FastAPI and uvicorn, which are not installed: pip install "edgewise[explore]"'


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
    from edgewise.explorer.guard import Guard

    token = secrets.token_urlsafe(24) if share else None
    listener = _listener(host, port)
    own_port = listener.getsockname()[1]
    app = Guard(application(folder), None if share else allowed_hosts(own_port), token)
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
    from edgewise.explorer.replies import close_workers

    try:
        with listener:
            server.run(sockets=[listener])
    finally:
        close_workers()


def _leaving(leave: Callable[..., None]) -> Callable[..., None]:
    """Ctrl-C ends streams, and what was cut off by it is not reported as an error."""
    from edgewise.explorer.runs import leaving

    def left(*signal: Any) -> None:
        leaving.set()
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        leave(*signal)

    return left


def allowed_hosts(port: int) -> frozenset[str]:
    """The names by which a browser on this machine reaches it."""
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
