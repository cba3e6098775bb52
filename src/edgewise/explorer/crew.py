"""Worker processes for what takes long: started when first needed, stopped when nobody waits, replaced when dead."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from edgewise.errors import BadInput

LIMIT = 120.0  # seconds of one computation, with the start of its process
GRACE = 1.0  # seconds in which a cancelled one may stop by itself; then its process is ended
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_numbers = itertools.count(1)


class GivenUp(Exception):
    """Nobody waits for the answer any more."""


class NotAnswered(Exception):
    """A computation that took too long, or whose process ended; the message is for the reader."""


class Job:
    """One question on its way through a worker."""

    def __init__(self, task: str, request: str) -> None:
        self.number, self.task, self.request = next(_numbers), task, request
        self.future: Future[bytes]
        self.given_up = self.too_long = False
        self._process: _Process | None = None
        self._lock = threading.Lock()

    def give_up(self) -> None:
        """Stop it, wherever it is; nothing happens where it is done."""
        if self.future.cancel() or self.future.done():
            return
        with self._lock:
            self.given_up = True
            if self._process is not None:
                self._process.cancel(self.number)
                _later(GRACE, self._kill)

    def run(self, process: _Process) -> bytes:
        with self._lock:
            if self.given_up:
                raise GivenUp
            self._process = process
        timer = _later(LIMIT, self._out_of_time)
        try:
            return process.answer(self)
        finally:
            timer.cancel()
            with self._lock:
                self._process = None

    def _out_of_time(self) -> None:
        self.too_long = True
        self._kill()

    def _kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()


class Crew:
    """At most so many worker processes, each with a thread that waits for it; nice ones let others go first."""

    def __init__(self, most: int, niceness: int = 0) -> None:
        self._most, self._niceness = most, niceness
        self._threads = ThreadPoolExecutor(most)
        self._own = threading.local()
        self._processes: set[_Process] = set()

    def ask(self, task: str, request: str) -> Job:
        """task: the name of a function of `tasks`; request: what it is given."""
        job = Job(task, request)
        job.future = self._threads.submit(self._answer, job)
        return job

    def _answer(self, job: Job) -> bytes:
        process = getattr(self._own, "process", None)
        if process is None or process.dead:
            process = self._own.process = _Process(self._niceness)
            self._processes = {each for each in self._processes if not each.dead} | {process}
        return job.run(process)

    @property
    def processes(self) -> list[int]:
        """The ids of those that run."""
        return [each.id for each in self._processes if not each.dead]

    def close(self) -> None:
        """End all, also those that compute; whoever asks again gets new ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads = ThreadPoolExecutor(self._most)


class _Process:
    def __init__(self, niceness: int) -> None:
        # -P: a folder of runs in which the page is started is no place for modules
        command = [sys.executable, "-P", "-m", "edgewise.explorer.worker", str(niceness)]
        pipe, environment = subprocess.PIPE, os.environ | ONE_THREAD
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        self.id = self._process.pid

    @property
    def dead(self) -> bool:
        return self._process.poll() is not None

    def cancel(self, number: int) -> None:
        self._tell({"cancel": number})

    def kill(self) -> None:
        self._process.kill()

    def answer(self, job: Job) -> bytes:
        """The answer, or the reason why there is none."""
        assert self._process.stdout is not None
        self._tell({"number": job.number, "task": job.task, "request": job.request})
        line = self._process.stdout.readline().rstrip(b"\n")
        kind, content = line[:1], line[1:]
        if kind == b"=":
            return content
        if kind == b"!":
            raise BadInput(json.loads(content))
        if kind == b"?":
            raise RuntimeError(json.loads(content))
        if kind == b"-":
            raise GivenUp
        self.kill()  # its output is closed: it has ended, or is about to
        code = self._process.wait()
        if job.given_up:
            raise GivenUp
        raise NotAnswered(self._why(job, code))

    @staticmethod
    def _why(job: Job, code: int) -> str:
        if job.too_long:
            return (
                f"this was not done after {LIMIT:g} seconds and was stopped. Choose fewer blocks or tokens."
            )
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return (
            f"the process that computed this ended ({how}), as happens where memory is short. Ask again: a new one is "
            "started."
        )

    def _tell(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:  # it has ended, which reading from it will show
            pass


def _later(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer
