"""A file is written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from edgewise.whole_file import whole_file


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    goal = tmp_path / "a.json"
    with whole_file(goal) as file:
        file.write(b"first")

    def half_way() -> None:
        with whole_file(goal) as file:
            file.write(b"second, half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        half_way()
    assert goal.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [goal]


def test_the_umask_of_the_process_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that makes a file meanwhile would make it open to all; the file itself follows the umask."""
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda _mask: pytest.fail("the umask is the whole process's"))
        with whole_file(tmp_path / "a.json") as file:
            file.write(b"1")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640
