"""The run folder: what is acknowledged survives kill -9, and everything that cannot be written is named."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import edgewise
from edgewise.errors import BadInput
from edgewise.monitor.columns import fast_columns, names, schema_id, slow_columns, statistics
from edgewise.monitor.read_run import Run, export
from edgewise.monitor.run_folder import HEADER, HEADS, LARGEST_ROWS, RowsFile, RunFolder, read_rows, row_type
from tests.monitor.writing import DEPTH, N_HEADS, values_of, write

COLUMNS, HEAD_COLUMNS = fast_columns(DEPTH), slow_columns([N_HEADS] * DEPTH)
ABOUT = {"depth": DEPTH, "model": "none"}


def folder_at(path: Path, **options: object) -> RunFolder:
    return RunFolder(path, COLUMNS, HEAD_COLUMNS, **{"about": ABOUT} | options)  # type: ignore[arg-type]


def filled(path: Path, steps: range) -> Path:
    folder = folder_at(path)
    for step in steps:
        folder.append(step, values_of(step, len(COLUMNS)))
        folder.append(step, values_of(step, len(HEAD_COLUMNS)), HEADS)
    folder.close()
    return path


def test_every_statistic_has_unit_formula_and_meaning() -> None:
    for row in statistics():
        assert row.unit and row.formula and row.meaning
        assert row.low is None or row.high is None or row.low < row.high
    assert len(set(names("run"))) == len(names("run"))
    assert len({column.name for column in (*COLUMNS, *HEAD_COLUMNS)}) == len(COLUMNS) + len(HEAD_COLUMNS)


def test_100_000_rows_of_48_layers_and_32_heads_fit_in_a_gigabyte_and_a_half() -> None:
    fast = row_type(len(fast_columns(48))).itemsize * 100_000
    slow = row_type(len(slow_columns([32] * 48))).itemsize * 10_000
    assert fast + slow <= 1.5e9


def test_rows_come_back_as_they_went(tmp_path: Path) -> None:
    filled(tmp_path / "run", range(0, 60, 3))
    frame = edgewise.read(tmp_path / "run")
    assert list(frame.index) == list(range(0, 60, 3))
    assert list(frame.columns[1:]) == [column.name for column in COLUMNS]
    assert np.array_equal(frame.to_numpy()[4, 1:].astype(np.float32), values_of(12, len(COLUMNS)))
    arrays = edgewise.read(tmp_path / "run", heads=True, frame=False, columns=["block.1.head.1.entropy"])
    assert set(arrays) == {"step", "time", "block.1.head.1.entropy"}
    place = [column.name for column in HEAD_COLUMNS].index("block.1.head.1.entropy")
    assert arrays["block.1.head.1.entropy"][5] == values_of(15, len(HEAD_COLUMNS))[place]


def test_without_pandas_there_are_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "run", range(3))
    monkeypatch.setattr("edgewise.monitor.read_run.find_spec", lambda name: None)
    arrays = edgewise.read(tmp_path / "run")
    assert isinstance(arrays, dict)
    assert list(arrays["step"]) == [0, 1, 2]
    with pytest.raises(BadInput, match="pandas is not installed"):
        edgewise.read(tmp_path / "run", frame=True)


def test_a_growing_folder_can_be_read(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "run")
    for step in range(5):
        folder.append(step, values_of(step, len(COLUMNS)))
        folder.flush()
        assert list(Run(tmp_path / "run").rows().step) == list(range(step + 1))
    folder.close()


def test_a_torn_row_is_not_there_and_a_damaged_one_is_counted(tmp_path: Path) -> None:
    path, schema = tmp_path / "x.rows", schema_id(COLUMNS)
    file = RowsFile(path, schema, len(COLUMNS))
    for step in range(4):
        file.append(step, 0.0, values_of(step, len(COLUMNS)))
    file.close()
    size = row_type(len(COLUMNS)).itemsize
    data = bytearray(path.read_bytes())
    data[HEADER + size + 20] ^= 1  # one bit of row 1
    path.write_bytes(data[:-7])  # and row 3 is cut short
    rows = read_rows(path, schema, len(COLUMNS))
    assert (list(rows.step), rows.damaged) == ([0, 2], 1)
    with pytest.raises(BadInput, match="does not hold rows of the schema"):
        read_rows(path, "0" * 16, len(COLUMNS))


@pytest.mark.parametrize("step", ["x", -1, 1.5, True, 2**70])
def test_a_first_step_that_rows_cannot_hold_is_rejected(step: object) -> None:
    with pytest.raises(BadInput, match="first_step must be a whole number from 0 to 2\\*\\*62"):
        edgewise.watch(nn.Linear(3, 3), first_step=step)


def test_a_restart_replaces_the_rows_from_its_first_step_on(tmp_path: Path) -> None:
    filled(tmp_path / "run", range(0, 10))
    filled(tmp_path / "run", range(6, 8))
    assert list(Run(tmp_path / "run").rows().step) == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_folder_that_holds_an_earlier_run_is_named(tmp_path: Path) -> None:
    """A loop that is taken up again without saying where would hide the rows of the first part."""
    said: list[str] = []
    for about in ({"first_step": 0}, {"first_step": 0}, {"first_step": 7}):
        folder_at(tmp_path / "run", about=ABOUT | about, complain=said.append).close()
    assert len(said) == 1
    assert "holds an earlier run, whose rows these replace. To continue with it, give first_step=" in said[0]


def test_two_runs_in_one_folder_are_refused_by_name(tmp_path: Path) -> None:
    first = folder_at(tmp_path / "run")
    with pytest.raises(BadInput, match=r"still going on \(of this process\). Close its handle first"):
        folder_at(tmp_path / "run")
    other_rank = folder_at(tmp_path / "run", rank=1)
    other_rank.close()
    first.close()
    folder_at(tmp_path / "run").close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (Path("/proc/edgewise-run"), tmp_path / "file" / "run"):
        with pytest.raises(BadInput, match="cannot be written"):
            folder_at(path)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    if os.geteuid() != 0:  # a superuser may write anywhere
        with pytest.raises(BadInput, match="Permission denied"):
            folder_at(locked)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not the folder of a watched run"):
        edgewise.read(tmp_path)
    filled(tmp_path / "run", range(2))
    with pytest.raises(BadInput, match="no column 'entrpy'"):
        edgewise.read(tmp_path / "run", columns=["entrpy"])
    with pytest.raises(BadInput, match="no rows of rank 3"):
        edgewise.read(tmp_path / "run", rank=3)
    about = tmp_path / "run" / "run.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"format": 2}))
    with pytest.raises(
        BadInput, match=r"of format 2, which a newer edgewise wrote; this one reads format 1\. Update"
    ):
        edgewise.read(tmp_path / "run")


LIMITED = """
import resource, sys
from tests.monitor.test_storage import folder_at, values_of, COLUMNS
from pathlib import Path
said = []
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
folder = folder_at(Path(sys.argv[1]), complain=said.append)
for step in range(200):
    folder.append(step, values_of(step, len(COLUMNS)))
    folder.flush()
