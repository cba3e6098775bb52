"""Grids on disk: continued after a kill, refused for anything else; and what is refused before computing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edgewise import landscape
from edgewise.errors import BadInput
from edgewise.landscape.loss_grid import _short
from tests.support import landscape_networks as networks
from tests.support.landscape_networks import cross_entropy, own, seeded

HOW: dict[str, Any] = {"points": 9, "seed": 2, "method": "direct"}
KILLED = """
import os, signal, sys
from tests.support import landscape_networks as networks
from tests.landscape.test_grid import HOW
from edgewise import landscape
def tell(share):
    if share > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
model = networks.seeded(networks.library_net)
landscape.plane(model, networks.cross_entropy, networks.tokens(), file=sys.argv[1], progress=tell, **HOW)
"""


def test_a_killed_grid_continues(tmp_path: Path) -> None:
    file = tmp_path / "plane.npz"
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    run = subprocess.run([sys.executable, "-c", KILLED, str(file)], cwd=root, env=environment)
    assert run.returncode == -signal.SIGKILL
    with pytest.raises(BadInput, match="4 of 9 rows"):
        landscape.Plane.load(file)
    shares: list[float] = []
    model, batch = seeded(networks.library_net), networks.tokens()
    found = landscape.plane(model, cross_entropy, batch, file=file, progress=shares.append, **HOW)
    assert len(shares) == 5 * 9
    np.testing.assert_array_equal(found.losses, landscape.plane(model, cross_entropy, batch, **HOW).losses)
    again = landscape.plane(model, cross_entropy, batch, file=file, progress=shares.append, **HOW)
    assert len(shares) == 5 * 9
    loaded = landscape.Plane.load(file)
    np.testing.assert_array_equal(loaded.losses, again.losses)
    assert (loaded.names, loaded.seed, loaded.method) == (again.names, 2, "direct")
    assert list(tmp_path.iterdir()) == [file]


def other_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model, batch)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda: {"model": networks.seeded(networks.library_net, depth=3, width=16, score_gain=2.0)},
            "another model",
        ),
        (lambda: {"batch": networks.tokens(4)}, "another batch"),
        (lambda: {"loss": other_loss}, "another loss"),
        (lambda: {"seed": 3}, "another directions"),
        (lambda: {"points": 11}, "another grid"),
        (lambda: {"reach": 0.5}, "another grid"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name(
    change: Callable[[], dict[str, Any]], words: str, tmp_path: Path
) -> None:
    model, batch = seeded(networks.library_net), networks.tokens()
    arguments: dict[str, Any] = {"model": model, "loss": cross_entropy, "batch": batch}
    arguments |= HOW | {"points": 5, "file": tmp_path / "plane.npz"}
    landscape.plane(**arguments)
    with pytest.raises(BadInput, match=words):
        landscape.plane(**(arguments | change()))


def test_a_line_on_disk_and_a_plane_saved(tmp_path: Path) -> None:
    model = networks.Quadratic()
    found = landscape.line(model, own, None, points=7, file=tmp_path / "line.npz")
    np.testing.assert_array_equal(landscape.LossLine.load(tmp_path / "line.npz").losses, found.losses)
    plane = landscape.plane(model, own, None, ("*", "*"), points=5)
    plane.save(tmp_path / "plane.npz")
    loaded = landscape.Plane.load(tmp_path / "plane.npz")
    np.testing.assert_array_equal(loaded.losses, plane.losses)
    assert str(loaded) == str(plane)
    (tmp_path / "broken.npz").write_bytes(b"no grid")
    with pytest.raises(BadInput, match="cannot be read"):
        landscape.Plane.load(tmp_path / "broken.npz")


def _nan(model: nn.Module, _: Any) -> torch.Tensor:
    return model() * float("nan")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"directions": ("*nothing*", "*")}, "matches no parameter"),
        ({"directions": ("*", "m*"), "loss": own}, "matches no parameter"),
        ({"directions": ("queries", "keys")}, "list of blocks"),
        ({"directions": ("*",)}, "two for a plane"),
        ({"directions": "queries"}, "two for a plane"),
        ({"directions": (1, 2)}, "one name, Along or Direction"),
        ({"directions": (landscape.Along("*", heads=[0]), "*")}, "only queries"),
        ({"directions": (landscape.Along("*", layers=[-1]), "*")}, "counted from 0"),
        (
            {"directions": (landscape.Direction("zero", {"weight": torch.zeros(3, 4)}),) * 2},
            "zero' has length 0",
        ),
        (
            {"directions": (landscape.Direction("odd", {"other": torch.ones(3, 4)}),) * 2},
            "the model does not have",
        ),
        ({"directions": (landscape.Direction("twin", {"weight": torch.ones(3, 4)}),) * 2}, "parallel"),
        ({"batch": []}, "list of batches is empty"),
        ({"batch": torch.zeros(0, 3)}, "batch is empty"),
        ({"loss": _nan}, "loss of the model itself is nan"),
        ({"loss": lambda model, batch: model().expand(2)}, "one number"),
        ({"loss": lambda model, batch: 3.0}, "one number"),
        ({"points": 6}, "odd number"),
        ({"points": "5"}, "points must be .*got '5'"),
        ({"reach": -1.0}, "reach must be .*got -1.0"),
        ({"reach": "far"}, "reach must be .*got 'far'"),
        ({"normalization": "row"}, "normalization must be .*got 'row'"),
        ({"method": "fast"}, "method must be .*got 'fast'"),
        ({"file": "plane.txt"}, "ending in .npz"),
        ({"rebalance": True}, "list of blocks"),
    ],
)
def test_refusals(how: dict[str, Any], words: str) -> None:
    arguments = {"loss": own, "batch": None, "directions": ("*", "*"), "points": 5} | how
    with pytest.raises(BadInput, match=words):
        landscape.plane(networks.Quadratic(), **arguments)


def test_vectors_move_only_when_asked() -> None:
    model = seeded(networks.convolutions)
    with pytest.raises(BadInput, match="only vectors"):
        landscape.random_direction(model, "*.bias")
    moved = landscape.random_direction(model, landscape.Along("*.bias", vectors=True)).tensors
    assert set(moved) == {name for name, _ in model.named_parameters() if name.endswith("bias")}


def test_a_model_without_its_own_loss_is_told_so() -> None:
    with pytest.raises(BadInput, match="returned no loss"):
        landscape.plane(seeded(networks.library_net), None, (networks.tokens()[0],), points=5)
    with pytest.raises(BadInput, match="returned no loss"):  # one tensor is one argument
        landscape.plane(torch.nn.Linear(4, 2), None, torch.randn(3, 4), ("*", "*"), points=5)
    with pytest.raises(BadInput, match="got int"):
        landscape.plane(3, own, None, ("*", "*"), points=5)
    with pytest.raises(BadInput, match="no curvature"):
        landscape.top_directions(networks.Quadratic(), _nan, None)


def foreign(file: Path, **changes: Any) -> Path:
    """A file of a landscape whose facts somebody has changed."""
    axis = np.linspace(-1, 1, 5)
    plane = landscape.Plane((axis, axis), np.ones((5, 5)), ("queries", "keys"), "filter", 0, False, "direct")
    facts = plane._facts() | changes
    np.savez(file, losses=plane.losses, rows=5, facts=json.dumps(facts))
    return file


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"names": [["queries"], ["keys"]]}, "its names is"),
        ({"names": "queries"}, "its names is queries"),
        ({"grid": [["a"], [0]]}, "its grid is"),
        ({"grid": 3}, "its grid is 3"),
        ({"grid": [[0, 1], [0, 1]]}, "its grid is .* for losses of shape"),
        ({"seed": [1]}, "its seed is"),
        ({"normalization": {}}, "its normalization is"),
        ({"path": [1, 2]}, "its path is"),
        ({"path": [[1.0], [2.0]]}, "its path is points with 1 coordinates on 2 axes"),
    ],
)
def test_a_foreign_plane_file_is_refused_by_the_fact_that_is_wrong(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert landscape.Plane.load(foreign(tmp_path / "good.npz")).names == ("queries", "keys")
    with pytest.raises(BadInput, match=words):
        landscape.Plane.load(foreign(tmp_path / "bad.npz", **changes))


def test_facts_that_are_a_list_and_losses_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "list.npz", losses=np.ones((5, 5)), rows=5, facts=json.dumps([1]))
    np.savez(tmp_path / "words.npz", losses=np.array(["a"] * 5), rows=5, facts="{}")
    for name in ("list.npz", "words.npz"):
        with pytest.raises(BadInput, match="cannot be read as a landscape"):
            landscape.Plane.load(tmp_path / name)


def test_what_is_refused_is_cut_to_sixty_letters() -> None:
    assert [len(_short("x" * n)) for n in (59, 60, 200)] == [59, 60, 60] and _short("x" * 60).endswith("x...")
    assert _short(1 / 3) == "0.333333"
