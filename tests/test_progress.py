"""The progress bar: only for a person, only after a while, and gone at the end."""

from __future__ import annotations

import io
import sys
import time

import pytest
import rich.progress  # noqa: F401  imported lazily there, which may take longer than a test waits

from edgewise.progress import ProgressBar, progress_bar

PATIENCE = 60.0  # seconds; no machine is so busy that a thread waits longer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def attach_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Inside the test: pytest puts its own stream in place between a fixture and its test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    return stream


def test_a_long_wait_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach_terminal(monkeypatch)
    with ProgressBar("first step", 0.01):
        ends = time.monotonic() + PATIENCE
        while "first step" not in terminal.getvalue():
            assert time.monotonic() < ends
            time.sleep(0.01)


def test_a_short_wait_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach_terminal(monkeypatch)
    with ProgressBar("first step", PATIENCE) as bar:
        bar.say("second step")
    assert terminal.getvalue() == ""


def test_a_pipe_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    with ProgressBar("first step", 0.01) as bar:
        time.sleep(0.1)
        bar.say("second step")
    assert pipe.getvalue() == ""


def test_parts_are_counted_and_the_rest_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach_terminal(monkeypatch)
    with ProgressBar(quiet_seconds=0) as bar:
        bar.count("cases", 1, 4)
        bar.count("cases", 2, 4)
    assert "cases" in terminal.getvalue() and "2/4" in terminal.getvalue() and "left" in terminal.getvalue()


def test_a_bar_that_appears_late_shows_the_step_of_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach_terminal(monkeypatch)
    with ProgressBar("first step", PATIENCE) as bar:
        bar.count("cases", 3, 4)
        bar._show()  # as its timer does when the time has come
    assert "3/4" in terminal.getvalue() and "first step" not in terminal.getvalue()


def test_the_callers_function_takes_the_place_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach_terminal(monkeypatch)
    fractions: list[float] = []
    with progress_bar(fractions.append, "plane") as tell:
        tell(0.5)
    assert fractions == [0.5] and terminal.getvalue() == ""


@pytest.mark.parametrize("wanted", [True, False])
def test_true_shows_a_bar_at_once_and_false_none(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    terminal = attach_terminal(monkeypatch)
    with progress_bar(wanted, "plane") as tell:
        tell(0.5)
    assert ("plane" in terminal.getvalue()) is wanted
