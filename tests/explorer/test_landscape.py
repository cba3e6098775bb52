"""The landscape view: planes below one folder, on equal scales; hostile files give a message."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise import files
from edgewise.errors import BadInput
from edgewise.landscape import Plane

pytest.importorskip("fastapi", reason="the extra `explore` is not installed")
testclient = pytest.importorskip("fastapi.testclient")

from edgewise.explorer.landscape import answer, listing, read  # noqa: E402
from edgewise.explorer.server import application  # noqa: E402


def store(path: Path, losses: Any, reach: float = 1.0) -> Path:
    y, x = (np.linspace(-reach, reach, size) for size in np.shape(losses))
    plane = Plane((x, y), np.asarray(losses, float), ("queries", "keys"), "filter", 0, False, "direct")
    path.parent.mkdir(parents=True, exist_ok=True)
    plane.save(path)
    return path


def bowl(size: int = 9, depth: float = 1.0, waves: float = 0.0) -> Any:
    x, y = np.meshgrid(*[np.linspace(-1, 1, size)] * 2)
    return 1 + depth * (x**2 + y**2) + waves * np.cos(9 * x) * np.cos(9 * y)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store(tmp_path / "planes" / "smooth.npz", bowl())
    store(tmp_path / "planes" / "deep" / "rough.npz", bowl(depth=0.5, waves=0.3))
    np.savez(tmp_path / "planes" / "rows.npz", loss=np.ones(3))  # something else
    store(tmp_path / "outside.npz", bowl())
    os.symlink(tmp_path / "outside.npz", tmp_path / "planes" / "link.npz")
    return tmp_path / "planes"


def test_only_planes_below_the_folder_are_listed(folder: Path) -> None:
    rows = listing(folder)["planes"]
    assert [row["name"] for row in rows] == ["deep/rough.npz", "smooth.npz"]
    assert rows[1]["note"] == "queries against keys, 9 × 9 points"
    assert listing(None)["planes"] == [] and "without a folder" in listing(None)["empty"]


def test_a_folder_is_walked_once_however_many_planes_it_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks, walk = [], os.walk
    monkeypatch.setattr(os, "walk", lambda *args, **options: walks.append(args) or walk(*args, **options))
    assert len(listing(folder)["planes"]) > 1 and len(walks) == 1


def test_two_planes_have_one_scale_and_their_figures(folder: Path) -> None:
    drawn = answer(folder, ["smooth.npz", "deep/rough.npz"])
    planes = [read(folder, name) for name in ("smooth.npz", "deep/rough.npz")]
    low, high = min(p.losses.min() for p in planes), max(p.losses.max() for p in planes)
    assert (drawn["low"], drawn["high"]) == (low, high)
    for surface, plane in zip(drawn["planes"], planes, strict=True):
        heights = low + np.array(surface["z"]) / drawn["steps"] * (high - low)
        np.testing.assert_allclose(heights, plane.losses, atol=(high - low) / drawn["steps"])
        assert surface["figures"][4][1] == str(plane.roughness.minima)
    assert drawn["title"] == "deep/rough.npz is rougher"
    alone = answer(folder, ["smooth.npz"])
    assert alone["title"] == "Nearly a bowl" and alone["sentences"].endswith("It has one dip inside.")


def test_large_planes_are_drawn_with_fewer_points_and_holes_stay_holes(folder: Path) -> None:
    losses = bowl(151)
    losses[0, 0], losses[0, 1] = np.nan, np.inf
    store(folder / "large.npz", losses)
    drawn = answer(folder, ["large.npz"])
    surface = drawn["planes"][0]
    assert np.array(surface["z"]).shape == (61, 61) and surface["z"][0][0] is None
    assert surface["figures"][-1][0] == "without a finite loss"
    json.dumps(drawn, allow_nan=False)


def hostile(folder: Path) -> dict[str, str]:
    """Files by name, and what is said of each."""
    good = (store(folder / "good.npz", bowl())).read_bytes()
    (folder / "cut.npz").write_bytes(good[: len(good) // 2])
    (folder / "text.npz").write_text("not a zip at all")
    store(folder / "tiny.npz", bowl(2))
    store(folder / "lost.npz", np.full((5, 5), np.nan))
    np.savez(folder / "line.npz", losses=np.ones(5), rows=5, facts=json.dumps(facts([5])))
    wide = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        wide, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    with zipfile.ZipFile(folder / "claims.npz", "w") as archive:
        archive.writestr("losses.npy", wide.getvalue())
    with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        buffer = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            buffer, {"descr": "<f8", "fortran_order": False, "shape": (2**18,)}
        )
        archive.writestr("losses.npy", buffer.getvalue() + bytes(2**21))
    huge = facts([5, 5]) | {"grid": [[0, 1, 2, 3, 10**400], [0, 1, 2, 3, 4]]}
    np.savez(folder / "huge.npz", losses=bowl(5), rows=5, facts=json.dumps(huge))
    flat = facts([5, 5]) | {"grid": [[0.0] * 5, [0, 1, 2, 3, 4]]}
    np.savez(folder / "flat.npz", losses=bowl(5), rows=5, facts=json.dumps(flat))
    cannot = "cannot be read as a landscape"
    return {
        "cut.npz": cannot,
        "text.npz": cannot,
        "tiny.npz": "at least 3",
        "lost.npz": "no finite loss",
        "line.npz": "at least 3",
        "claims.npz": cannot,
        "bomb.npz": cannot,
        "huge.npz": cannot,
        "flat.npz": "without extent",
    }


def facts(shape: list[int]) -> dict[str, Any]:
    grid = [np.linspace(-1, 1, size).tolist() for size in shape]
    return {
        "grid": grid,
        "names": ["queries", "keys"][: len(shape)],
        "seed": 0,
        "path": None,
        "normalization": "filter",
        "rebalanced": False,
        "method": "direct",
    }


def test_hostile_grids_give_a_message_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LARGEST_ARRAYS", 2**20)  # a bomb of a few kB stands for one of gigabytes
    expected = hostile(tmp_path)
    notes = {row["name"]: row["note"] for row in listing(tmp_path)["planes"]}
    for name, sentence in expected.items():
        with pytest.raises(BadInput, match=sentence) as refusal:
            answer(tmp_path, [name])
        assert str(tmp_path) not in str(refusal.value)
        assert sentence in notes[name]
    client = testclient.TestClient(application(tmp_path))
    reply = client.post("/api/1/landscape", json={"planes": ["cut.npz"]})
    assert reply.status_code == 422 and expected["cut.npz"] in reply.json()["error"]
    assert client.post("/api/1/landscape", json={"planes": ["good.npz"]}).status_code == 200


def test_examples_are_there_without_a_folder() -> None:
    """One network: before training the plane has no dip, after it one; `tools/page_examples.py` computes both."""
    before, after = answer(None, listing(None)["examples"])["planes"]
    dips = [dict(surface["figures"])["dips inside"] for surface in (before, after)]
    assert dips == ["0", "1"] and np.array(after["z"]).shape == (25, 25)


@pytest.mark.parametrize(
    "name", ["../outside.npz", "link.npz", "/etc/passwd", "deep/../smooth.npz", "rows.npz\0", ""]
)
def test_no_path_outside_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(BadInput, match="not among the planes"):
        answer(folder, [name])
    with pytest.raises(BadInput, match="not among the planes"):
        answer(None, ["smooth.npz"])
