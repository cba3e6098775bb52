"""On systems other than Linux the test files that need it are left out, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import pytest_ignore_collect

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))


def left_out(system: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", system)
        return {file.relative_to(TESTS).as_posix() for file in FILES if pytest_ignore_collect(file)}


def test_linux_runs_everything_and_windows_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    linux, mac, windows = (left_out(system, monkeypatch) for system in ("linux", "darwin", "win32"))
    assert linux == set() and mac < windows
    assert {"study/test_kill.py", "test_interrupts.py", "test_files.py"} <= windows - mac
    assert len(windows) < len(FILES) / 4 and not any(name.startswith("theory/") for name in windows)


@pytest.mark.skipif(sys.platform == "win32", reason="it stands for this system")
def test_verbs_work_without_what_only_posix_has(tmp_path: Path) -> None:
    """predict, measure, check, watch, alarms, run and the page, with Windows' `os` and `signal` (a stand-in)."""
    pytest.importorskip("httpx", reason="the test client of the page needs it")
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-m", "tests.support.windows", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS.parent}"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    others = {"check": 1, "watch": 3, "alarms": 3, "report": 3}  # labels are inputs; three steps are too few
    assert found["codes"] == dict.fromkeys(found["codes"], 0) | others and len(found["codes"]) == 9
    assert found["page"] == {"page": 200, "runs": 200, "point": 200} and found["rows"] == 3
    assert {"os.sysconf", "os.O_NONBLOCK"} <= set(found["missed"])  # edgewise asked, and did without
