"""Responses of the API: computed in a thread or by worker processes, kept, canceled when the client leaves.

Long computations are canceled when the reader leaves the view, changes the request or closes the page.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from threading import BoundedSemaphore
from typing import TypeVar

from fastapi import HTTPException, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest

from edgewise.explorer.answers import as_json
from edgewise.explorer.process_pool import Cancelled, Computation, NotAnswered, ProcessPool
from edgewise.files import Document

T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)
COMPUTED_AT_ONCE = 4  # computations in this process; others wait their turn
BUSY_SECONDS = 20.0
LOOK_EVERY = 0.1  # seconds between two looks whether the asker is still there
LEFT = 499  # the reader has left
KEPT_BYTES = 64_000_000
BESIDE = 200  # bytes that a dictionary needs beside an answer
ERRORS: dict[int | str, Document] = {
    422: {"description": "Rejected, with the reason."},
    503: {"description": "Too many computations at once, or one that was stopped, with the reason."},
}
_places = BoundedSemaphore(COMPUTED_AT_ONCE)
_cores = os.cpu_count() or 1
# A second at most: places of the dot, and maps without positions.
points = ProcessPool(min(2, max(1, _cores // 2)))
# What takes longer waits here, piece by piece, and does not hold up a point.
pieces = ProcessPool(min(4, max(2, _cores)), niceness=2)


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
        key = self._key(question)
        if key in self.answers:
            self.answers.move_to_end(key)
        return self.answers.get(key)

    def keep(self, answer: bytes, *question: str) -> None:
        key = self._key(question)
        before = self.answers.pop(key, None)
        self.size += len(answer) + BESIDE - (0 if before is None else len(before) + BESIDE)
        self.answers[key] = answer
        while self.size > self.most:
            self.size -= len(self.answers.popitem(last=False)[1]) + BESIDE

    @staticmethod
    def _key(question: Sequence[str]) -> bytes:
        return sha256(json.dumps(question).encode()).digest()


kept = Kept(KEPT_BYTES)


def in_turn(compute: Callable[[], T]) -> T:
    """Compute, a few at a time; raise an error with status 503 after too long a wait."""
    if not _places.acquire(timeout=BUSY_SECONDS):
        raise HTTPException(503, "too many questions at once. Ask again in a moment.")
    try:
        return compute()
    finally:
        _places.release()


async def here(compute: Callable[[], T]) -> T:
    """Compute in a thread of this process, for what is done sooner than a worker is started."""
    return await run_in_threadpool(in_turn, compute)


async def by_thread(function: Callable[[R], object], wanted: R) -> Response:
    """Answer in a thread of this process, or as before."""
    return await _kept(function, wanted, lambda: here(lambda: as_json(function, wanted)))


async def by_worker(
    pool: ProcessPool, request: HttpRequest, function: Callable[[R], object], wanted: R
) -> Response:
    """Answer by a worker process, or as before."""

    async def compute() -> bytes:
        return (await waited([pool.submit(as_json, function, wanted)], request))[0]

    return await _kept(function, wanted, compute)


async def _kept(
    function: Callable[[R], object], wanted: R, compute: Callable[[], Awaitable[bytes]]
) -> Response:
    question = f"{function.__module__}.{function.__qualname__}", wanted.model_dump_json()
    answer = kept.get(*question)
    if answer is None:
        answer = await compute()
        kept.keep(answer, *question)
    return json_reply(answer)


async def waited(jobs: Sequence[Computation], request: HttpRequest) -> list[bytes]:
    """Return what jobs give, in their order; all are given up as soon as one fails or their asker is gone."""
    results = [asyncio.wrap_future(job.future) for job in jobs]
    try:
        while not all(result.done() for result in results):
            done, _ = await asyncio.wait(results, timeout=LOOK_EVERY, return_when=asyncio.FIRST_EXCEPTION)
            if failed := [result for result in done if result.exception()]:
                failed[0].result()
            if await request.is_disconnected():
                raise HTTPException(LEFT, "the request was canceled.")
        return [result.result() for result in results]
    except NotAnswered as reason:
        raise HTTPException(503, str(reason)) from reason
    except Cancelled as left:
        raise HTTPException(LEFT, "this was given up.") from left
    finally:
        for job, result in zip(jobs, results, strict=True):
            job.cancel()
            result.cancel()


def attachment(text: str, name: str, kind: str = "html") -> Response:
    """Send a text as a file of that name."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=f"text/{kind}; charset=utf-8", headers=headers)


def json_reply(content: bytes) -> Response:
    """Send JSON that is text already."""
    return Response(content, media_type="application/json")
