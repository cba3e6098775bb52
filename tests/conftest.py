"""Settings of every test process: one thread, no windows, no time limits on a busy machine."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

# Before numpy and torch are imported: on few cores, threads waiting for each other cost more than they give.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["MPLBACKEND"] = "Agg"
os.environ["COLUMNS"] = "88"  # of screens that are compared with text: a worker of xdist has another terminal

settings.register_profile("edgewise", deadline=None, derandomize=True)
settings.load_profile("edgewise")

# Test files that say one of these need Linux, or at least POSIX; elsewhere they are left out whole.
LINUX = re.compile(r'"/proc|support\.(memory|browser)')
POSIX = re.compile(
    r"SIG(ALRM|KILL|USR1)|^import resource|mkfifo|forkserver|/dev/|symlink_to|support\.(alarms|ranks|two_)",
    re.M,
)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out test files that this system cannot run; None lets pytest decide."""
    if sys.platform == "linux" or not re.fullmatch(r"test_\w+\.py", collection_path.name):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return bool(LINUX.search(text) or (sys.platform == "win32" and POSIX.search(text))) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Imports make hundreds of thousands of objects that stay: looking through them for garbage finds none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        seed_without_stacks()


def seed_without_stacks() -> None:
    """For each kind of device that is not here, `torch.manual_seed` writes down the stack, which is deep in a test."""
    for device in ("cuda", "xpu", "mtia"):
        module = sys.modules.get(f"torch.{device}")  # torch is not imported where nobody needs it
        if module is not None and hasattr(module, "traceback"):
            module.traceback = SimpleNamespace(format_stack=list)
