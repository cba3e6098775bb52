"""How questions are answered: a few computations at a time, as JSON, with refusals described in the schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import BoundedSemaphore
from typing import Any, TypeVar

from fastapi import HTTPException, Response

T = TypeVar("T")
AT_ONCE = 4  # computations; others wait their turn
BUSY_SECONDS = 20.0
REFUSED: dict[int | str, dict[str, Any]] = {
    422: {"description": "Refused, in words."},
    503: {"description": "Too many computations at once."},
}
_places = BoundedSemaphore(AT_ONCE)


def in_turn(compute: Callable[[], T]) -> T:
    """A few computations at a time; who waits too long is told so."""
    if not _places.acquire(timeout=BUSY_SECONDS):
        raise HTTPException(503, "too many questions at once. Ask again in a moment.")
    try:
        return compute()
    finally:
        _places.release()


def as_bytes(value: Any) -> bytes:
    """JSON without spaces; a number that is not finite is an error of ours."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def json_reply(content: bytes) -> Response:
    return Response(content, media_type="application/json")
