"""A process of its own for a piece of Python, forked from a server that has imported torch once for all of them."""

from __future__ import annotations

import atexit
import sys
from multiprocessing import get_context

from tests.support.ranks import PRELOAD


def run_python(script: str, *arguments: str) -> int:
    """The exit code of `python -c script arguments`, without what importing torch costs."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "edgewise.monitor.watch"])
    process = context.Process(target=_run, args=(script, arguments))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(script: str, arguments: tuple[str, ...]) -> None:
    sys.argv = ["-c", *arguments]
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    atexit._run_exitfuncs()  # multiprocessing ends its processes without
