"""kill -9 and a full disk at any moment of watch, run and report: what was acknowledged is there, and can be read."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import edgewise
from edgewise.cli.main import run
from edgewise.monitor.read_run import Run
from edgewise.monitor.run_folder import FAST, HEADS
from edgewise.study import store
from tests.monitor.subjects import encoder
from tests.support.recipes import write_recipe
from tests.support.run_folders import write

SLOW = 'def measure(case):\n    import time\n    time.sleep(0.02)\n    return {"y": square(case["x"])}\n'


def _watch(place: Path, acknowledge: Callable[[int], None]) -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with edgewise.watch(model, place / "run", quiet=True, everything=True) as handle:
        for _ in range(40):
            model(torch.randint(0, 64, (4, 16))).square().mean().backward()
            optimizer.step()
            assert handle.folder is not None
            handle.folder.flush()
            acknowledge(handle.folder.written)


def _run(place: Path, acknowledge: Callable[[int], None]) -> None:  # noqa: ARG001
    run(["run", str(place / "paper2020idea" / "figure1.py"), "--into", str(place / "runs")])


def _report(place: Path, acknowledge: Callable[[int], None]) -> None:  # noqa: ARG001
    run(["report", str(place / "run"), "-o", str(place / "report.html")])


VERBS = {"watch": _watch, "run": _run, "report": _report}


def broken(verb: str, place: Path, seconds: float | None, size: int | None) -> int:
    """Do it in a process that is killed after so many seconds, or whose files cannot grow beyond a size; return the
    largest number that it acknowledged."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        if size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        try:
            VERBS[verb](place, lambda number: os.write(writer, number.to_bytes(4, "little")) and None)
        finally:
            os._exit(0)
    os.close(writer)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        numbers = file.read()
    return max(
        (int.from_bytes(numbers[i : i + 4], "little") for i in range(0, len(numbers) - 3, 4)), default=0
    )


def check(verb: str, place: Path, seconds: float | None, size: int | None) -> None:
    """Break it, and read what is left."""
    place.mkdir()
    recipe = write_recipe(place, measure=SLOW)
    if verb == "report":
        write(place / "run", 5)
    acknowledged = broken(verb, place, seconds, size)
    if verb == "watch" and (place / "run" / "run.json").exists():
        parts = [Run(place / "run").rows(kind) for kind in (FAST, HEADS)]
        assert sum(map(len, parts)) >= acknowledged and not any(part.damaged for part in parts)
        events = Run(place / "run").events()
        assert all(event["kind"] != "off" for event in events), events
        assert run(["alarms", str(place / "run")]) in (1, 2, 3)  # never that nothing is wrong
    elif verb == "run":
        files = store.files_of(place / "runs" / "paper2020idea" / "figure1" / "records")
        before = store.read(files)
        assert before.damaged <= (0 if seconds is None else len(files))  # each writer's last line, at a kill
        assert run(["run", str(recipe), "--into", str(place / "runs")]) == 0
        after = store.read(store.files_of(place / "runs" / "paper2020idea" / "figure1" / "records"))
        assert len(after.done) == 6 and all(after.done[case] == before.done[case] for case in before.done)
    elif verb == "report" and (place / "report.html").exists():
        assert (place / "report.html").read_text().rstrip().endswith("</html>")
    assert (
        not list(place.rglob(".edgewise-*")) or seconds is not None
    )  # an unfinished file goes with its failure


def breaks(kills: int, disks: int) -> list[tuple[str, float | None, int | None]]:
    draw, verbs = random.Random(39), ("watch", "run", "report")
    return [
        *((verbs[i % 3], draw.uniform(0.02, (0.6, 0.4, 0.4)[i % 3]), None) for i in range(kills)),
        *(
            (verbs[i % 3], None, draw.randrange(*((0, 60_000), (0, 1500), (0, 30_000))[i % 3]))
            for i in range(disks)
        ),
    ]


def test_six_kills_and_three_full_disks(tmp_path: Path) -> None:
    for number, each in enumerate(breaks(6, 3)):
        check(each[0], tmp_path / str(number), *each[1:])


@pytest.mark.slow
def test_a_hundred_kills_and_forty_full_disks(tmp_path: Path) -> None:
    for number, each in enumerate(breaks(100, 40)):
        check(each[0], tmp_path / str(number), *each[1:])
