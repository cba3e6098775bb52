"""The shell's verbs for watched runs: the table, the alarms with their exit codes, the export."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

import edgewise
from edgewise.cli.main import run
from edgewise.cli.watch_commands import view
from edgewise.explorer.runs import EXAMPLES, RunRequest, answer, listing
from edgewise.monitor.alarm import Alarm, AlarmKind
from edgewise.monitor.read_run import Run
from edgewise.monitor.run_folder import RowsFile
from tests.monitor.subjects import encoder, train, train_unheard
from tests.support.forked import run_python

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, model, criterion = tmp_path_factory.mktemp("runs") / "a", encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, everything=True, to=path, criterion=criterion, quiet=True):
        train(model, 24, criterion)
    return path


def with_alarm(tmp_path: Path, kind: AlarmKind) -> Path:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(
        model, everything=True, to=tmp_path / "run", criterion=criterion, quiet=True
    ) as handle:
        train(model, 2, criterion)
        handle._raise(
            Alarm(kind, 1, "block.1", 3, 0, "It grows.", "attention", ruled_out=("the rate",), rows=40)
        )
    return tmp_path / "run"


def test_the_table_of_a_run(folder: Path, capsys: Capture) -> None:
    assert run(["watch", str(folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    frame = edgewise.read(folder)
    assert "step 23, loss" in printed and "(Sequential, ended)" in printed and "0 alarms" in printed
    assert f"{frame['block.1.entropy'].iloc[-1]:.3g}" in printed
    assert all(f" {place} " in printed for place in ("embed", "block.0", "block.1"))


def test_alarms_that_are_left_out_are_counted(capsys: Capture) -> None:
    assert run(["watch", str(EXAMPLES / "a rate that grows"), "--once"]) == 0
    printed = capsys.readouterr().out
    assert "The last 3 of 6 alarms; `edgewise alarms` shows all of them." in printed
    assert printed.count("ALARM at step") == 3


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120])
def test_no_number_is_cut_where_the_terminal_is_narrow(width: int, folder: Path) -> None:
    """Columns that do not fit are left out by name."""
    console = Console(width=width, file=io.StringIO())
    console.print(view(Run(folder), 0, width))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\u2026" not in printed
    assert f"{edgewise.read(folder)['block.1.norm'].iloc[-1]:.3g}" in printed
    words = " ".join(printed.split())
    assert ("No room for" in words) == (width < 120)
    assert words.count("headroom") == 1


def test_a_run_without_alarms_is_fine(folder: Path, capsys: Capture) -> None:
    assert run(["alarms", str(folder)]) == 0
    assert "No alarm in 24 rows of Sequential." in capsys.readouterr().out
    assert run(["alarms", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "run": str(folder),
        "model": "Sequential",
        "rows": 24,
        "unseen": [],
        "damaged_rows": 0,
        "damaged_events": 0,
        "exit_code": 0,
        "alarms": [],
    }
    assert run(["alarms", str(folder), "--again"]) == 0
    assert "No alarm in 24 rows of Sequential." in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "code"), [(AlarmKind.VANISHING_GRADIENT, 1), (AlarmKind.NOT_A_NUMBER, 2)])
def test_alarms_are_printed_and_coded(kind: AlarmKind, code: int, tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, kind)
    assert run(["alarms", str(path)]) == code
    printed = capsys.readouterr().out
    assert "in block.1 (1.layers.1), head 3, since step 0." in printed and "Ruled out: the rate." in printed
    assert run(["alarms", str(path), "--json"]) == code
    assert json.loads(capsys.readouterr().out)["alarms"][0]["kind"] == kind.value
    assert run(["watch", str(path), "--once"]) == 0
    assert "ALARM at step 1" in capsys.readouterr().out


def test_a_cause_that_shows_again_is_one_alarm(tmp_path: Path, capsys: Capture) -> None:
    """On the screen, in JSON and in the report; another cause, and what comes long after, stand for themselves."""
    from edgewise.monitor.alarm import folded

    rate = "the learning rate is too high: 8 steps take the loss from {} to 9.1"
    told = [
        (AlarmKind.UPDATE_TOO_LARGE, 40, rate.format(2.5)),
        (AlarmKind.LOGIT_GROWTH, 47, ""),
        (AlarmKind.LOSS_SPIKE, 90, rate.format(3.25)),
        (AlarmKind.MISTAKE, 95, "dropout is 0.9"),
        (AlarmKind.RANK_COLLAPSE, 400, ""),
    ]
    alarms = [Alarm(kind, k, "", None, k, "It grows.", cause=cause) for kind, k, cause in told]
    assert [(head.step, [a.step for a in others]) for head, others in folded(alarms)] == [
        (40, [47, 90]),
        (95, []),
        (400, []),
    ]
    path = tmp_path / "run"
    with edgewise.watch(encoder(), everything=True, to=path, quiet=True) as handle:
        train(handle.model, 2)
        for alarm in alarms:
            details = {name: value for name, value in alarm.json().items() if name not in ("kind", "step")}
            handle.said.write("alarm", str(alarm), alarm.step, alarm=alarm.kind.value, **details)
    assert run(["alarms", str(path)]) == 2
    printed = capsys.readouterr().out
    assert printed.count("ALARM at step") == 3 and "  Also:  step 47: logit growth. It grows." in printed
    assert "3 alarms in 2 rows of Sequential, which showed 5 times." in printed
    assert run(["alarms", str(path), "--json"]) == 2
    head, *others = json.loads(capsys.readouterr().out)["alarms"]
    assert [each["step"] for each in head["also"]] == [47, 90] and [each["also"] for each in others] == [
        [],
        [],
    ]
    run(["report", str(path), "-o", str(tmp_path / "r.html")])
    page = (tmp_path / "r.html").read_text()
    assert "3 alarms, the first at step 40" in page and "Step 90: loss spike. It grows." in page


def test_alarms_as_one_json_document(tmp_path: Path, capsys: Capture) -> None:
    """Symptom, cause, evidence, place by module name, advice, and the command that replays the step."""
    path = with_alarm(tmp_path, AlarmKind.VANISHING_GRADIENT)
    assert run(["alarms", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert document["exit_code"] == 1 and document["rows"] == 2
    assert document["unseen"][0].startswith("Only 2 rows were stored")
    (alarm,) = document["alarms"]
    assert alarm["symptom"] == "vanishing gradient" and alarm["cause"] == "" and not alarm["failing"]
    assert alarm["what"] == "It grows." and alarm["ruled_out"] == ["the rate"] and alarm["could_be"]
    assert (alarm["place"], alarm["module"], alarm["head"]) == ("block.1", "1.layers.1", 3)
    assert alarm["advice"] == Alarm.from_json(alarm | {"alarm": alarm["kind"]}).try_next != ""
    assert Path(alarm["dossier"]).is_dir()
    assert alarm["replay"] == f"edgewise replay {alarm['dossier']} FILE.PY:FUNCTION"
    assert run(["alarms", str(path), "--json", "--again"]) == 3
    assert json.loads(capsys.readouterr().out)["alarms"] == []


def test_an_alarm_that_was_cut_off_is_not_no_alarm(tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, AlarmKind.VANISHING_GRADIENT)
    (events,) = path.glob("events-rank0-*.jsonl")
    text = events.read_text()
    events.write_text(text[: text.index('"alarm"') + 30])
    assert run(["alarms", str(path)]) == 3
    printed = capsys.readouterr().out
    assert (
        printed.startswith("Not everything was seen:")
        and "The last event of the run is incomplete" in printed
    )
    assert run(["alarms", str(path), "--again"]) == 3
    assert "The last event" not in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_shown_and_not_sent(tmp_path: Path, capsys: Capture) -> None:
    """Names and sentences come from files that anyone may have written: colours, links, bells, lines of their own."""
    path = with_alarm(tmp_path, AlarmKind.VANISHING_GRADIENT)
    about = json.loads((path / "run.json").read_text()) | {"model": "Net\x1b[31m\x07\nNo alarm [bold]"}
    (path / "run.json").write_text(json.dumps(about))
    events = [json.loads(line) for line in (path / "events-rank0-000.jsonl").read_text().splitlines()]
    for event in events:
        del event["check"]
        if event["kind"] == "alarm":
            event |= {
                "sentence": "ALARM\x1b]8;;http://x\x07here",
                "what": "It\x1b[2J grows.\r\nNo alarm in 9 rows",
            }
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
        handle = edgewise.watch(
            model, everything=True, to=path, criterion=criterion, quiet=True, first_step=first_step
        )
        train(model, 2, criterion)
        if not first_step:
            handle.close()
    assert handle.folder is not None
    handle.folder.flush()
    assert run(["watch", str(path), "--once"]) == 3  # 4 rows
    assert "(Sequential, going on): step 3" in " ".join(capsys.readouterr().out.split())
    with monkeypatch.context() as patch:  # the same, two hours after its process was killed
        later = time.time() + 7200
        patch.setattr("time.time", lambda: later)
        assert run(["watch", str(path), "--once"]) == 3
    assert "going on, or killed: no row for 2:00:0" in " ".join(capsys.readouterr().out.split())
    handle.close()
    assert run(["watch", str(path), "--once"]) == 3
    assert "(Sequential, ended): step 3" in " ".join(capsys.readouterr().out.split())


def test_export_writes_every_row(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["export", str(folder), "--to", str(tmp_path / "x.csv")]) == 0
    assert "Wrote 24 rows" in capsys.readouterr().err
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
    assert (
        document["step"] == 23 and document["rows"] == 24 and document["ended"] and document["alarms"] == []
    )
    assert document["row"]["block.1.entropy"] == frame["block.1.entropy"].iloc[-1]
    assert document["row"]["stream_change_of_edge"] is None  # not observed
    path = with_alarm(tmp_path, AlarmKind.VANISHING_GRADIENT)
    assert run(["watch", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alarms"][0]["kind"] == "vanishing_gradient"
    assert run(["export", str(folder), "--to", str(tmp_path / "x.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": str(tmp_path / "x.csv"), "rows": 24}


def test_alarms_that_are_not_known_are_not_none(tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, AlarmKind.NOT_A_NUMBER)
    next(path.glob("events-rank0-*.jsonl")).unlink()
    assert run(["alarms", str(path)]) == 3
    printed = capsys.readouterr().out
    assert "No alarm is known in 2 rows" in printed and "no file of events" in printed


def test_damaged_rows_are_told(tmp_path: Path, capsys: Capture) -> None:
    path = with_alarm(tmp_path, AlarmKind.VANISHING_GRADIENT)
    (rows,) = path.glob("rank0-*.rows")
    data = bytearray(rows.read_bytes())
    data[100] ^= 255
    rows.write_bytes(data)
    assert run(["alarms", str(path)]) == 1
    assert "1 damaged row was skipped." in capsys.readouterr().out
    assert run(["watch", str(path), "--once"]) == 0
    assert "1 row and 1 damaged, 1 alarm" in " ".join(capsys.readouterr().out.split())


def test_a_mistake_in_a_hostile_folder_is_shown_and_not_sent(tmp_path: Path, capsys: Capture) -> None:
    assert run(["alarms", str(tmp_path / "a\x1b[31m\x07")]) == 64
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().err)


def watched(path: Path, steps: int, **options: Any) -> Path:
    """A run of some steps, every one of them sampled."""
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, everything=True, to=path, quiet=True, **{"criterion": criterion} | options):
        train(model, steps, criterion, backward=torch.autograd.backward)
    return path


def unheard(path: Path) -> None:
    """A run that never calls backward and gives no criterion."""
    model = encoder()
    with edgewise.watch(model, everything=True, to=path, quiet=True):
        train_unheard(model, 25)


def off(path: Path) -> None:
    """A run whose monitor dies of an error of its own."""
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, everything=True, to=path, criterion=criterion, quiet=True) as handle:
        train(model, 25, criterion)
        handle.fail(ValueError("on purpose"))


def killed(path: Path) -> None:
    """A run whose process ends without an end of the run."""
    script = (
        "import os, sys, torch, edgewise\nfrom tests.monitor.subjects import encoder, train\n"
        "model, criterion = encoder(), torch.nn.CrossEntropyLoss()\n"
        "handle = edgewise.watch(model, everything=True, to=sys.argv[1], criterion=criterion, quiet=True)\n"
        "train(model, 25, criterion)\nhandle.folder.flush()\nos._exit(1)\n"
    )
    assert run_python(script, str(path)) == 1


def unread(path: Path) -> None:
    """A run in which no attention was observed."""
    watched(path, 25)
    (file,) = path.glob("rank0-*.rows")
    rows, columns = Run(path).rows(), Run(path).columns()
    rows.values[:, [i for i, name in enumerate(columns) if name.endswith("largest_logit")]] = np.nan
    file.unlink()
    again = RowsFile(file, Run(path).about["schema"], len(columns))
    for step, moment, values in zip(rows.step, rows.time, rows.values, strict=True):
        again.append(step, moment, values)
    again.close()


UNSEEN = {
    "few rows": (lambda path: watched(path, 19), "Only 19 rows were stored, and most alarms need 20."),
    "no loss": (
        unheard,
        "The loss was never reported. Give the criterion as criterion=",
    ),
    "off": (off, "The monitor switched itself off at step 25, and nothing after that was watched"),
    "killed": (killed, "The run stopped without an end"),
    "columns": (unread, "Attention of block.0, block.1 was not observed"),
}


@pytest.mark.parametrize("how", UNSEEN)
def test_what_could_not_be_seen_is_said_first_and_is_not_no_alarm(
    how: str, tmp_path: Path, capsys: Capture
) -> None:
    make, words = UNSEEN[how]
    path = tmp_path / "run"
    make(path)
    capsys.readouterr()
    assert run(["alarms", str(path)]) == 3
    printed = capsys.readouterr().out
    assert printed.startswith(f"Not everything was seen:\n  - {words}"), printed
    assert "which were not enough to say that there was none." in printed and "No alarm in" not in printed
    assert run(["alarms", str(path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["unseen"][0].startswith(words)
    assert run(["watch", str(path), "--once"]) == 3
    assert " ".join(capsys.readouterr().out.split()).startswith(words)
    assert run(["watch", str(path), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["unseen"][0].startswith(words)
    assert run(["report", str(path), "-o", str(tmp_path / "r.html")]) == 3
    assert "Not enough was seen to say no alarm" in capsys.readouterr().out
    assert words.replace("block.", "block ") in (tmp_path / "r.html").read_text()
    page = answer(tmp_path, RunRequest(name="run", rank=0))
    assert page["alarms"] == [] and page["unseen"][0].startswith(words.replace("block.", "block "))
    if how != "columns":  # which only the rows show
        assert listing(tmp_path)["runs"][0]["unseen"]


NAN = {  # a loss that is not a number from the start, at the end, and with a monitor that stopped on the way
    "from the start": (0, None),
    "at the end": (24, None),
    "few rows": (5, 12),
    "stopped before": (20, 15),
}


@pytest.mark.parametrize("how", NAN)
def test_a_loss_that_is_not_a_number_is_never_no_alarm(how: str, tmp_path: Path, capsys: Capture) -> None:
    """Shell, report, page, JSON: an alarm, or that not enough was seen."""
    broken, stop = NAN[how]
    model, generator = encoder(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with edgewise.watch(model, everything=True, to=tmp_path / "run", facts=None) as handle:
        for step in range(25):
            loss = model(torch.randint(0, 64, (4, 16), generator=generator)).square().mean()
            handle.log(loss=float("nan") if step >= broken else 4.0 - 0.01 * step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == stop and how == "stopped before":
                handle.fail(ValueError("on purpose"))
            if step == stop and how == "few rows":
                break
    said = capsys.readouterr()
    assert ("switched itself off" if how == "stopped before" else "ALARM") in said.err, said.err
    code = 3 if how == "stopped before" else 2
    path = str(tmp_path / "run")
    for words in (["alarms", path], ["alarms", path, "--json"]):
        assert run(words) == code, words
        assert "no alarm in" not in capsys.readouterr().out.lower()
    run(["report", path, "-o", str(tmp_path / "r.html")])
    printed = capsys.readouterr().out + (tmp_path / "r.html").read_text()
    assert ("Not enough was seen to say no alarm" if code == 3 else "alarm") in printed
    assert "No alarm" not in printed
    page = answer(tmp_path, RunRequest(name="run", rank=0))
    assert page["alarms"] or page["unseen"]


def test_thirty_steps_without_a_number_as_loss_are_an_alarm(tmp_path: Path, capsys: Capture) -> None:
    """Not "No alarm", with exit code 0."""
    model = encoder()
    with edgewise.watch(model, to=tmp_path / "run", quiet=True) as handle:
        for _ in range(30):
            handle.log(loss=float("nan"))
            train(model, 1)
    assert run(["alarms", str(tmp_path / "run")]) == 2
    assert "ALARM at step 0: not a number" in capsys.readouterr().out


def test_the_end_of_a_run_says_what_was_not_seen(capsys: Capture) -> None:
    model, criterion = encoder(), nn.CrossEntropyLoss()
    with edgewise.watch(model, criterion=criterion, everything=True):
        train(model, 3, criterion)
    said = capsys.readouterr().err
    assert "the monitor did not see enough to say that nothing is wrong:\n  Only 3 rows were stored" in said
    with edgewise.watch(model, criterion=criterion, everything=True) as handle:
        train(model, 25, criterion)
    assert handle.unseen == [] and "did not see enough" not in capsys.readouterr().err


def test_a_run_that_is_never_closed_ends_with_its_process(tmp_path: Path) -> None:
    script = (
        "import sys, torch, edgewise\nfrom tests.monitor.subjects import encoder, train\n"
        "model, criterion = encoder(), torch.nn.CrossEntropyLoss()\n"
        "handle = edgewise.watch(model, everything=True, to=sys.argv[1], criterion=criterion, quiet=True)\n"
        "train(model, 25, criterion)\n"
    )
    assert run_python(script, str(tmp_path / "run")) == 0
    assert len(Run(tmp_path / "run").rows()) == 25 and Run(tmp_path / "run").unseen() == []
