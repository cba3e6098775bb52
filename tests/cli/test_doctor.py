"""`edgewise doctor`: what it sees, and that it only looks."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata
from pathlib import Path

import pytest
import torch

from edgewise import __version__
from edgewise.cli import local_commands as doctor
from edgewise.cli.main import run


def test_json_names_versions_and_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["edgewise"] == __version__
    assert found["python"] == platform.python_version()
    assert found["packages"]["numpy"] == metadata.version("numpy")
    assert found["cuda"]["available"] == torch.cuda.is_available()
    assert found["cpus"] >= 1
    table = Path(doctor.__file__).parents[1] / "theory" / doctor.MOMENT_TABLE
    assert found["moment_table"]["version"] == hashlib.sha256(table.read_bytes()).hexdigest()[:12]
    assert found["problems"] == []


def test_text_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    first = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert first[:2] == ["edgewise", "python"]
    assert set(doctor.CORE) < set(first)


def test_what_is_missing_is_a_problem_and_exits_70(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(doctor, "MOMENT_TABLE", "no_such_table.npz")
    monkeypatch.setattr(doctor, "CORE", ("numpy", "no-such-package"))
    assert run(["doctor"]) == 70
    printed = capsys.readouterr().out
    assert "PROBLEM: no-such-package is not installed" in printed
    assert "PROBLEM: the table of softmax moments, no_such_table.npz, is not in the package" in printed
    assert "moment table  MISSING" in printed
