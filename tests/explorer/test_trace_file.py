"""A saved trace on the map: its description becomes the network; what has none, or is no trace, gets a sentence."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgewise
from edgewise.nouns.architecture import Perceptron

fastapi_client = pytest.importorskip("fastapi.testclient", reason="the extra `explore` is not installed")

from edgewise.explorer.runs import LARGEST_TRACE, META  # noqa: E402
from edgewise.explorer.server import application  # noqa: E402

NETWORK = edgewise.transformer(depth=6, tokens=16, norm="post", mlp_in_gain=[1, 2, 3, 4, 5, 6]).replace(
    name="mine"
)


@pytest.fixture(scope="module")
def client() -> Any:
    return fastapi_client.TestClient(application())


def drop(client: Any, content: bytes, name: str = "mine.npz") -> Any:
    return client.post("/api/1/trace", json={"data": base64.b64encode(content).decode(), "name": name})


def saved(trace: Any, path: Path) -> bytes:
    trace.save(path / "trace.npz")
    return (path / "trace.npz").read_bytes()


def test_the_description_is_placed_and_the_note_says_what_the_dot_is(client: Any, tmp_path: Path) -> None:
    theory = edgewise.predict(NETWORK)
    for trace, word in (
        (theory, "predicted"),
        (theory.with_provenance(source="2 networks, measured"), "measured"),
    ):
        answer = drop(client, saved(trace, tmp_path)).json()
        assert f"of a {word} trace" in answer["note"] and "(mine)" in answer["note"]
        assert edgewise.describe(json.loads(answer["config"])) == NETWORK
        source = {key: answer[key] for key in ("config", "name")}
        network = client.post("/api/1/network", json=source).json()
        assert (network["name"], network["depth"], network["tokens"]) == ("mine", 6, 16)
        assert client.post("/api/1/point", json={"source": source}).status_code == 200


def test_without_a_description_it_says_why(client: Any, tmp_path: Path) -> None:
    bare = drop(client, saved(replace(edgewise.predict(NETWORK), architecture=None), tmp_path))
    assert bare.status_code == 422 and "trace without a description" in bare.json()["error"]
    layers = drop(client, saved(edgewise.predict(Perceptron(weight_variance=1.5, depth=4)), tmp_path))
    assert layers.status_code == 422 and "perceptron" in layers.json()["error"]


def packed(meta: bytes, **options: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{META}.npy", meta, **options)
    return file.getvalue()


def array(value: Any) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.array(value), version=(1, 0))
    return file.getvalue()


def header(shape: str, kind: str) -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def meta(**values: Any) -> str:
    return json.dumps({"sites": [], "source": "", "kind": "Architecture", "architecture": {}} | values)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"x" * 1000,
        packed(b""),
        packed(b"\x93NUMPY"),
        packed(b"\0" * 2**23),
        packed(header("(10**12,)", "<f8")),
        packed(header("(1000000000000,)", "<U9")),
        packed(header("()", "<U999999999")),
        packed(header("()", "|O")),
        packed(array([1.0])),
        packed(array("[" * 50_000)),
        packed(array("[]")),
        packed(array("{}")),
        packed(array(meta(architecture={"depth": 10**9, "model_type": {}}))),
        packed(array(meta(architecture=[1]))),
        packed(array(meta(architecture={"depth": "<script>"}))),
        packed(array(meta())),
        packed(array(meta(architecture={"depth": 2})), compress_type=zipfile.ZIP_BZIP2),
    ],
)
def test_what_is_no_trace_gets_a_sentence(client: Any, content: bytes) -> None:
    answer = drop(client, content)
    assert answer.status_code == 422
    assert "mine.npz" in answer.json()["error"] or "depth" in answer.json()["error"]


def test_large_files_and_other_letters_are_refused(client: Any) -> None:
    assert "at most 280,000" in drop(client, b"x" * (LARGEST_TRACE + 1)).json()["error"]
    assert drop(client, b"x" * (LARGEST_TRACE + 100)).status_code == 422
    for data in ("<>", "\u00e9", "AAA"):
        answer = client.post("/api/1/trace", json={"data": data})
        assert answer.status_code == 422 and "base64" in answer.json()["error"]
