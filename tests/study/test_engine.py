"""The engine: what is missing and nothing else, the same results anywhere, failures that stop nobody."""

from __future__ import annotations

import subprocess
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.study import engine, load_recipe, store
from edgewise.study.engine import Results, Work, run
from tests.support.recipes import PARTS, write_recipe

RANDOM = {
    "head": '"""Chance."""\nimport os\nimport random\nimport numpy\nimport torch\nfrom edgewise.study import Claim\n',
    "measure": (
        "def measure(case):\n"
        "    numbers = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]\n"
        '    return {"y": numbers, "threads": torch.get_num_threads(), "process": os.getpid()}\n'
    ),
}
FAILING = PARTS["measure"].replace(
    "return", "if case['x'] == 3:\n        raise ValueError('three')\n    return"
)


def work_of(path: Path, scale: str = "small") -> Work:
    return Work.of(load_recipe(path), scale, path.parents[1] / "runs")


def lines(work: Work) -> int:
    """Records, without the stamps before them."""
    entries = [store.read_line(line) for path in store.files_of(work.records) for line in path.open("rb")]
    return sum(isinstance(entry, store.Record) for entry in entries)


def values(results: Results) -> list[object]:
    return [result.value["y"] for result in results.cases]


def test_running_twice_does_nothing_the_second_time(tmp_path: Path) -> None:
    work = work_of(write_recipe(tmp_path))
    first, second = run(work), run(work)
    assert (first.computed, second.computed) == (6, 0)
    assert values(first) == values(second) == [2 * x * x for x in range(6)]
    assert lines(work) == 6


