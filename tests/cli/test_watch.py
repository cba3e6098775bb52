"""The shell's verbs for watched runs: the table, the alarms with their exit codes, the export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import edgewise
from edgewise.cli.main import run
from edgewise.monitor.alarm import Alarm, AlarmKind
from tests.monitor.subjects import encoder, train

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, model, criterion = tmp_path_factory.mktemp("runs") / "a", encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, everything=True, to=path, loss=criterion, quiet=True):
        train(model, 4, criterion)
    return path


def with_alarm(tmp_path: Path, kind: AlarmKind) -> Path:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, everything=True, to=tmp_path / "run", loss=criterion, quiet=True) as handle:
        train(model, 2, criterion)
        handle._raise(Alarm(kind, 1, "block.1", 3, 0, "It grows.", "attention", ruled_out=("the rate",), rows=40))
    return tmp_path / "run"


def test_the_table_of_a_run(folder: Path, capsys: Capture) -> None:
    assert run(["watch", str(folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    frame = edgewise.read(folder)
    assert "step 3, loss" in printed and "(Sequential, ended)" in printed and "0 alarms" in printed
    assert f"{frame['block.1.entropy'].iloc[-1]:.3g}" in printed
    assert all(f" {place} " in printed for place in ("embed", "block.0", "block.1"))


def test_a_run_without_alarms_is_fine(folder: Path, capsys: Capture) -> None:
    assert run(["alarms", str(folder)]) == 0
    assert "No alarm in 4 rows of Sequential." in capsys.readouterr().out
    assert run(["alarms", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run(["alarms", str(folder), "--again"]) == 0
    assert "No alarm in 4 rows of Sequential." in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "code"), [(AlarmKind.LOGIT_GROWTH, 1), (AlarmKind.NOT_A_NUMBER, 2)])
def test_alarms_are_printed_and_coded(kind: AlarmKind, code: int, tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, kind)
    assert run(["alarms", str(path)]) == code
    printed = capsys.readouterr().out
    assert "in block.1, head 3, since step 0." in printed and "Ruled out: the rate." in printed
    assert run(["alarms", str(path), "--json"]) == code
    assert json.loads(capsys.readouterr().out)[0]["kind"] == kind.value
    assert run(["watch", str(path), "--once"]) == 0
    assert "ALARM at step 1" in capsys.readouterr().out


def test_export_writes_every_row(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["export", str(folder), "--to", str(tmp_path / "x.csv")]) == 0
    assert "Wrote 4 rows" in capsys.readouterr().err
    table = np.genfromtxt(tmp_path / "x.csv", delimiter=",", names=True, deletechars="")
    assert np.array_equal(table["loss"].astype(np.float32), edgewise.read(folder, frame=False)["loss"])


@pytest.mark.parametrize("words", [["watch"], ["alarms"], ["export", "--to", "x.csv"]])
def test_what_is_no_run_is_bad_input(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert run([words[0], str(tmp_path), *words[1:]]) == 64
    assert "is not the folder of a watched run" in capsys.readouterr().err
