"""On systems other than Linux the test files that need it are left out, and no others."""

from __future__ import annotations

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