def test_scales_share_their_cases_and_a_limit_is_kept(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    run(work_of(path))
    full = work_of(path, "full")
    results = run(full, limit=10)
    assert (results.computed, results.missing) == (10, 24)
    results = run(full)
    assert (results.computed, results.missing) == (24, 0)
    assert [result.case["x"] for result in results.cases] == list(range(40))
    assert lines(full) == 40


def test_a_fresh_start_measures_all_again_and_keeps_what_was_there(tmp_path: Path) -> None:
    run(work_of(write_recipe(tmp_path)))
    work = work_of(write_recipe(tmp_path, helper="def square(x):\n    return 3 * x * x\n"))
    again = run(work)
    assert (again.computed, again.earlier) == (0, (store.stamp(),))
    work.start_fresh()
    fresh = run(work)
    assert (fresh.computed, fresh.earlier) == (6, ())
    assert values(fresh) == [3 * x * x for x in range(6)]
    (aside,) = work.folder.glob("records-until-*")
    assert len(store.read(store.files_of(aside)).done) == 6


def test_processes_give_the_results_of_a_serial_run(tmp_path: Path) -> None:
    """Even where `measure` uses the global random numbers, and in any order; one torch thread everywhere."""
    import torch

    before = torch.get_num_threads()
    told: list[tuple[int, int]] = []
    serial = run(work_of(write_recipe(tmp_path / "serial", **RANDOM)))
    parallel = run(
        work_of(write_recipe(tmp_path / "parallel", **RANDOM)), workers=2, tell=lambda *n: told.append(n)
    )
    assert values(serial) == values(parallel)
    assert len({str(value) for value in values(serial)}) == 6
    assert {result.value["threads"] for result in (*serial.cases, *parallel.cases)} == {1}
    assert len({result.value["process"] for result in serial.cases}) == 1
    assert not {r.value["process"] for r in serial.cases} & {r.value["process"] for r in parallel.cases}
    assert told == [(count, 6) for count in range(1, 7)]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_case_is_recorded_retried_and_stops_nobody(tmp_path: Path, workers: int) -> None:
    work = work_of(write_recipe(tmp_path, measure=FAILING))
    results = run(work, workers)
    assert [result.case["x"] for result in results.cases] == [0, 1, 2, 4, 5]
    assert list(results.failures) == ['{"x":3}']
    assert "ValueError: three" in results.failures['{"x":3}']
    assert (run(work).computed, lines(work)) == (1, 7)


def test_a_repaired_case_is_no_longer_a_failure(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    breaks = (
        f"if __import__('os').path.exists({str(tmp_path / 'broken')!r}):\n        raise OSError\n    return"
    )
    work = work_of(write_recipe(tmp_path, measure=PARTS["measure"].replace("return", breaks)))
    assert len(run(work).failures) == 6
    (tmp_path / "broken").unlink()
    assert (run(work).failures, run(work).missing) == ({}, 0)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_values_that_a_file_cannot_hold_are_refused_by_name(tmp_path: Path, workers: int) -> None:
    path = write_recipe(tmp_path, measure='def measure(case):\n    return {"y": [1, {2}]}\n')
    with pytest.raises(BadInput, match=r"figure1.py: measure\(case\)\['y'\]\[1\] is a builtins.set"):
        run(work_of(path), workers)


def test_a_value_that_is_not_a_dict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"measure returned a float\. A dict is expected"):
        run(work_of(write_recipe(tmp_path, measure="def measure(case):\n    return 1.0\n")))


def test_a_case_that_measure_changes_is_stored_as_it_was(tmp_path: Path) -> None:
    path = write_recipe(
        tmp_path, measure='def measure(case):\n    case["x"] += 1\n    return {"y": case["x"]}\n'
    )
    results = run(work_of(path)).cases
    assert [(result.case["x"], result.value["y"]) for result in results] == [(x, x + 1) for x in range(6)]


def test_seconds_are_of_the_processor_also_of_children(tmp_path: Path) -> None:
    """Waiting is free; what a case has computed elsewhere is not."""
    body = "import subprocess, sys, time\n    time.sleep(0.4 * (case['x'] == 0))\n    if case['x'] == 1:\n"
    body += "        busy = 'import time\\nwhile time.process_time() < 0.5: pass'\n"
    body += "        subprocess.run([sys.executable, '-c', busy], check=True)\n"
    path = write_recipe(tmp_path, measure=f"def measure(case):\n    {body}    return {{'y': 1}}\n")
    seconds = [result.seconds for result in run(work_of(path)).cases]
    assert seconds[0] < 0.2 and seconds[1] >= 0.49


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    path = write_recipe(
        tmp_path, measure='def measure(case):\n    return {"y": [math.nan, math.inf, -math.inf]}\n'
    )
    assert {repr(value) for value in values(run(work_of(path)))} == {"[nan, inf, -inf]"}


def test_damaged_records_are_told_and_measured_again(tmp_path: Path) -> None:
    work = work_of(write_recipe(tmp_path))
    run(work)
    file = store.files_of(work.records)[0]
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"y":8', b'"y":9')[:-30])
    results = run(work)
    assert (results.damaged, results.computed, results.missing) == (2, 2, 0)
    assert values(results) == [2 * x * x for x in range(6)]


def test_a_worker_of_another_version_does_not_measure(tmp_path: Path) -> None:
    work = work_of(write_recipe(tmp_path))
    work.records.mkdir(parents=True)
    job = engine.RunJob(str(work.recipe.path), str(work.records), "", version="0.0.9")
    done = engine.work(job, work.cases[0])
    assert f"A worker has edgewise {edgewise.__version__}, the run has 0.0.9" in done.rejected
    assert lines(work) == 0


def test_a_recipe_that_is_edited_during_a_run_is_named(tmp_path: Path) -> None:
    work = work_of(write_recipe(tmp_path))
    work.records.mkdir(parents=True)
    job = engine.RunJob(str(work.recipe.path), str(work.records), engine.source_of(work.recipe.path))
    assert not engine.work(job, work.cases[0]).rejected
    write_recipe(tmp_path, helper="def square(x):\n    return 3 * x * x\n")
    engine._recipe.cache_clear()  # as in a worker that starts now
    assert "was edited since the run began" in engine.work(job, work.cases[1]).rejected
    assert lines(work) == 1


def test_a_stamp_says_the_commit_and_its_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real repository around a copy of the module's place."""
    home = tmp_path / "src" / "edgewise" / "study"
    home.mkdir(parents=True)
    monkeypatch.setattr(store, "__file__", str(home / "store.py"))
    assert store.commit.__wrapped__() is None, "outside of a checkout"
    (home / "store.py").write_text("1\n")
    for name in ("papers", "experiments"):
        (tmp_path / name / "recorded").mkdir(parents=True)
        (tmp_path / name / "recorded" / "a.jsonl").write_text("1\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:7]
    assert store.commit.__wrapped__() == head
    (tmp_path / "papers" / "recorded" / "a.jsonl").write_text("2\n")
    assert store.commit.__wrapped__() == head, "results are not code"
    (home / "store.py").write_text("2\n")
    assert store.commit.__wrapped__() == f"{head}+"


def test_a_case_that_kills_its_worker_each_time_is_given_up_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TRIES", 2)  # starting workers takes a second each time
    ends = "if case['x'] == 0:\n        import os\n        os._exit(9)\n    return"
    deadly = PARTS["measure"].replace("return", ends)
    three = PARTS["cases"].replace("6", "3")  # each is tried alone, in a worker of its own
    work = work_of(write_recipe(tmp_path, measure=deadly, cases=three))
    results = run(work, workers=2)
    assert [result.case["x"] for result in results.cases] == [1, 2]
    assert (results.lost, results.missing, results.computed) == (1, 1, 2)


def test_a_fault_of_every_case_ends_the_run_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "TRIES", 1)  # for the same reason
    work = work_of(
        write_recipe(tmp_path, measure="def measure(case):\n    import os\n    os._exit(9)\n"), "full"
    )
    results = run(work, workers=2)
    assert (results.lost, results.missing, results.computed) == (40, 40, 0)
    assert lines(work) == 0


def test_no_more_processes_than_cases(tmp_path: Path) -> None:
    """Real processes of loky, counted in its executor."""
    from joblib.externals.loky import reusable_executor

    path = write_recipe(tmp_path, cases="def cases(scale):\n    return [{'x': x} for x in range(3)]\n")
    results = run(Work.of(load_recipe(path), "small", tmp_path / "runs"), workers=100_000)
    assert results.missing == 0
    assert reusable_executor._executor._max_workers <= 3


def test_a_worker_on_windows_waits_for_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the number of a parent that has ended stays, so that looking at it would never end."""
    ended = Event()
    windows = SimpleNamespace(name="nt", _exit=lambda code: ended.set())
    monkeypatch.setattr(engine, "os", windows)
    parent = SimpleNamespace(join=lambda: None)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: parent)
    engine._live_with.__wrapped__(1)
    assert ended.wait(10)