print(len(said), int(folder.written), int(folder.dropped), said[0])
folder.close()
"""


def test_a_full_disk_loses_rows_and_says_so_once(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the system writes part of a row, then refuses."""
    script = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    complaints, written, dropped, *words = script.stdout.split()
    assert (int(complaints), int(written) + int(dropped)) == (1, 200)
    assert int(written) == (60_000 - HEADER) // row_type(len(COLUMNS)).itemsize
    assert "could be written" in " ".join(words)
    rows = Run(tmp_path / "run").rows()
    assert list(rows.step) == list(range(int(written)))
    assert rows.damaged == 0


def events_file(path: Path) -> Path:
    return next(path.glob("events-rank0-*.jsonl"))


def with_events(path: Path) -> list[dict[str, object]]:
    """A run of 3 rows and 3 events; what its events say."""
    folder = folder_at(path)
    for step in range(3):
        folder.append(step, values_of(step, len(COLUMNS)))
        folder.event("blind", f"sentence {step}", step)
    folder.close()
    return Run(path).events()


def test_a_line_of_events_that_is_damaged_is_skipped_and_counted(tmp_path: Path) -> None:
    """One wrong byte made the whole run unreadable: every bit of a line, a blank line, bytes that are no text."""
    expected = with_events(tmp_path / "run")
    file = events_file(tmp_path / "run")
    first, second, third = file.read_bytes().splitlines(keepends=True)
    damaged = [
        bytes([*second[:i], second[i] ^ 1 << bit, *second[i + 1 :]])
        for i in range(0, len(second) - 1, 7)
        for bit in range(8)
    ]
    for middle in [*damaged, b"\n", b"\xff\xfe\n", b"\0" * 40 + b"\n", b"[]\n", b'{"kind": 3}\n']:
        file.write_bytes(first + middle + third)
        run = Run(tmp_path / "run")
        lost = max(middle.count(b"\n"), 1)
        assert run.events() == [expected[0], expected[2]] and run.damaged_events() == lost, middle
        assert len(run.rows()) == 3
        assert any(f"{lost} damaged line" in sentence for sentence in run.unseen())
    with pytest.warns(UserWarning, match="damaged lines? of events"):
        assert len(edgewise.read(tmp_path / "run", frame=False)["step"]) == 3


