"""Process pool of the page: computations that can be canceled, end after a time limit, and survive a crash.

A `ProcessPoolExecutor` cannot stop one of its processes without losing the work of the others, so every thread of the
pool has an executor with one process. It is started when first needed and replaced after it has died.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.sharedctypes import Synchronized
from types import FrameType

from edgewise.errors import NO_TORCH, BadInput, lacks_torch

LIMIT = 120.0  # seconds of one computation, without the start of its process
START = 60.0  # seconds in which a process must have started
GRACE = 1.0  # seconds in which a canceled computation may stop by itself; then its process is killed
ENVIRONMENT = {  # that a process starts with
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYTHONSAFEPATH": "1",  # modules are not imported from the folder in which the page is started
}
_numbers = itertools.count(1)
_starting = threading.Lock()


class Cancelled(BaseException):
    """The computation was canceled; not an Exception, so that no `except Exception` on the way catches it."""


class NotAnswered(Exception):
    """The computation took too long, or its process died; the message is for the reader."""


class Computation:
    """One computation on its way through the pool."""

    def __init__(self, function: Callable[..., bytes], arguments: tuple[object, ...]) -> None:
        self.number, self.function, self.arguments = next(_numbers), function, arguments
        self.future: Future[bytes]
        self.cancelled = False
        self.worker: _Worker | None = None  # while it computes
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """Stop it if it waits or computes; a finished one stays as it is."""
        if self.future.cancel() or self.future.done():
            return
        with self._lock:
            self.cancelled = True
            if self.worker is not None:
                self.worker.interrupt(self.number)
                timer = threading.Timer(GRACE, self._kill)
                timer.daemon = True
                timer.start()

    def run(self, worker: _Worker) -> bytes:
        """Compute in this process; raise what the computation raises, or `NotAnswered`."""
        with self._lock:
            if self.cancelled:
                raise Cancelled
            self.worker = worker
        try:
            return worker.run(self.number, self.function, self.arguments)
        except BrokenProcessPool:
            code = worker.exit_code()
            if self.cancelled:
                raise Cancelled from None
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise NotAnswered(
                f"the process that computed this ended ({how}), which happens when memory is short. Ask again: a new "
                "one is started."
            ) from None
        except TimeoutError:
            worker.kill()
            raise NotAnswered(
                f"this was not done after {LIMIT:g} seconds and was stopped. Choose fewer blocks or tokens."
            ) from None
        finally:
            with self._lock:
                self.worker = None

    def _kill(self) -> None:
        with self._lock:
            if self.worker is not None:
                self.worker.kill()


class ProcessPool:
    """At most `most` worker processes; with a niceness they yield to others."""

    def __init__(self, most: int, niceness: int = 0) -> None:
        self._most, self._niceness = most, niceness
        self._threads = ThreadPoolExecutor(most)
        self._local = threading.local()
        self._workers: set[_Worker] = set()

    def submit(self, function: Callable[..., bytes], *arguments: object) -> Computation:
        """Queue a function of a module, with arguments that can be pickled."""
        job = Computation(function, arguments)
        job.future = self._threads.submit(self._run, job)
        return job

    def _run(self, job: Computation) -> bytes:
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None or not worker.alive:
            worker = self._local.worker = _Worker(self._niceness)
            self._workers = {each for each in self._workers if each.alive} | {worker}
        return job.run(worker)

    @property
    def processes(self) -> list[int]:
        """The ids of the processes that run."""
        return [each.id for each in self._workers if each.alive]

    def close(self) -> None:
        """Kill all processes, also those that compute; a later `submit` starts new ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill(wait=True)
        self._workers, self._local = set(), threading.local()
        self._threads = ThreadPoolExecutor(self._most)


class _Worker:
    """One process, and the number of the computation that it is to give up."""

    def __init__(self, niceness: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._cancelled: Synchronized[int] = context.Value("q", 0)
        self._executor = ProcessPoolExecutor(1, context, _prepare, (self._cancelled, niceness))
        with _starting:  # by the first submit; libraries read the number of threads when they are loaded
            before = {name: os.environ.get(name) for name in ENVIRONMENT}
            os.environ.update(ENVIRONMENT)
            try:
                first = self._executor.submit(os.getpid)
            finally:
                for name, value in before.items():
                    os.environ.pop(name)
                    if value is not None:
                        os.environ[name] = value
        try:
            self.id = first.result(START)
        except (BrokenProcessPool, TimeoutError) as error:
            self._executor.shutdown(wait=False, cancel_futures=True)
            raise NotAnswered(f"no process could be started to compute this ({error!r}).") from error
        self._killed = False
        self._process = next(p for p in multiprocessing.active_children() if p.pid == self.id)

    @property
    def alive(self) -> bool:
        return not self._killed and self._process.is_alive()

    def run(self, number: int, function: Callable[..., bytes], arguments: tuple[object, ...]) -> bytes:
        return self._executor.submit(_compute, number, function, arguments).result(LIMIT)

    def interrupt(self, number: int) -> None:
        self._cancelled.value = number
        with suppress(OSError):  # it has ended
            os.kill(self.id, signal.SIGINT)

    def kill(self, *, wait: bool = False) -> None:
        self._killed = True
        self._process.kill()
        self._executor.shutdown(wait=wait, cancel_futures=True)

    def exit_code(self) -> int:
        self._process.join(GRACE)
        return self._process.exitcode or 0


# What follows runs in the worker process.
_cancelled: Synchronized[int] | None = None
_current: int | None = None


def _prepare(cancelled: Synchronized[int], niceness: int) -> None:
    global _cancelled
    _cancelled = cancelled
    os.dup2(2, 1)  # what the library prints is not the answer of the shell
    if hasattr(os, "nice"):
        os.nice(niceness)
    signal.signal(signal.SIGINT, _interrupt)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        """End when the server ends, also if that is killed."""
        wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Stop what was canceled, but not inside an import, which cannot be repeated; Ctrl-C is for the server."""
    if _current is None or _cancelled is None or _cancelled.value != _current:
        return
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return
        frame = frame.f_back
    raise Cancelled


def _compute(number: int, function: Callable[..., bytes], arguments: tuple[object, ...]) -> bytes:
    global _current
    assert _cancelled is not None
    try:
        _current = number
        if _cancelled.value == number:
            raise Cancelled
        result = function(*arguments)
        _current = None
        return result
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  the server has to know, whatever it is
        if lacks_torch(error):
            raise BadInput(NO_TORCH) from None
        traceback.print_exc(file=sys.stderr)
        raise RuntimeError(f"{type(error).__name__}: {error}") from None  # an error of any class can be sent
    finally:
        _current = None
