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
from edgewise.cli import selftest
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
    assert "theory table  MISSING" in printed


@pytest.mark.parametrize(
    "verbs", [("measure", "audit", "watch"), pytest.param(tuple(selftest.VERBS), marks=pytest.mark.slow)]
)
def test_selftest_runs_every_verb(verbs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """On the processor float32 is compared with float64, and every row has its number."""
    monkeypatch.setattr(selftest, "VERBS", {verb: selftest.VERBS[verb] for verb in verbs})
    assert run(["doctor", "--selftest", "--device", "cpu", "--json"]) == 0
    tested = json.loads(capsys.readouterr().out)["selftest"]
    assert tested["device"] == "cpu"
    assert [row["verb"] for row in tested["rows"]] == list(verbs)
    assert {row["result"] for row in tested["rows"]} == {"ok"}, tested["rows"]


def test_selftest_names_the_verb_that_fails(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """One verb raises and one has other numbers on the device: both are problems, by name, and the others are tried."""

    def raising(_: torch.device) -> tuple[str, str]:
        raise RuntimeError("no kernel for this device")

    def doubled(_: torch.device, dtype: torch.dtype) -> selftest.Numbers:
        return {"norm": [2.0 if dtype == torch.float32 else 1.0, 1.0]}

    verbs = {
        "audit": raising,
        "measure": lambda device: selftest._compared(doubled, device),
        "predict": selftest._predicted,
    }
    monkeypatch.setattr(selftest, "VERBS", verbs)
    assert run(["doctor", "--selftest", "--device", "cpu"]) == 70
    printed = capsys.readouterr().out
    assert "PROBLEM: audit failed: RuntimeError: no kernel for this device" in printed
    assert "PROBLEM: measure differs: largest relative difference 1.0e+00 (norm)" in printed
    assert "predict      ok" in printed


@pytest.mark.parametrize(
    "arguments, expected",
    [(["--device", "cpu"], "--selftest"), (["--selftest", "--device", "abacus"], "abacus")],
)
def test_a_device_that_cannot_be_used_is_named(arguments: list[str], expected: str, capsys) -> None:
    assert run(["doctor", *arguments]) == 64
    assert expected in capsys.readouterr().err
