"""A stand-in for Windows: what only POSIX has is missing where edgewise asks for it; a few verbs, tried with it.

    python -m tests.support.windows FOLDER

It says what would break there, and is no proof of it. Other libraries keep what they ask for.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

MISSING = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "posix", "syslog", "crypt", "readline"}
OF_OS = """
    O_NONBLOCK O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_SYNC chown chroot fchmod fchown fork forkpty geteuid getegid getgid
    getgroups getloadavg getpgid getpgrp getpriority getsid getuid killpg mkfifo mknod nice openpty posix_fadvise
    posix_fallocate posix_spawn pread pwrite sched_getaffinity sched_yield setpgid setsid setuid statvfs sync sysconf
    ttyname uname wait wait3 wait4
"""
OF_SIGNAL = "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm pause setitimer"
OF_POSIX = {"os": set(OF_OS.split()), "signal": set(OF_SIGNAL.split())}
SEEN: list[str] = []  # what edgewise asked for in vain


class _Windows(ModuleType):
    """A module without what Windows has not."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        self.__dict__["_real"], self.__dict__["_missing"] = module, OF_POSIX[module.__name__]

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            SEEN.append(f"{self.__name__}.{name}")
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return OTHERWISE[name] if self.__name__ == "os" and name in OTHERWISE else getattr(self._real, name)


def _open(path: Any, flags: int, *mode: int, **named: Any) -> int:
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, flags, *mode, **named)


def _kill(process: int, number: int) -> None:
    raise AssertionError(
        f"os.kill({process}, {number}): on Windows this ends the process, or is a Ctrl-C if it is 0"
    )


OTHERWISE = {"name": "nt", "open": _open, "kill": _kill, "O_BINARY": 0}


def block() -> None:
    """From now on, for modules of edgewise."""
    real, stands = builtins.__import__, {name: _Windows(sys.modules[name]) for name in OF_POSIX}

    def own_import(name: str, globals: Any = None, *rest: Any, **named: Any) -> Any:
        asks = str((globals or {}).get("__name__", "")).startswith("edgewise")
        if asks and name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return stands[name] if asks and name in stands else real(name, globals, *rest, **named)

    builtins.__import__ = own_import
    warnings.filterwarnings(
        "error", category=EncodingWarning, module=r"edgewise\b"
    )  # its code page is not UTF-8


MODEL = """
import torch
from tests.monitor.subjects import encoder as make

def setup():
    model = make()
    return {
        "model": model, "batches": [torch.randint(0, 64, (4, 16)) for _ in range(3)],
        "loss": lambda model, batch: torch.nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten()),
        "optimizer": torch.optim.SGD(model.parameters(), 0.01),
    }
"""


def main(folder: Path) -> None:
    """Try the verbs; print their exit codes, what was missing, and what the page answered."""
    block()
    import torch

    import edgewise
    from edgewise.cli.main import run
    from tests.support.recipes import write_recipe

    script, home = folder / "mine.py", str(folder / "run")
    script.write_text(MODEL, encoding="utf-8")
    setup: dict[str, Any] = {}
    exec(MODEL, setup)
    training = setup["setup"]()
    with edgewise.watch(training["model"], home, quiet=True, everything=True) as handle:
        for batch in training["batches"]:
            training["loss"](training["model"], batch).backward()
            training["optimizer"].step()
    assert handle.error == "", handle.error
    recipe = str(write_recipe(folder))
    codes = {
        words[0]: run(words)
        for words in (
            ["predict", "gpt2"],
            ["measure", f"{script}:make", "--tokens", "8"],
            ["check", f"{script}:setup"],
            ["watch", home, "--once"],
            ["alarms", home],
            ["export", home, "--to", str(folder / "rows.csv")],
            ["report", home, "-o", str(folder / "run.html")],
            ["run", recipe, "--into", str(folder / "runs"), "--workers", "2"],
            ["doctor"],
        )
    }
    from fastapi.testclient import TestClient

    from edgewise.explorer.responses import close_workers
    from edgewise.explorer.server import _listener, application

    _listener("127.0.0.1", 0).close()
    client, source = TestClient(application(folder)), {"preset": "transformer", "depth": 3, "tokens": 6}
    answers = {
        "page": client.get("/").status_code,
        "runs": client.get("/api/1/runs").status_code,
        "point": client.post("/api/1/point", json={"source": source, "knobs": {}, "fixes": True}).status_code,
    }
    close_workers()
    found = {
        "codes": codes,
        "page": answers,
        "missed": sorted(set(SEEN)),
        "rows": len(edgewise.read(home)["loss"]),
    }
    print(json.dumps(found))
    assert signal.SIGALRM and torch  # other modules have them still


if __name__ == "__main__":
    main(Path(sys.argv[1]))