def test_a_file_of_rows_that_no_run_writes_is_rejected_by_its_size(tmp_path: Path) -> None:
    """A sparse file of 5 GB was read into memory."""
    (path,) = filled(tmp_path / "run", range(2)).glob("rank0-*.rows")
    os.truncate(path, LARGEST_ROWS + 1)
    with pytest.raises(BadInput, match="it has 2,147,483,649 bytes, and at most 2,147,483,648"):
        Run(tmp_path / "run").rows()


def test_a_depth_that_is_not_that_of_the_rows_gives_no_trace(tmp_path: Path) -> None:
    filled(tmp_path / "run", range(2))
    run = tmp_path / "run" / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"depth": DEPTH - 1}))
    with pytest.raises(
        BadInput, match=rf"says {DEPTH - 1} blocks, and the rows have numbers of block\.{DEPTH - 1}"
    ):
        Run(tmp_path / "run").trace()


def test_damaged_rows_are_said_when_they_are_read(tmp_path: Path) -> None:
    (path,) = filled(tmp_path / "run", range(4)).glob("rank0-*.rows")
    data = bytearray(path.read_bytes())
    data[HEADER + 20] ^= 1
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="1 damaged row was skipped"):
        assert list(edgewise.read(tmp_path / "run", frame=False)["step"]) == [1, 2, 3]
    assert "1 damaged row was skipped." in Run(tmp_path / "run").unseen()


@pytest.mark.parametrize("place", [3, 18, 33])
def test_a_bit_of_the_header_costs_no_row(tmp_path: Path, place: int) -> None:
    (path,) = filled(tmp_path / "run", range(4)).glob("rank0-*.rows")
    data = bytearray(path.read_bytes())
    data[place] ^= 2
    path.write_bytes(data)
    rows = Run(tmp_path / "run").rows()
    assert (list(rows.step), rows.damaged) == ([0, 1, 2, 3], 1)


