"""One case in a process of its own: a crash, a hang or a hunger for memory ends that case and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import resource
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

SECONDS = 60  # of processor time, so that a busy machine changes nothing
WAIT = 900  # seconds by the clock, for a case that sleeps
MEMORY = 10 << 30
Tell = Callable[[str], None]
Task = Callable[[Tell], dict[str, Any]]


def isolated(task: Task, seconds: int = SECONDS) -> tuple[dict[str, Any] | None, str]:
    """The value of a task and the last stage it told of; None where its process died or ran out of time.

    The process is forked, so that it starts with everything already imported; the parent computes nothing with torch.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(task, theirs, seconds), daemon=True
    )
    process.start()
    theirs.close()
    stage = "start"
    try:
        while ours.poll(WAIT):
            kind, content = ours.recv()
            if kind == "value":
                return content, stage
            stage = content
    except EOFError:  # the process is gone
        pass
    finally:
        process.kill()
        process.join()
        ours.close()
    return None, stage


def _work(task: Task, pipe: Connection, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    pipe.send(("value", task(lambda stage: pipe.send(("stage", stage)))))
    pipe.close()
    os._exit(0)  # no cleaning up: modules of strangers may hang in it
