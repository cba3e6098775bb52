"""What databases are tested against: a clock that goes backwards, and two machines that write into one folder."""

from __future__ import annotations

import itertools
import socket
import time
from pathlib import Path

import pytest

from edgewise.study import load_recipe
from edgewise.study.engine import Work, run
from edgewise.study.store import Writer, files_of, read
from tests.study.test_store import record
from tests.support.recipes import write_recipe


@pytest.mark.parametrize("step", [-3600.0, 0.0])
def test_a_clock_that_goes_backwards_or_stands_still_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """An hour back at every look, as after a wrong setting, or the same moment for ever."""
    path, now = write_recipe(tmp_path), itertools.count(1e9, step)
    monkeypatch.setattr(time, "time", lambda: next(now))
    monkeypatch.setattr(time, "time_ns", lambda: int(next(now) * 1e9))
    work = Work.of(load_recipe(path), "full", tmp_path / "runs")
    first = run(work)
    assert (first.computed, first.missing, first.failures) == (40, 0, {})
    assert [result.value["y"] for result in first.cases] == [2 * x * x for x in range(40)]
    again = run(work)
    assert (again.computed, again.damaged, again.differing) == (0, 0, 0)


def test_machines_with_the_same_process_number_write_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts, one folder, one process number: no line of one ends in the file of the other."""
    writers = []
    for host in ("node1", "node2"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        writers.append(Writer(tmp_path))
    for number in range(20):
        writers[number % 2].append(record(number))
    files = files_of(tmp_path)
    assert sorted(file.name.partition("-")[0] for file in files) == ["node1", "node2"]
    assert [len(read([file]).done) for file in files] == [10, 10]
    contents = read(files)
    assert (len(contents.done), contents.damaged) == (20, 0)


def test_a_line_torn_by_one_machine_does_not_hide_those_of_another(tmp_path: Path) -> None:
    """Half a line without its end, as after a power cut; every other record is read."""
    for number in range(5):
        Writer(tmp_path).append(record(number))
    torn = files_of(tmp_path)[0]
    torn.write_bytes(torn.read_bytes()[:-20])
    contents = read(files_of(tmp_path))
    assert (len(contents.done), contents.damaged) == (4, 1)
