"""The fuzz notices what it is there to notice: every class occurs when it should."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import edgewise
from tests.fuzz import classes, processes
from tests.fuzz.attempts import check_shell
from tests.fuzz.classes import ANSWERED, HANG, INTERNAL, MEMORY, REFUSED, TRACEBACK, WRONG, attempt
from tests.fuzz.invariants import check_trace


def refuse(words: str) -> None:
    raise edgewise.BadInput(words)


def spin() -> None:
    while True:
        pass


def test_answers_refusals_and_mistakes_are_told_apart() -> None:
    assert attempt(lambda: None).kind == ANSWERED
    assert attempt(lambda: refuse("depth must be at least 1, got 0.")).kind == REFUSED
    assert attempt(lambda: refuse("bad input")).kind == WRONG
    assert attempt(lambda: [][1]).kind == TRACEBACK
    assert attempt(lambda: check_shell(70, ["predict"], "", "internal error")).kind == INTERNAL
    assert attempt(lambda: check_shell(3, ["predict"], "", "")).kind == WRONG
    assert attempt(lambda: check_shell(0, ["predict", "--json"], '{"a": NaN}', "")).kind == WRONG


def test_a_hang_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "SECONDS", 0.2)
    assert attempt(spin).kind == HANG


def test_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "BYTES", 100 * 2**20)
    assert attempt(lambda: np.ones(2**22).sum()).kind == ANSWERED  # 32 MB
    assert attempt(lambda: np.ones(2**25).sum()).kind == MEMORY  # 256 MB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets the largest size so far")
@pytest.mark.parametrize("left", ["garbage", "heap"])
def test_what_was_left_before_and_is_given_back_now_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(classes, "BYTES", 100 * 2**20)
    kept: list[object] = [bytes(2**16) for _ in range(2**12)]  # 256 MB of the heap,
    kept = kept[-1:] if left == "heap" else [kept, kept]  # of which the topmost piece holds all the others
    if left == "garbage":
        kept.append(kept)
        del kept

    def trial() -> None:
        if left == "heap":
            kept.clear()
        gc.collect()
        np.ones(2**25).sum()

    assert attempt(trial).kind == MEMORY


@pytest.mark.parametrize("broken", ["norm", "separation", "log_gradient"])
def test_an_impossible_trace_is_wrong(broken: str) -> None:
    trace = edgewise.predict(edgewise.transformer(depth=2, tokens=4))
    check_trace(trace)
    getattr(trace, broken)[..., 1] = {"norm": -1.0, "separation": 2.5, "log_gradient": np.nan}[broken]
    assert attempt(lambda: check_trace(trace)).kind == WRONG


def test_a_real_process_is_classed_by_its_exit_code() -> None:
    assert processes.try_as_process(["--version"]).kind == ANSWERED
    assert processes.try_as_process(["predict", "absent.json"]).kind == REFUSED
