"""Worker processes: exact answers, work that stops when it is given up, and a new one where one has died."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from edgewise.errors import BadInput

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")

from edgewise.explorer import answers, process_pool, responses
from edgewise.explorer.process_pool import Cancelled, Computation, NotAnswered, ProcessPool
from edgewise.explorer.requests import NetworkSource, PointRequest
from tests.support.browser import alive, children

PROC = Path("/proc")
SMALL = PointRequest(source=NetworkSource(preset="gpt2", depth=2, tokens=8))
SIMULATED = answers.SimulateRequest(source=SMALL.source)
LONG = answers.DepthRequest(  # the longest that is answered
    source=NetworkSource(preset="gpt2", tokens=64), depths=[96, 90, 70]
)
SHORT = answers.DepthRequest(  # the same, with all that is imported
    source=NetworkSource(preset="gpt2", tokens=4), depths=[2]
)


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPool]:
    workers = ProcessPool(1)
    yield workers
    workers.close()


def ask(workers: ProcessPool, function: Any, wanted: Any) -> Computation:
    return workers.submit(answers.as_json, function, wanted)


def started(workers: ProcessPool, function: Any, wanted: Any) -> Computation:
    """A job that has reached its worker."""
    job = ask(workers, function, wanted)
    wait_until(lambda: job.worker is not None)
    time.sleep(0.1)
    return job


def wait_until(true: Any, seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_worker_gives_the_same_answer_refuses_in_the_same_words_and_loads_no_torch(
    workers: ProcessPool,
) -> None:
    assert workers.processes == []  # none before it is needed
    assert ask(workers, answers.point, SMALL).future.result(60) == answers.as_json(answers.point, SMALL)
    with pytest.raises(BadInput, match="'nothing' is not a preset"):
        ask(workers, answers.point, PointRequest(source=NetworkSource(preset="nothing"))).future.result(60)
    with pytest.raises(RuntimeError, match="TypeError"):
        ask(workers, answers.catalogue, SMALL).future.result(60)
    (process,) = workers.processes
    if PROC.is_dir():
        assert "libtorch" not in (PROC / str(process) / "maps").read_text()


def test_what_is_given_up_stops_and_its_worker_goes_on(
    workers: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 600.0)  # it stops by itself, however busy the machine is
    ask(workers, answers.depth_answer, SHORT).future.result(60)
    before = workers.processes
    job, waiting = started(workers, answers.depth_answer, LONG), ask(workers, answers.depth_answer, LONG)
    waiting.cancel()
    job.cancel()
    with pytest.raises(Cancelled):
        job.future.result(60)
    assert waiting.future.cancelled()
    assert ask(workers, answers.point, SMALL).future.result(60) and workers.processes == before


def test_what_does_not_stop_is_killed_and_a_new_worker_answers(
    workers: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.submit(answers.ready).future.result(60)
    (first,) = workers.processes
    monkeypatch.setattr(process_pool, "GRACE", 0.1)
    job = started(workers, answers.simulate, SIMULATED)  # loads torch first, which is not interrupted
    job.cancel()
    with pytest.raises(Cancelled):
        job.future.result(60)
    assert workers.submit(answers.ready).future.result(60)
    (second,) = workers.processes
    assert second != first and not alive(first)


def needs_torch() -> bytes:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


def test_a_worker_without_torch_says_what_to_install(workers: ProcessPool) -> None:
    with pytest.raises(BadInput, match="pip install torch"):
        workers.submit(needs_torch).future.result(60)


def test_a_worker_that_dies_is_said_so_and_replaced(workers: ProcessPool) -> None:
    workers.submit(answers.ready).future.result(60)
    (process,) = workers.processes
    job = started(workers, answers.depth_answer, LONG)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(NotAnswered, match=r"ended .signal 9.*Ask again"):
        job.future.result(60)
    assert workers.submit(answers.ready).future.result(60)


def test_what_takes_too_long_is_stopped(workers: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.submit(answers.ready).future.result(60)
    monkeypatch.setattr(process_pool, "LIMIT", 0.2)
    with pytest.raises(NotAnswered, match=r"not done after 0\.2 seconds"):
        ask(workers, answers.depth_answer, LONG).future.result(60)


def test_who_hangs_up_gives_all_of_it_up(workers: ProcessPool) -> None:
    class Left:
        async def is_disconnected(self) -> bool:
            return True

    workers.submit(answers.ready).future.result(60)
    jobs = [started(workers, answers.depth_answer, LONG), ask(workers, answers.depth_answer, LONG)]
    with pytest.raises(responses.HTTPException, match="499"):
        asyncio.run(responses.waited(jobs, Left()))  # type: ignore[arg-type]
    with pytest.raises(Cancelled):
        jobs[0].future.result(60)
    assert jobs[1].future.cancelled()


def test_answers_are_kept_until_there_is_no_room() -> None:
    kept = responses.Kept(1000)
    for number in range(4):
        kept.keep(b"x" * 100, "task", str(number))
    assert [kept.get("task", str(number)) for number in range(4)] == [
        None,
        b"x" * 100,
        b"x" * 100,
        b"x" * 100,
    ]
    kept.keep(b"y", "task", "1")
    assert kept.get("task", "1") == b"y" and kept.size == 3 * 300 - 99


@pytest.mark.skipif(not PROC.is_dir(), reason="children are looked up in /proc")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_its_server(ending: signal.Signals) -> None:
    command = [sys.executable, "-u", "-m", "edgewise", "explore", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = urlsplit(server.stdout.readline().split()[2]).netloc
            HTTPConnection(address).request("GET", "/api/1/catalogue")  # starts a worker
            wait_until(lambda: len(children(server.pid)) == 2)  # with the resource tracker of multiprocessing
            workers = children(server.pid)
            server.send_signal(ending)
            wait_until(lambda: not any(map(alive, workers)), 10)
        finally:
            server.kill()