def test_a_full_disk_tears_no_event_and_keeps_those_it_did_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a line is written, then nothing; the next line went behind it, and the run could not be read."""
    real, full = os.write, [True]

    def write(file: int, data: bytes) -> int:
        if not full[0] or not data.startswith(b"{"):
            return real(file, data)
        return real(file, data[:10]) if len(data) > 10 else real(file, data)

    said: list[str] = []
    folder = folder_at(tmp_path / "run", complain=said.append)
    monkeypatch.setattr(os, "write", write)
    for step in range(3):
        folder.event("blind", f"sentence {step}", step)
    folder.flush()
    assert events_file(tmp_path / "run").read_bytes() == b""
    full[0] = False
    folder.event("blind", "sentence 3", 3)
    folder.close()
    run = Run(tmp_path / "run")
    assert [event["sentence"] for event in run.events()] == [f"sentence {step}" for step in range(4)]
    assert run.damaged_events() == 0 and len(said) == 1 and "cannot be written" in said[0]


def test_a_disk_that_stays_full_leaves_a_run_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = folder_at(tmp_path / "run", complain=lambda _: None)
    folder.append(0, values_of(0, len(COLUMNS)))
    folder.event("start", "begun", 0)
    folder.flush()
    monkeypatch.setattr(os, "write", write)
    folder.append(1, values_of(1, len(COLUMNS)))
    folder.event("alarm", "lost", 1)
    folder.close()
    assert folder.dropped == 2
    run = Run(tmp_path / "run")
    assert list(run.rows().step) == [0] and [event["kind"] for event in run.events()] == ["start"]


def test_another_shape_is_rejected_before_anything_is_changed(tmp_path: Path) -> None:
    """Rows of two depths stood in one folder, and none could be read."""
    path = filled(tmp_path / "run", range(4))
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "rank0.lock"}
    for columns, about, words in (
        (
            fast_columns(DEPTH + 2),
            {"depth": DEPTH + 2},
            f"with {DEPTH} blocks, and this model has {DEPTH + 2}",
        ),
        (COLUMNS, {"depth": DEPTH}, "other columns"),
    ):
        with pytest.raises(BadInput, match=words) as refusal:
            RunFolder(path, columns, slow_columns([N_HEADS + 1] * DEPTH), about={"model": "none"} | about)
        assert str(path) in str(refusal.value) and "to=" in str(refusal.value)
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.name != "rank0.lock"} == before
    folder_at(path).close()  # it is not left locked
    about = path / "run.json"
    about.write_text("{")
    with pytest.raises(BadInput, match=r"run\.json cannot be read, so nothing was written"):
        folder_at(path)


HELD = """
import os, sys, time
from tests.monitor.test_storage import folder_at
from pathlib import Path
folder = folder_at(Path(sys.argv[1]))
ready, done = os.pipe()
child = os.fork()
if not child:
    os.write(done, b"x")  # it has closed what it inherited, which happens inside fork()
    time.sleep(60)
    os._exit(0)
os.read(ready, 1)
if sys.argv[2] == "close":
    folder.close()
