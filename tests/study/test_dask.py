"""The same cases through a Dask scheduler: the same records, also when a worker of the cluster is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.errors import BadInput
from edgewise.study import engine as backends
from edgewise.study import load_recipe
from edgewise.study.engine import Work, run
from edgewise.study.store import files_of
from tests.support.recipes import write_recipe

SLOW = 'def measure(case):\n    import time\n    time.sleep(0.02)\n    return {"y": square(case["x"])}\n'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from distributed import LocalCluster

    settings: dict[str, Any] = dict(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0")
    with LocalCluster(**settings) as cluster:
        yield cluster


def work_of(path: Path, scale: str) -> Work:
    return Work.of(load_recipe(path), scale, path.parents[1] / "runs")


def test_a_cluster_measures_what_is_missing(tmp_path: Path, cluster: Any) -> None:
    path = write_recipe(tmp_path)
    run(work_of(path, "small"))
    results = run(work_of(path, "full"), scheduler=cluster.scheduler_address)
    assert (results.computed, results.missing, results.damaged) == (34, 0, 0)
    assert [result.value["y"] for result in results.cases] == [2 * x * x for x in range(40)]
    assert run(work_of(path, "full")).computed == 0


def test_a_killed_worker_of_a_cluster_costs_nothing_but_time(tmp_path: Path, cluster: Any) -> None:
    work = work_of(write_recipe(tmp_path, measure=SLOW), "full")
    victims: list[int] = []

    def kill_one(done: int, total: int) -> None:  # noqa: ARG001
        if not victims and done > 4:
            victims.append(cluster.workers[0].pid)
            threading.Thread(target=os.kill, args=(victims[0], signal.SIGKILL)).start()

    results = run(work, scheduler=cluster.scheduler_address, tell=kill_one)
    assert len(victims) == 1
    assert (results.missing, results.lost, results.differing) == (0, 0, 0)
    assert [result.value["y"] for result in results.cases] == [2 * x * x for x in range(40)]
    writers = [path.stem.split("-")[-2] for path in files_of(work.records)]
    assert len(writers) >= 2
    assert str(victims[0]) in writers, "what the killed process had stored is there"


def test_a_failure_and_a_refusal_come_back(tmp_path: Path, cluster: Any) -> None:
    failing = 'def measure(case):\n    return {"y": 6 / (case["x"] - 3)}\n'
    results = run(
        work_of(write_recipe(tmp_path, measure=failing), "small"), scheduler=cluster.scheduler_address
    )
    assert list(results.failures) == ['{"x":3}']
    refused = work_of(
        write_recipe(tmp_path / "other", measure='def measure(case):\n    return {"y": {1}}\n'), "small"
    )
    with pytest.raises(BadInput, match=r"measure\(case\)\['y'\] is a builtins.set"):
        run(refused, scheduler=cluster.scheduler_address)


def test_an_address_at_which_nobody_answers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_SECONDS_TO_CONNECT", 1)
    with pytest.raises(BadInput, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        run(work_of(write_recipe(tmp_path), "small"), scheduler="tcp://127.0.0.1:9")


def test_dask_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'edgewise\[distributed\]'"):
        run(work_of(write_recipe(tmp_path), "small"), scheduler="tcp://127.0.0.1:9")
