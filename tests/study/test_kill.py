"""Killing it, many times, at random moments: nothing is lost but the case under way, and no record is wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from edgewise.study import load_recipe, store
from edgewise.study.engine import Work, run
from edgewise.study.store import read_line
from tests.support.recipes import write_recipe

RUN = """
import sys
from edgewise.study import load_recipe
from edgewise.study.engine import run
from edgewise.study.engine import Work
print("ready", flush=True)
results = run(Work.of(load_recipe(sys.argv[1]), "full", sys.argv[2]), workers=int(sys.argv[3]))
sys.exit(results.missing)
"""


def slow_recipe(folder: Path, cases: int, seconds: float) -> Path:
    """A recipe that notes every beginning of a case in a file of its own; its last case waits while `held` exists."""
    head = '"""Killed."""\nimport os\nimport time\nfrom edgewise.study import Claim\n'
    note = f"os.open({str(folder / 'begun')!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)"
    body = f'    file = {note}\n    os.write(file, b"%d\\n" % case["x"])\n    os.close(file)\n'
    body += f"    time.sleep({seconds})\n"
    waits = f"case['x'] == {cases - 1} and os.path.exists({str(folder / 'held')!r})"
    body += f"    while {waits}:\n        time.sleep(0.01)\n"
    measure = f'def measure(case):\n{body}    return {{"y": case["x"] ** 2, "words": "long" * 50}}\n'
    listed = f"def cases(scale):\n    return [{{'x': x}} for x in range({cases})]\n"
    return write_recipe(folder, head=head, measure=measure, cases=listed)


@contextmanager
def running(path: Path, workers: int, patience: float = 20.0) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process of its own, ready to measure; it and its workers are gone at the end, soon."""
    command = [sys.executable, "-c", RUN, str(path), str(path.parents[1] / "runs"), str(workers)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=path.parents[1]
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        yield process
    finally:
        workers = workers_of(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert not still_there(workers, patience), "workers outlived their run"


def still_there(workers: list[psutil.Process], patience: float) -> list[psutil.Process]:
    """Those that go on for longer, on the clock and in processor time: a busy machine may not let one end earlier."""
    began, used = time.monotonic(), {worker: processor_time(worker) for worker in workers}
    while time.monotonic() - began < 30 * patience:
        _, alive = psutil.wait_procs(workers, timeout=0.1)
        if not alive:
            return []
        if time.monotonic() - began > patience and any(processor_time(w) - used[w] > patience for w in alive):
            break
    return alive


def processor_time(process: psutil.Process) -> float:
    try:
        return sum(process.cpu_times()[:2])
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return 0.0


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The loky processes of a run."""
    try:
        children = psutil.Process(process.pid).children()
        return [child for child in children if "LokyProcess" in " ".join(child.cmdline())]
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def stored_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("runs/*/*/records/*"))


def check_records(folder: Path) -> tuple[Counter[int], int]:
    """Every line is either a right record or seen to be damaged; how often each case is stored, and the damaged."""
    stored: Counter[int] = Counter()
    damaged = 0
    for file in store.files_of(folder):
        for line in file.read_bytes().splitlines(keepends=True):
            record = read_line(line)
            damaged += record is None
            if isinstance(record, store.Record):
                assert record.value == {"y": record.case["x"] ** 2, "words": "long" * 50}
                stored[record.case["x"]] += 1
    return stored, damaged


def check_resumed(path: Path, cases: int, kills: int, workers: int) -> None:
    """After the last kill: what is missing is measured, all is there once, and little was measured twice."""
    work = Work.of(load_recipe(path), "full", path.parents[1] / "runs")
    before, _ = check_records(work.records)
    results = run(work)
    assert results.computed == cases - len(before)  # what was stored is not measured again
    assert [(r.case["x"], r.value["y"]) for r in results.cases] == [(x, x * x) for x in range(cases)]
    stored, damaged = check_records(work.records)
    assert set(stored) == set(range(cases))
    assert sum(stored.values()) <= cases + kills * workers
    assert damaged <= kills * workers
    begun = len((path.parents[1] / "begun").read_bytes().splitlines())
    assert begun <= cases + kills * workers, "more than the cases under way were measured again"
    assert run(work).computed == 0


def kill_the_run(
    tmp_path: Path, workers: int, kills: int, cases: int, longest: float, patience: float = 20.0
) -> int:
    """Kill one run after another, none of which can end before, then let one complete; how many were killed."""
    path, moments, struck = slow_recipe(tmp_path, cases, 0.002), random.Random(workers), 0
    (tmp_path / "held").touch()
    for _ in range(kills):
        with running(path, workers, patience) as process:  # leaving it kills it
            time.sleep(moments.uniform(0, longest))
            struck += process.poll() is None
        check_records(tmp_path / "runs" / "paper2020idea" / "figure1" / "records")
    (tmp_path / "held").unlink()
    check_resumed(path, cases, kills, workers)
    return struck


def kill_workers(tmp_path: Path, kills: int, cases: int, seconds: float) -> int:
    """Kill one worker after another while the run goes on; it must end by itself, complete.

    Something is stored between two kills: a case that is hit three times when alone is rightly given up.
    """
    path, moments, killed, size = slow_recipe(tmp_path, cases, seconds), random.Random(0), 0, 0
    (tmp_path / "held").touch()  # the run does not end before its first worker is killed
    with running(path, 2) as process:
        while killed < kills and process.poll() is None:
            time.sleep(moments.uniform(0.0, 0.5))
            if (now := stored_bytes(tmp_path)) > size and (alive := workers_of(process)):
                size = now
                os.kill(moments.choice(alive).pid, signal.SIGKILL)
                killed += 1
                (tmp_path / "held").unlink(missing_ok=True)
        assert process.wait() == 0
    check_resumed(path, cases, killed, 2)
    return killed


def test_a_serial_run_is_killed_at_random_moments(tmp_path: Path) -> None:
    assert kill_the_run(tmp_path, workers=1, kills=6, cases=200, longest=0.15) == 6


def test_a_run_with_workers_is_killed_at_random_moments(tmp_path: Path) -> None:
    assert kill_the_run(tmp_path, workers=2, kills=2, cases=300, longest=1.0) == 2


def test_workers_are_killed_and_the_run_completes(tmp_path: Path) -> None:
    assert kill_workers(tmp_path, kills=1, cases=150, seconds=0.01) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("workers, longest, cases", [(1, 0.4, 5000), (2, 3.0, 30000)])
def test_runs_are_killed_forty_times(tmp_path: Path, workers: int, longest: float, cases: int) -> None:
    assert kill_the_run(tmp_path, workers, kills=40, cases=cases, longest=longest) == 40


@pytest.mark.slow
@pytest.mark.parametrize("workers, longest, cases", [(1, 0.4, 10_000), (4, 3.0, 60_000)])
def test_two_hundred_kills_lose_nothing_and_leave_no_orphan(
    tmp_path: Path, workers: int, longest: float, cases: int
) -> None:
    """A hundred of each; what was started is gone two seconds after the run that started it."""
    assert kill_the_run(tmp_path, workers, kills=100, cases=cases, longest=longest, patience=2.0) == 100


@pytest.mark.slow
def test_workers_are_killed_many_times(tmp_path: Path) -> None:
    assert kill_workers(tmp_path, kills=25, cases=3000, seconds=0.02) >= 20


def test_two_runs_share_a_folder(tmp_path: Path) -> None:
    """At the same time, on the same cases: each ends complete, and what both measured is the same."""
    path = slow_recipe(tmp_path, 60, 0.005)
    with running(path, 1) as first, running(path, 1) as second:
        assert [process.wait() for process in (first, second)] == [0, 0]
    stored, damaged = check_records(tmp_path / "runs" / "paper2020idea" / "figure1" / "records")
    assert (set(stored), damaged) == (set(range(60)), 0)
    results = run(Work.of(load_recipe(path), "full", tmp_path / "runs"))
    assert (results.computed, results.missing, results.differing) == (0, 0, 0)


def test_workers_without_a_case_end_with_a_killed_run(tmp_path: Path) -> None:
    """One long case on two workers: the idle one is gone within two seconds, too."""
    path = slow_recipe(tmp_path, 2, 0.0)
    text = path.read_text().replace("time.sleep(0.0)", "time.sleep(60 * (case['x'] == 0))")
    path.write_text(text)
    with running(path, 2) as process:
        for _ in range(600):
            if len(workers_of(process)) == 2 and (tmp_path / "begun").exists():
                break
            time.sleep(0.1)
        workers = workers_of(process)
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not still_there(workers, 2.0)
