"""Only regular files of a bounded size are opened, no header is believed, and a file is written whole or not at all."""

from __future__ import annotations

import io
import os
import pickle
import stat
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from edgewise.errors import BadInput, MissingArray
from edgewise.files import open_regular, read_arrays, read_text, whole_file
from edgewise.landscape.loss_grid import read_grid
from edgewise.nouns.trace import Trace


def test_a_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ä = 1")
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    assert read_text(tmp_path / "link", 100) == "ä = 1"


def test_what_is_no_file_is_refused_at_once_by_its_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    words = {
        "pipe": "is a pipe",
        "zero": "is a device",
        ".": "is a folder",
        "a": "symbolic links",
        "none": "No such",
    }
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


def packed(entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def header(shape: tuple[int, ...], kind: str = "<f8") -> bytes:
    """The beginning of an array that claims this shape and type."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue()


def array(value: object) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.array(value))
    return file.getvalue()


def changed(content: bytes) -> bytes:
    """An archive whose packed bytes are not what zlib wrote."""
    where = content.index(b"a.npy") + len(b"a.npy")
    return (
        content[:where] + bytes(byte ^ 0xFF for byte in content[where : where + 20]) + content[where + 20 :]
    )


HOSTILE = {
    "ten trillion numbers": packed({"a.npy": header((10**13,)) + bytes(64)}),
    "ten trillion empty texts": packed({"a.npy": header((10**13,), "<U0")}),
    "a negative size": packed({"a.npy": header((-1,)) + bytes(64)}),
    "beyond 64 bits": packed({"a.npy": header((2**63, 2**63)) + bytes(64)}),
    "a pickle": packed({"a.npy": header((1,), "|O") + pickle.dumps([1])}),
    "a record": packed({"a.npy": array(np.zeros(2, "i4,f8"))}),
    "brackets without end": packed(
        {"a.npy": b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000}
    ),
    "no array": packed({"a.npy": b"text"}),
    "cut": packed({"a.npy": array(np.arange(1000.0))})[:-60],
    "cut inside": packed({"a.npy": header((8,)) + bytes(60)}),
    "broken packing": changed(packed({"a.npy": array(np.arange(1000.0))})),
    "packed otherwise": packed({"a.npy": array(1.0)}, zipfile.ZIP_BZIP2),
    "empty": b"",
    "one array": array(1.0),
    "a bare pickle": pickle.dumps([1]),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_arrays_give_a_message_and_need_no_memory(content: bytes, tmp_path: Path) -> None:
    """Also through both readers of array files."""
    path = tmp_path / "file.npz"
    path.write_bytes(content)
    tracemalloc.start()
    for read in (lambda: read_arrays(io.BytesIO(content)), lambda: Trace.load(path), lambda: read_grid(path)):
        with pytest.raises(BadInput):
            read()
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_what_unpacks_to_more_than_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.files.LARGEST_ARRAYS", 2**20)
    content = packed({"a.npy": header((2**18,)) + bytes(2**21)})
    assert len(content) < 2**14
    with pytest.raises(BadInput, match="expected at most 1,000 of 1,048,576"):
        read_arrays(io.BytesIO(content))


def test_arrays_are_read_by_name() -> None:
    content = packed({"a.npy": array(np.arange(3.0)), "b.npy": array("text"), "c.npy": header((10**13,))})
    assert read_arrays(io.BytesIO(content), ("a", "b"))["a"].tolist() == [0.0, 1.0, 2.0]
    assert str(read_arrays(io.BytesIO(content), ("b",))["b"]) == "text"
    with pytest.raises(MissingArray, match="it has no array d") as absent:
        read_arrays(io.BytesIO(content), ("a", "d"))
    sent = pickle.loads(pickle.dumps(absent.value))  # as a worker of the page sends it
    assert (sent.array, str(sent)) == ("d", "it has no array d")


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
