"""One line of the shell as a real process: its exit code, what it prints, its time and its memory."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

import edgewise
from tests.fuzz.attempts import check_shell
from tests.fuzz.classes import BYTES, HANG, MEMORY, SECONDS, Ending, attempt
from tests.fuzz.doors import SETTINGS

SOURCE = Path(edgewise.__file__).parents[1]
NOWHERE = "standard error takes nothing: the exit code says it"
PATIENCE = 30 * SECONDS  # on the clock, which a busy machine stretches; processor time decides


def try_as_process(words: list[str], setting: str = "plain") -> Ending:
    """`python -m edgewise WORDS` in an empty folder, in one of the settings of `doors`."""
    line, lost = SETTINGS[setting]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    files = tempfile.TemporaryFile
    with tempfile.TemporaryDirectory() as folder, files("w+") as out, files("w+") as err:
        process = subprocess.Popen(
            ["sh", "-c", line.format(f"exec {shlex.join([sys.executable, '-m', 'edgewise', *words])}")],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        usage = _wait(process)
        for file in (out, err):
            file.seek(0)
        printed = out.read(), err.read() or (NOWHERE if setting in ("closed errors", "full errors") else "")
    if usage is None or usage.ru_utime + usage.ru_stime > SECONDS:
        return Ending(HANG, f"{words}: {usage}")
    if 1024 * usage.ru_maxrss > BYTES:
        return Ending(MEMORY, f"{words}: {usage.ru_maxrss / 2**20:.1f} GB")
    return attempt(lambda: check_shell(process.returncode, words, *printed, lost))


def _wait(process: subprocess.Popen[bytes]) -> resource.struct_rusage | None:
    """What the process used; None if it had to be killed."""
    began, watched = time.monotonic(), psutil.Process(process.pid)
    while time.monotonic() - began < PATIENCE and sum(watched.cpu_times()[:2]) <= SECONDS + 1:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        time.sleep(0.02)
    process.kill()
    process.wait()
    return None
