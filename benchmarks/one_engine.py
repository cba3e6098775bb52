"""One run of trivial cases on one engine, in a process of its own: `python -m benchmarks.one_engine loky 2 1000 0`.

Prints wall and CPU seconds of the run; pool or cluster are started and warmed before the clock.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from edgewise.study import load_recipe
from edgewise.study.engine import RunJob, Work, run, source_of, work

RECIPE = """
import time
from edgewise.study import Claim
def cases(scale): return [{"x": x, "run": scale} for x in range(int(scale.split()[0]))]
def measure(case):
    time.sleep(float(case["run"].split()[1]))
    return {"y": case["x"]}
def claim(results): return Claim("a", "b", "c", True)
def draw(results): ...
"""
Engine = Callable[[Work], Any]


@contextmanager
def engine(name: str, workers: int) -> Iterator[Engine]:
    if name == "serial":
        yield run
    elif name == "loky" and workers == 1:
        from joblib.externals.loky import ProcessPoolExecutor

        with ProcessPoolExecutor(max_workers=1) as executor:
            yield partial(_loky_alone, executor=executor)
    elif name == "loky":
        yield partial(run, workers=workers)
    else:
        from distributed import LocalCluster

        settings: dict[str, Any] = dict(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
        with LocalCluster(**settings, silence_logs=50) as cluster:
            yield partial(run, scheduler=cluster.scheduler_address)


def _loky_alone(todo: Work, executor: Any) -> None:
    """One process: joblib would work in its own, so loky's executor is asked itself."""
    todo.records.mkdir(parents=True)
    job = RunJob(str(todo.recipe.path), str(todo.records), source_of(todo.recipe.path))
    list(executor.map(partial(work, job), todo.cases))
    todo.contents()


def timed(recipe: Path, run_work: Engine, count: int, seconds: float) -> tuple[float, float]:
    """Wall and CPU seconds of all processes, from the list of cases to the results read back."""
    with tempfile.TemporaryDirectory() as into:
        wall, cpu = time.perf_counter(), _cpu()
        run_work(Work.of(load_recipe(recipe), f"{count} {seconds}", into))
        return time.perf_counter() - wall, _cpu() - cpu


def _cpu() -> float:
    me = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in (me, *me.children(recursive=True)))


def main(name: str, workers: str, count: str, seconds: str) -> None:
    with tempfile.TemporaryDirectory() as folder, engine(name, int(workers)) as run_work:
        recipe = Path(folder) / "paper" / "trivial.py"
        recipe.parent.mkdir()
        recipe.write_text(RECIPE)
        timed(recipe, run_work, 4 * int(workers), float(seconds))
        print(*timed(recipe, run_work, int(count), float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
