"""A file is written whole or not at all."""

from __future__ import annotations

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