print(child, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_lock_is_free_after_the_end_though_a_worker_was_forked(tmp_path: Path, how: str) -> None:
    """Workers of a DataLoader have all files of their parent open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path / "run"), how], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        if how == "kill":
            with pytest.raises(BadInput, match=rf"still going on \(process {process.pid} on "):
                folder_at(tmp_path / "run")
            process.kill()
            process.wait()
        folder_at(tmp_path / "run").close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_said_and_written_to(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was called a folder in which another run is still going on."""
    import fcntl

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    said: list[str] = []
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = folder_at(tmp_path / "run", complain=said.append, about=ABOUT | {"first_step": 1})
        folder.append(0, values_of(0, len(COLUMNS)))
        folder.close()
    assert len(said) == 2 and all("has no locks" in sentence for sentence in said)
    assert len(Run(tmp_path / "run").rows()) == 1


def killed(writers: ForkServerContext, path: Path, seconds: float) -> int:
    """Rows that a writer had acknowledged when it was killed."""
    acknowledged, sender = writers.Pipe(duplex=False)
    process = writers.Process(target=write, args=(str(path), sender))
    process.start()
    sender.close()
    said: int = acknowledged.recv()  # it has begun
    time.sleep(seconds)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with acknowledged, suppress(EOFError):
        while True:
            said = acknowledged.recv()
    return said


def check_kills(tmp_path: Path, count: int) -> None:
    """The writers are forked from a process that has imported what they need."""
    draw, writers = random.Random(0), multiprocessing.get_context("forkserver")
    writers.set_forkserver_preload(["tests.monitor.writing"])
    for number in range(count):
        path = tmp_path / str(number)
        acknowledged = killed(writers, path, draw.uniform(0.0, 0.15))
        fast, slow = Run(path).rows(), Run(path).rows(HEADS)
        assert len(fast) + len(slow) >= acknowledged > 0
        assert fast.damaged == slow.damaged == 0
        assert list(fast.step) == list(range(len(fast)))
        for rows in (fast, slow):
            expected = [values_of(step, rows.values.shape[1]) for step in rows.step]
            assert np.array_equal(rows.values, np.array(expected).reshape(rows.values.shape))


def test_8_kills_lose_no_acknowledged_row(tmp_path: Path) -> None:
    check_kills(tmp_path, 8)


@pytest.mark.slow
def test_200_kills_lose_no_acknowledged_row(tmp_path: Path) -> None:
    check_kills(tmp_path, 200)


def test_events_are_strict_json(tmp_path: Path) -> None:
    folder = folder_at(tmp_path / "run")
    folder.event("blind", "the loss is not a number", 3, value=float("nan"), values=[np.float32(2.0)])
    folder.close()
    line = next((tmp_path / "run").glob("events*")).read_text()
    assert json.loads(line, parse_constant=pytest.fail)["value"] is None
    assert Run(tmp_path / "run").events()[0]["values"] == [2.0]


def test_csv_is_read_back_exactly(tmp_path: Path) -> None:
    filled(tmp_path / "run", range(0, 8, 2))
    assert export(tmp_path / "run", tmp_path / "x.csv") == 4
    table = np.genfromtxt(tmp_path / "x.csv", delimiter=",", names=True, deletechars="")
    assert list(table["step"]) == [0, 2, 4, 6]
    expected = edgewise.read(tmp_path / "run", frame=False)["block.2.entropy"]
    assert np.array_equal(table["block.2.entropy"].astype(np.float32), expected)
    with pytest.raises(BadInput, match="does not say which format"):
        export(tmp_path / "run", tmp_path / "x.txt")


def test_parquet_is_read_back_exactly(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: Parquet is not tested")
    filled(tmp_path / "run", range(0, 8, 2))
    export(tmp_path / "run", tmp_path / "x.parquet", heads=True)
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table["step"].to_pylist() == [0, 2, 4, 6]
    assert len(table.column_names) == 3 + len(HEAD_COLUMNS)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
def test_a_run_without_any_rows_is_refused_in_both_formats(name: str, tmp_path: Path) -> None:
    """The one wrote a table of nothing, the other raised an error of its own."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: Parquet is not tested")
    folder = filled(tmp_path / "run", range(4))
    for file in folder.glob("*.rows"):
        file.unlink()
    with pytest.raises(BadInput, match="has no rows of rank 0; it has none at all"):
        export(folder, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_the_suffix_may_be_in_capitals(tmp_path: Path) -> None:
    assert export(filled(tmp_path / "run", range(4)), tmp_path / "X.CSV") == 4


def test_parquet_without_pyarrow_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "run", range(2))
    monkeypatch.setattr("edgewise.monitor.read_run.find_spec", lambda name: None)
    with pytest.raises(BadInput, match="needs pyarrow"):
        export(tmp_path / "run", tmp_path / "x.parquet")


def test_the_limit_of_this_process_is_as_before() -> None:
    """The full disk is simulated in a process of its own."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] in (resource.RLIM_INFINITY, -1)
