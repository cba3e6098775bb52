"""The report of a watched run: its alarms in their own words, its numbers as curves, hostile folders refused."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edgewise.cli.main import run
from edgewise.errors import BadInput
from edgewise.monitor.alarm import ADVICE, MEANING
from edgewise.nouns.card import Curve, Panel
from edgewise.present.html import LARGEST, picture
from edgewise.present.run_report import page, read
from tests.support.html_elements import Elements
from tests.support.run_folders import ALARM, DAMAGED, HOSTILE, spoil, write


def test_a_run_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "mine", 12, alarm=True)
    target = tmp_path / "report.html"
    assert run(["report", str(tmp_path / "mine"), "-o", str(target)]) == 0
    assert "1 alarm, at step 7" in capsys.readouterr().out
    html = Elements(target.read_text())
    for words in (
        "1 alarm, at step 7",
        MEANING[ALARM.kind],
        ADVICE[ALARM.kind],
        "A bad batch.",
        "The largest logit of block 1 doubled.",
        "mine · Tiny · 2 blocks",
        f"edgewise report {tmp_path / 'mine'}",
    ):
        assert words in html.plain, words
    assert "script" not in {tag for tag, _ in html.elements} and target.stat().st_size < LARGEST / 10
    assert not re.search(r"https?://|@import|url\(|javascript:", target.read_text())


def test_the_curves_are_the_numbers_of_the_folder(tmp_path: Path) -> None:
    """The loss falls in a straight line, and the alarm stands at its step."""
    write(tmp_path / "a", 12, alarm=True)
    text = page(read(tmp_path / "a"))
    pictures = re.findall(r"<svg viewBox=\"0 0 210 150\".*?</svg>", text)
    assert len(pictures) == 2 and "Loss" in pictures[0] and "Largest logit" in pictures[1]
    path = re.search(r'class="curve" d="M([^"]*)"', pictures[0])
    assert path is not None
    points = [tuple(map(float, step.removesuffix("h.01").split())) for step in path[1].split("L")]
    assert len(points) == 12 and points[0][0] == 2.0 and points[-1][0] == 158.0
    falls = [b[1] - a[1] for a, b in pairwise(points)]
    assert falls == pytest.approx([(points[-1][1] - points[0][1]) / 11] * 11, abs=0.11) and falls[0] > 1
    mark = re.search(r'class="alarm" x1="([\d.]+)"', pictures[0])
    assert mark is not None and float(mark[1]) == pytest.approx(2 + 156 * 7 / 11, abs=0.06)
    assert "2048" in Elements(text).plain  # the largest logit, 2^11


def test_a_run_without_alarm_and_one_without_rows(tmp_path: Path) -> None:
    write(tmp_path / "calm", 20, seen=True)
    write(tmp_path / "empty", 0)
    assert "Nothing left its own past" in Elements(page(read(tmp_path / "calm"))).plain
    assert "No row yet" in Elements(page(read(tmp_path / "empty"))).plain


@pytest.mark.parametrize("how", HOSTILE)
def test_a_hostile_folder_gets_a_sentence_and_writes_nothing(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "runs" / "bad"
    write(folder, 2)
    spoil(folder, how)
    with pytest.raises(BadInput):
        read(folder)
    target = tmp_path / "report.html"
    assert run(["report", str(folder), "-o", str(target)]) == 64 and not target.exists()


def test_what_was_not_seen_is_said_before_anything_else(tmp_path: Path) -> None:
    """Also where there are alarms; a run in which little was seen is not called calm."""
    write(tmp_path / "few", 3, seen=True)
    html = Elements(page(read(tmp_path / "few"))).plain
    assert "Not enough was seen to say no alarm" in html and "Nothing left its own past" not in html
    assert html.index("Only 3 rows were stored") < html.index("3 rows, to step 2")
    write(tmp_path / "blind", 30, alarm=True)
    html = Elements(page(read(tmp_path / "blind"))).plain
    assert html.index("The stream of embed, block 0, block 1 was not observed") < html.index(
        "It is: logit growth"
    )


@pytest.mark.parametrize("how", DAMAGED)
def test_damaged_events_are_skipped_and_said(tmp_path: Path, how: str) -> None:
    write(tmp_path / "bad", 30, alarm=True, seen=True)
    spoil(tmp_path / "bad", how)
    subject = read(tmp_path / "bad")
    assert subject.headline == "Not enough was seen to say no alarm" and subject.rows == 30
    assert (
        "1 damaged line of events, which may have been an alarm, was skipped."
        in Elements(page(subject)).plain
    )


def test_names_of_others_add_no_element(tmp_path: Path) -> None:
    write(tmp_path / "a", 3, alarm=True)
    bad = '</title><script>alert(1)</script>" onload="x'
    about = tmp_path / "a" / "run.json"
    values = json.loads(about.read_text()) | {"started": "x"}
    about.write_text(json.dumps(values | {"versions": {"x": "x"}}))
    plain = Elements(page(read(tmp_path / "a"))).elements
    about.write_text(json.dumps(values | {"model": bad, "versions": {bad: bad}}))
    events = next((tmp_path / "a").glob("events-*"))
    text = events.read_text().replace("a bad batch", json.dumps(bad)[1:-1])
    events.write_text(re.sub(r', "check": "\w+"', "", text))
    text = page(read(tmp_path / "a"))
    assert "<script" not in text and Elements(text).elements == plain
    assert Elements(text).plain.count("alert(1)") >= 5


def test_a_run_takes_no_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", 1)
    assert run(["report", str(tmp_path / "a"), "--depth", "3", "-o", str(tmp_path / "r.html")]) == 64
    assert "is a watched run" in capsys.readouterr().err


def loss(steps: list[float], values: list[float | None]) -> str:
    """The picture of one curve over steps."""
    y = np.array([math.nan if value is None else value for value in values])
    return picture(Panel("Loss", "step", "", (Curve("", np.array(steps), y),))) or ""


def test_gaps_and_numbers_that_are_not_finite_are_no_line() -> None:
    drawn = loss([0, 1, 2, 3], [1.0, None, float("inf"), 2.0])
    assert drawn.count("M") == 2 and "L" not in re.findall(r' d="([^"]*)"', drawn)[0]
    assert loss([0, 1], [None, float("nan")]) == ""
    for values in ([0.0, 0.0], [5.0, 5.0], [-3.0, -1.0], [1e-30, 1e30], [-1e30, 1e38], [1e-40, 2e-40]):
        heights = re.findall(r"[ML][\d.]+ ([\d.]+)", loss([0, 1], [*values]))
        assert len(heights) == 2 and all(28 <= float(y) <= 122 for y in heights), values
