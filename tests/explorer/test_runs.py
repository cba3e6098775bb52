"""The runs view: numbers are those of the folder, a growing run is followed, hostile folders get a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.monitor.alarm import ADVICE
from edgewise.monitor.run_folder import RunFolder

fastapi_client = pytest.importorskip("fastapi.testclient", reason="the extra `explore` is not installed")

from edgewise.explorer import runs  # noqa: E402
from edgewise.explorer.server import application  # noqa: E402
from edgewise.present import run_files, run_report  # noqa: E402
from tests.support.run_folders import ABOUT, ALARM, COLUMNS, DAMAGED, HOSTILE, NAMES, spoil, write  # noqa: E402


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def client(home: Path) -> Iterator[Any]:
    with fastapi_client.TestClient(application(home)) as client:
        yield client


def ask(client: Any, name: str, **wanted: Any) -> Any:
    return client.post("/api/1/run", json={"name": name, **wanted})


def test_the_pictures_hold_the_numbers_of_the_folder(client: Any, home: Path) -> None:
    write(home / "a", 12, alarm=True)
    answer = ask(client, "a").json()
    assert answer["heat"]["name"] == "largest_logit" and answer["heat"]["places"] == ["0", "1"]
    assert answer["heat"]["rows"] == [[2.0] * 12, [2.0**step for step in range(12)]]
    assert answer["heat"]["worst"] == [max(2.0, 2.0**step) for step in range(12)] and answer["heat"]["log"]
    assert answer["curves"]["loss"]["values"] == pytest.approx([3.0 - 0.01 * step for step in range(12)])
    assert answer["steps"] == [[step, step] for step in range(12)] and list(answer["curves"]) == ["loss"]
    assert "12 rows, to step 11 · ended" in answer["state"] and answer["note"].startswith(
        "Tiny · 2 blocks · width 8"
    )
    assert (
        ask(client, "a", statistic="separation").json()["error"].startswith("'separation' was not observed")
    )


def test_an_alarm_is_told_in_the_monitors_sentences_with_blocks_counted_as_modules_are(
    client: Any, home: Path
) -> None:
    write(home / "a", 9, alarm=True)
    [card] = ask(client, "a").json()["alarms"]
    assert card["title"] == "Logit growth in block 1, head 0" and card["step"] == 7
    assert card["what"] == "The largest logit of block 1 doubled." and card["try"] == ADVICE[ALARM.kind]
    assert card["then"] == ["Loss grew."] and card["ruled_out"] == ["a bad batch"]


def test_the_list_says_what_can_be_read_and_why_not(client: Any, home: Path) -> None:
    shown = client.get("/api/1/runs").json()
    assert shown["example"] and [run["alarms"] for run in shown["runs"]] == [1]
    assert (
        ask(client, shown["runs"][0]["name"]).json()["alarms"][0]["step"] > 80
    )  # the rate grows from there on
    write(home / "deep" / "a", 3)
    write(home / "b", 3, alarm=True, end=False)
    (home / "broken").mkdir()
    (home / "broken" / "run.json").write_text("{")
    rows = {row["name"]: row for row in client.get("/api/1/runs").json()["runs"]}
    assert sorted(rows) == ["b", "broken", "deep/a"]
    assert rows["b"]["live"] and rows["b"]["alarms"] == 1 and not rows["deep/a"]["live"]
    assert (
        "not the folder of a watched run" in rows["broken"]["refused"]
        and str(home) not in rows["broken"]["refused"]
    )


def test_a_long_run_shows_the_worst_row_of_each_column() -> None:
    steps = np.arange(5000)
    values = np.ones((5000, 2), np.float32)
    values[777, 1] = 50
    rows = run_files.RunRows(steps, steps.astype(float), values)
    answer = run_files.picture(["block.0.largest_logit", "block.1.largest_logit"], rows, None)
    assert len(answer["steps"]) == run_files.MOST_COLUMNS and max(answer["heat"]["rows"][1]) == 50
    assert answer["steps"][0][0] == 0 and answer["steps"][-1][1] == 4999 and answer["rows_in_column"] == 13


def test_a_stream_tells_of_growth_and_closes_at_the_end(client: Any, home: Path) -> None:
    write(home / "a", 3)
    answer = client.get("/api/1/run/stream", params={"name": "a"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == 'data: {"ended": true}\n\n'
    before = run_files.fingerprint(run_files.run_of(home, "a"))
    write(home / "a", 2)  # a restart
    assert run_files.fingerprint(run_files.run_of(home, "a")) != before
    assert ask(client, "a").json()["steps"] == [[0, 0], [1, 1]]


def test_a_table_is_a_file_with_every_number(client: Any, home: Path) -> None:
    write(home / "a", 3)
    answer = client.post("/api/1/run/table", json={"name": "a"})
    assert "attachment" in answer.headers["content-disposition"]
    head, *lines = answer.text.splitlines()
    assert head.split(",")[:3] == ["step", "time", "loss"] and len(lines) == 3
    row = dict(zip(head.split(","), lines[2].split(","), strict=True))
    assert float(row["block.1.largest_logit"]) == 4.0 and row["block.1.separation"] == ""


def test_a_report_is_that_of_the_shell_by_the_name_on_the_page(client: Any, home: Path) -> None:
    write(home / "a", 6, alarm=True)
    answer = client.post("/api/1/run/report", json={"name": "a"})
    assert answer.headers["content-disposition"] == 'attachment; filename="report.html"'
    assert answer.text == run_report.page(run_report.subject(run_files.given(home / "a"), "a"))
    assert str(home) not in answer.text and "1 alarm" in answer.text
    assert client.post("/api/1/run/report", json={"name": "../a"}).status_code == 422


def test_the_list_walks_its_folder_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write(home / name, 2)
    walks, walk = [], os.walk
    monkeypatch.setattr(os, "walk", lambda *args, **options: walks.append(args) or walk(*args, **options))
    assert len(runs.listing(home)["runs"]) == 2 and len(walks) == 1


@pytest.mark.parametrize("name", ["../a", "/etc", "a/..", "nothing", "", "a/../../a", "%2e%2e", "a\0"])
def test_only_runs_of_the_list_can_be_named(client: Any, home: Path, name: str) -> None:
    write(home / "a", 1)
    for answer in (ask(client, name), client.get("/api/1/run/stream", params={"name": name})):
        assert answer.status_code == 422 and "not among the runs" in answer.json()["error"]


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_folder_gets_a_sentence(client: Any, home: Path, how: str) -> None:
    write(home / "good", 2)
    write(home / "bad", 2)
    spoil(home / "bad", how)
    answer = ask(client, "bad")
    assert answer.status_code == 422 and answer.json()["error"], how
    assert str(home) not in answer.json()["error"]
    assert client.post("/api/1/run/table", json={"name": "bad"}).status_code in (200, 422)
    assert [row["name"] for row in client.get("/api/1/runs").json()["runs"]] == ["bad", "good"]


@pytest.mark.parametrize("how", DAMAGED)
def test_damaged_events_are_skipped_and_said_first(client: Any, home: Path, how: str) -> None:
    write(home / "bad", 30, alarm=True, seen=True)
    spoil(home / "bad", how)
    answer = ask(client, "bad")
    assert answer.status_code == 200 and answer.json()["alarms"] == []
    assert "1 damaged line of events, which may have been an alarm, was skipped." in answer.json()["unseen"]


def test_what_was_not_seen_is_listed(client: Any, home: Path) -> None:
    write(home / "few", 3, seen=True)
    write(home / "calm", 20, seen=True)
    assert ask(client, "calm").json()["unseen"] == []
    [sentence] = ask(client, "few").json()["unseen"]
    assert sentence.startswith("Only 3 rows were stored")


def test_numbers_that_are_not_finite_are_left_out(client: Any, home: Path) -> None:
    folder = RunFolder(home / "a", COLUMNS, about=ABOUT)
    for step, loss in enumerate([1.0, np.inf, np.nan, -np.inf]):
        folder.append(step, np.array([loss if name == "loss" else np.nan for name in NAMES], np.float32))
    folder.close()
    answer = ask(client, "a").json()
    assert answer["curves"]["loss"]["values"] == [1.0, None, None, None] and answer["heat"] is None
    assert answer["live"] and "going on" in answer["state"]


def test_what_was_never_observed_is_no_curve_and_what_was_has_its_range() -> None:
    rows = run_files.RunRows(
        np.arange(3), np.zeros(3), np.array([[1, 0.01], [2, 0.02], [3, 0.5]], np.float32)
    )
    curves = run_files.picture(["loss", "update_ratio"], rows, None)["curves"]
    assert curves["update_ratio"]["values"] == [0.01, 0.02, 0.5] and curves["update_ratio"]["healthy"] == [
        1e-5,
        0.03,
    ]
    assert set(curves) == {"loss", "update_ratio"}


def test_ctrl_c_ends_a_stream_quietly(home: Path) -> None:
    write(home / "a", 2, end=False)
    command = [sys.executable, "-u", "-m", "edgewise", "explore", str(home), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        place = server.stdout.readline().split()[2].removeprefix("http://").rstrip("/")
        connection = HTTPConnection(place, timeout=60)
        connection.request("GET", "/api/1/run/stream?name=a", headers={"host": place})
        answer = connection.getresponse()
        assert answer.readline() == b'data: {"ended": false}\n'
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0 and server.stderr.read() == ""
