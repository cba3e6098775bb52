"""The shell's verbs for watched runs: the table, the alarms with their exit codes, the export."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import edgewise
from edgewise.cli.main import run
from edgewise.cli.watch import view
from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.reading import Run
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


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120])
def test_no_number_is_cut_where_the_terminal_is_narrow(width: int, folder: Path) -> None:
    """Columns that do not fit are left out by name."""
    console = Console(width=width, file=io.StringIO())
    console.print(view(Run(folder), 0, width))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\u2026" not in printed
    assert f"{edgewise.read(folder)['block.1.norm'].iloc[-1]:.3g}" in printed
    words = " ".join(printed.split())
    assert ("No room for" in words) == (width < 100)
    assert words.count("headroom") == 1


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


def test_an_alarm_that_was_cut_off_is_not_no_alarm(tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, AlarmKind.LOGIT_GROWTH)
    (events,) = path.glob("events-rank0-*.jsonl")
    text = events.read_text()
    events.write_text(text[: text.index('"alarm"') + 30])
    assert run(["alarms", str(path)]) == 1
    assert "The last event of this run is incomplete" in capsys.readouterr().err
    assert run(["alarms", str(path), "--again"]) == 0


def test_what_a_terminal_would_obey_is_shown_and_not_sent(tmp_path: Path, capsys: Capture) -> None:
    """Names and sentences come from files that anyone may have written: colours, links, bells, lines of their own."""
    path = with_alarm(tmp_path, AlarmKind.LOGIT_GROWTH)
    about = json.loads((path / "run.json").read_text()) | {"model": "Net\x1b[31m\x07\nNo alarm [bold]"}
    (path / "run.json").write_text(json.dumps(about))
    events = [json.loads(line) for line in (path / "events-rank0-000.jsonl").read_text().splitlines()]
    for event in events:
        if event["kind"] == "alarm":
            event |= {"sentence": "ALARM\x1b]8;;http://x\x07here", "what": "It\x1b[2J grows.\r\nNo alarm in 9 rows"}
    (path / "events-rank0-000.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for words in (["watch", str(path), "--once"], ["alarms", str(path)]):
        run(words)
        printed = capsys.readouterr().out
        assert not {"\x1b", "\x07", "\r"} & set(printed)
        assert "\\x1b" in printed and "Net\\x1b[31m\\x07\\nNo alarm [bold]" in printed.replace("\n", "")
        assert "\nNo alarm" not in printed


def test_a_run_that_was_taken_up_again_goes_on(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model, criterion = tmp_path / "run", encoder(), nn.CrossEntropyLoss()
    for first_step in (0, 2):
        handle = edgewise.watch(model, everything=True, to=path, loss=criterion, quiet=True, first_step=first_step)
        train(model, 2, criterion)
        if not first_step:
            handle.close()
    assert handle.folder is not None
    handle.folder.flush()
    assert run(["watch", str(path), "--once"]) == 0
    assert "(Sequential, going on): step 3" in " ".join(capsys.readouterr().out.split())
    with monkeypatch.context() as patch:  # the same, two hours after its process was killed
        later = time.time() + 7200
        patch.setattr("time.time", lambda: later)
        assert run(["watch", str(path), "--once"]) == 0
    assert "going on, or killed: no row for 2:00:0" in " ".join(capsys.readouterr().out.split())
    handle.close()
    assert run(["watch", str(path), "--once"]) == 0
    assert "(Sequential, ended): step 3" in " ".join(capsys.readouterr().out.split())


def test_export_writes_every_row(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["export", str(folder), "--to", str(tmp_path / "x.csv")]) == 0
    assert "Wrote 4 rows" in capsys.readouterr().err
    table = np.genfromtxt(tmp_path / "x.csv", delimiter=",", names=True, deletechars="")
    assert np.array_equal(table["loss"].astype(np.float32), edgewise.read(folder, frame=False)["loss"])


@pytest.mark.parametrize("words", [["watch"], ["alarms"], ["export", "--to", "x.csv"]])
def test_what_is_no_run_is_bad_input(words: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert run([words[0], str(tmp_path), *words[1:]]) == 64
    assert "is not the folder of a watched run" in capsys.readouterr().err


def test_a_run_as_one_json_document(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["watch", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    frame = edgewise.read(folder)
    assert document["step"] == 3 and document["rows"] == 4 and document["ended"] and document["alarms"] == []
    assert document["row"]["block.1.entropy"] == frame["block.1.entropy"].iloc[-1]
    assert document["row"]["stream_change_of_edge"] is None  # not observed
    path = with_alarm(tmp_path, AlarmKind.LOGIT_GROWTH)
    assert run(["watch", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alarms"][0]["kind"] == "logit_growth"
    assert run(["export", str(folder), "--to", str(tmp_path / "x.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "x.csv"), "rows": 4}


def test_alarms_that_are_not_known_are_not_none(tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, AlarmKind.NOT_A_NUMBER)
    next(path.glob("events-rank0-*.jsonl")).unlink()
    assert run(["alarms", str(path)]) == 1
    printed = capsys.readouterr()
    assert "No alarm is known in 2 rows" in printed.out and "no file of events" in printed.err
    assert run(["alarms", str(path), "--again"]) == 0


def test_damaged_rows_are_told(tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, AlarmKind.LOGIT_GROWTH)
    (rows,) = path.glob("rank0-*.rows")
    data = bytearray(rows.read_bytes())
    data[100] ^= 255
    rows.write_bytes(data)
    assert run(["alarms", str(path)]) == 1
    assert "1 of its rows is damaged on the disk and left out." in capsys.readouterr().err
    assert run(["watch", str(path), "--once"]) == 0
    assert "1 row and 1 damaged, 1 alarm" in " ".join(capsys.readouterr().out.split())


def test_a_mistake_in_a_hostile_folder_is_shown_and_not_sent(tmp_path: Path, capsys: Capture) -> None:
    assert run(["alarms", str(tmp_path / "a\x1b[31m\x07")]) == 64
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().err)
