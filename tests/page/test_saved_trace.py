"""Saved traces of anybody: an honest one is read as Trace.load reads it, an oversized or dishonest one is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import edgewise
from edgewise.cli.main import edgewise as shell
from edgewise.errors import BadInput
from edgewise.page import saved_trace


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "trace.npz"
    edgewise.predict(edgewise.transformer(depth=3, tokens=8)).save(path)
    return path


def with_entry(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


def header(shape: tuple[int, ...]) -> bytes:
    """The beginning of an array that claims this shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_an_honest_trace_is_read(saved: Path) -> None:
    assert saved_trace.load(saved).norm.tolist() == edgewise.Trace.load(saved).norm.tolist()


def test_an_array_that_claims_more_than_it_holds_is_refused(saved: Path, tmp_path: Path) -> None:
    with_entry(saved, "statistics/large.npy", header((2**40,)) + b"\0" * 64)
    with pytest.raises(BadInput, match=r"not a saved trace .statistics/large.npy claims the shape"):
        saved_trace.load(saved)
    result = CliRunner().invoke(shell, ["report", str(saved), "-o", str(tmp_path / "report.html")])
    assert isinstance(result.exception, BadInput) and not (tmp_path / "report.html").exists()


def test_what_unpacks_to_more_than_the_limit_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_trace, "LARGEST", 2**20)
    with_entry(saved, "statistics/zeros.npy", header((2**18,)) + bytes(2**21))
    assert saved.stat().st_size < 2**17
    with pytest.raises(BadInput, match=r"more than 1,048,576 bytes"):
        saved_trace.load(saved)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY"])
def test_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.npz").write_bytes(content)
    with pytest.raises(BadInput, match="not a saved trace"):
        saved_trace.load(tmp_path / "other.npz")
