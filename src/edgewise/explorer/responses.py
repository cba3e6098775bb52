"""Responses of the API: computed in a thread or by worker processes, kept, cancelled when the client leaves.

What takes long is given up when nobody waits for it: the reader left the view, moved on, or closed the page.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from threading import BoundedSemaphore
from typing import TypeVar

from fastapi import HTTPException, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest

from edgewise.explorer.answers import as_json
from edgewise.explorer.process_pool import Cancelled, Computation, NotAnswered, ProcessPool
from edgewise.explorer.requests import Document

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)
COMPUTED_AT_ONCE = 4  # computations in this process; others wait their turn
BUSY_SECONDS = 20.0
LOOK_EVERY = 0.1  # seconds between two looks whether the asker is still there
LEFT = 499  # nobody reads this answer
KEPT_BYTES = 64_000_000
REFUSED: dict[int | str, Document] = {
    422: {"description": "Refused, in words."},
    503: {"description": "Too many computations at once, or one that was stopped, in words."},
}
_places = BoundedSemaphore(COMPUTED_AT_ONCE)
_cores = os.cpu_count() or 1
points = ProcessPool(
    min(2, max(1, _cores // 2))
)  # a second at most: places of the dot, and maps without positions
pieces = ProcessPool(
    min(4, max(2, _cores)), niceness=2
)  # what takes longer waits here, piece by piece, and holds no point up


def close_workers() -> None:
    """Kill all worker processes."""
    for pool in (points, pieces):
        pool.close()


class Kept:
    """Answers by a hash of their question, the oldest forgotten first."""

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self.answers: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, *question: str) -> bytes | None:
        key = _hash(question)
        if key in self.answers:
            self.answers.move_to_end(key)
        return self.answers.get(key)

    def keep(self, answer: bytes, *question: str) -> None:
        key = _hash(question)
        self.size += _room(answer) - _room(self.answers.pop(key, None))
        self.answers[key] = answer
        while self.size > self.most:
            self.size -= _room(self.answers.popitem(last=False)[1])


def _hash(question: Sequence[str]) -> bytes:
    return sha256(json.dumps(question).encode()).digest()


def _room(answer: bytes | None) -> int:
    """Bytes with what a dictionary needs beside them."""
    return 0 if answer is None else len(answer) + 200


kept = Kept(KEPT_BYTES)


def in_turn(compute: Callable[[], T]) -> T:
    """Return a few computations at a time; who waits too long is told so."""
    if not _places.acquire(timeout=BUSY_SECONDS):
        raise HTTPException(503, "too many questions at once. Ask again in a moment.")
    try:
        return compute()
    finally:
        _places.release()


async def here(compute: Callable[[], T]) -> T:
    """Compute in a thread of this process, for what is done sooner than a worker is started."""
    return await run_in_threadpool(in_turn, compute)


async def by_thread(function: Callable[[R], object], wanted: R) -> bytes:
    """Return the answer of a thread of this process, or the one that was given before."""
    question = _question(function, wanted)
    answer = kept.get(*question)
    if answer is None:
        answer = await here(lambda: as_json(function, wanted))
        kept.keep(answer, *question)
    return answer


async def by_worker(
    pool: ProcessPool, request: HttpRequest, function: Callable[[R], object], wanted: R
) -> bytes:
    """Return the answer of a worker process, or the one that was given before."""
    question = _question(function, wanted)
    answer = kept.get(*question)
    if answer is None:
        (answer,) = await waited([pool.submit(as_json, function, wanted)], request)
        kept.keep(answer, *question)
    return answer


def _question(function: Callable[[R], object], wanted: R) -> tuple[str, str]:
    return f"{function.__module__}.{function.__qualname__}", wanted.model_dump_json()


async def waited(jobs: Sequence[Computation], request: HttpRequest) -> list[bytes]:
    """Return what jobs give, in their order; all are given up as soon as one fails or their asker is gone."""
    results = [asyncio.wrap_future(job.future) for job in jobs]
    try:
        while not all(result.done() for result in results):
            done, _ = await asyncio.wait(results, timeout=LOOK_EVERY, return_when=asyncio.FIRST_EXCEPTION)
            if failed := [result for result in done if result.exception()]:
                failed[0].result()
            if await request.is_disconnected():
                raise HTTPException(LEFT, "nobody waits for this any more.")
        return [result.result() for result in results]
    except NotAnswered as reason:
        raise HTTPException(503, str(reason)) from reason
    except Cancelled as left:
        raise HTTPException(LEFT, "this was given up.") from left
    finally:
        for job, result in zip(jobs, results, strict=True):
            job.cancel()
            result.cancel()


def json_reply(content: bytes) -> Response:
    return Response(content, media_type="application/json")
