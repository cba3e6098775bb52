"""Only regular files of a bounded size are opened; nothing waits for a pipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgewise.errors import BadInput
from edgewise.regular_file import open_regular, read_text


def test_a_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä = 1")
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    assert read_text(tmp_path / "link", 100) == "ä = 1"


def test_what_is_no_file_is_refused_at_once_by_its_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    words = {"pipe": "is a pipe", "zero": "is a device", ".": "is a folder", "a": "symbolic links", "none": "No such"}
    for name, kind in words.items():
        with pytest.raises(BadInput, match=kind):
            open_regular(tmp_path / name)
    with pytest.raises(BadInput, match="cannot read"):
        open_regular("a\0b")


def test_size_and_text_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 101)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="101 bytes, and at most 100"):
        read_text(tmp_path / "big", 100)
    with pytest.raises(BadInput, match="not UTF-8"):
        read_text(tmp_path / "bytes", 100)
