"""The record of an orbit: derived growths, blocks, saving and loading."""

import io
import json
import os
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import edgewise
from edgewise.cli.main import edgewise as shell
from edgewise.errors import BadInput
from edgewise.nouns.architecture import transformer
from edgewise.nouns.trace import Trace
from edgewise.theory.simplex.drive import propagate_simplex


@pytest.fixture(scope="module")
def trace():
    return propagate_simplex(transformer(depth=4, tokens=16, width=64, heads=2, activation="relu"), 0.1)


def test_total_changes_go_from_the_embedding_to_the_last_block(trace):
    assert trace.total_changes("token")[0] == pytest.approx(
        np.log(trace.separation[0, -1] / trace.separation[0, 0])
    )
    relative = trace.log_gradient[0, 0, 0] + np.log(trace.norm[0, 0] / trace.norm[0, -1])
    assert trace.total_changes("token")[1] == pytest.approx(relative)
    assert trace.gradient_norm[0, 0, -1] == 1.0


def test_blocks_start_at_the_embedding(trace):
    assert trace.depth == 4
    assert len(trace.blocks("norm")) == 5
    assert trace.blocks("overlap")[0] == pytest.approx(0.1)
    assert trace.blocks("norm")[1] == trace.norm[0, 2]


def test_save_and_load_give_the_same_trace(trace, tmp_path):
    trace.save(tmp_path / "a.npz")
    again = Trace.load(tmp_path / "a.npz")
    assert again.architecture == trace.architecture and again.sites == trace.sites
    for name in ("norm", "separation", "log_gradient", "attention_entropy"):
        assert np.array_equal(getattr(again, name), getattr(trace, name), equal_nan=True)
    assert set(again.statistics) == set(trace.statistics)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]  # nothing half-written beside it


def test_a_callable_activation_cannot_be_saved(tmp_path):
    made = propagate_simplex(transformer(depth=2, tokens=8, width=64, heads=1, activation=np.tanh))
    with pytest.raises(BadInput, match="callable"):
        made.save(tmp_path / "c.npz")
    assert not list(tmp_path.iterdir())


def test_shapes_are_checked(trace):
    with pytest.raises(BadInput, match="separation has shape"):
        Trace(sites=trace.sites, norm=trace.norm, separation=trace.separation[:, :2])
    with pytest.raises(BadInput, match="not observed"):
        Trace(sites=trace.sites, norm=trace.norm, separation=trace.separation).blocks("gradient_norm")


@pytest.mark.parametrize("content", ["empty", "array", "no_meta", "text"])
def test_what_is_not_a_trace_is_refused(content, tmp_path):
    path = tmp_path / "trace.npz"
    if content == "array":
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    elif content == "no_meta":
        np.savez(path, norm=np.ones((1, 2)))
    else:
        path.write_bytes(b"" if content == "empty" else b"PK not really")
    with pytest.raises(BadInput, match="not a saved trace"):
        Trace.load(path)


def with_entry(path, name, content):
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


def test_an_array_that_claims_more_than_it_holds_is_refused(trace, tmp_path):
    """A file of a few kB that claims 10^13 numbers, in the library and in the shell."""
    path, header = tmp_path / "trace.npz", io.BytesIO()
    trace.save(path)
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)})
    with_entry(path, "statistics/large.npy", header.getvalue() + bytes(64))
    with pytest.raises(BadInput, match=r"not a saved trace .statistics/large.npy claims the shape"):
        Trace.load(path)
    result = CliRunner().invoke(shell, ["report", str(path), "-o", str(tmp_path / "report.html")])
    assert isinstance(result.exception, BadInput) and not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("meta", ["[" * 100_000, "[]", "{}", "3"])
def test_a_description_that_is_none_is_refused(trace, meta, tmp_path):
    np.savez(tmp_path / "trace.npz", meta=np.array(meta), norm=trace.norm, separation=trace.separation)
    with pytest.raises(BadInput, match="not a saved trace"):
        Trace.load(tmp_path / "trace.npz")


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("source", 25, "its source is 25"),
        ("readout", ["token"], "its readout is"),
        ("notes", [[3]], "its notes is"),
        ("step", "first", "its step is 'first'"),
        ("sites", [1, 2], "must be lists of names"),
    ],
)
def test_a_description_of_other_types_is_refused(trace, name, value, words, tmp_path):
    trace.save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz") as file:
        arrays = dict(file)
    meta = json.loads(str(arrays.pop("meta"))) | {name: value}
    np.savez(tmp_path / "trace.npz", meta=np.array(json.dumps(meta)), **arrays)
    with pytest.raises(BadInput, match=words):
        Trace.load(tmp_path / "trace.npz")


@pytest.mark.parametrize("name", ["attention_entropy", "softmax_condition", "statistics/other"])
def test_arrays_of_other_sites_are_refused(trace, name, tmp_path):
    trace.save(tmp_path / "trace.npz")
    with np.load(tmp_path / "trace.npz") as file:
        arrays = dict(file) | {name: np.zeros((3, 3))}
    np.savez(tmp_path / "trace.npz", **arrays)
    with pytest.raises(BadInput, match=r"has shape \(3, 3\), expected \(seeds, sites, ...\)"):
        Trace.load(tmp_path / "trace.npz")


@pytest.mark.parametrize("values", [np.array(["a"]), np.array(1.0)])
def test_arrays_of_another_type_or_shape_are_refused(trace, values, tmp_path):
    trace.save(tmp_path / "trace.npz")
    arrays = dict(np.load(tmp_path / "trace.npz")) | {"norm": values}
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(BadInput, match="not a saved trace"):
        Trace.load(tmp_path / "other.npz")


def test_what_could_not_be_read_is_not_saved(trace, tmp_path, monkeypatch):
    monkeypatch.setattr("edgewise.nouns.trace.LARGEST_ARRAYS", 100)
    with pytest.raises(BadInput, match="Save fewer seeds"):
        trace.save(tmp_path / "trace.npz")


def test_a_saved_trace_can_be_read_by_others(tmp_path):
    edgewise.predict("mlp:tanh").save(tmp_path / "trace.npz")
    assert (tmp_path / "trace.npz").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_from_before_notes_is_read(trace, tmp_path):
    """Files of earlier versions state what was left out in a field of its own, and have neither name nor notes."""
    trace.save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays.pop("meta")))
    del meta["name"], meta["notes"]
    meta["left_out"] = "3 of 64 tokens left out: padding"
    np.savez_compressed(tmp_path / "old.npz", meta=np.array(json.dumps(meta)), **arrays)
    old = Trace.load(tmp_path / "old.npz")
    assert old.notes == ("3 of 64 tokens left out: padding",)
    assert old.provenance == replace(trace.provenance, notes=old.notes) and not old.sampled
    assert Trace.load(tmp_path / "new.npz").provenance == trace.provenance
