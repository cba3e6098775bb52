"""The bar for long waits: only for a person, only after a while, and gone at the end."""

from __future__ import annotations

import io
import sys
import time

import pytest

from edgewise.cli.patience import Patience


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_with_patience(quiet_seconds: float, seconds: float) -> None:
    with Patience(quiet_seconds) as patience:
        patience.say("first step")
        time.sleep(seconds)
        patience.say("second step")


def test_a_long_wait_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    wait_with_patience(0.01, 0.8)
    assert "first step" in terminal.getvalue()


def test_a_short_wait_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    wait_with_patience(5.0, 0.0)
    assert terminal.getvalue() == ""


def test_a_pipe_is_shown_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    wait_with_patience(0.01, 0.1)
    assert pipe.getvalue() == ""
