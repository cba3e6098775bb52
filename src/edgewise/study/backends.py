"""Where cases are measured: in this process, on this machine's cores (joblib, loky), or on a Dask cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from edgewise.errors import BadInput
from edgewise.study.worker import Done, Job, one_thread, work

_AHEAD = 256  # cases sent ahead at least, so that a cluster that grows finds work waiting
_SECONDS_TO_CONNECT = 20


class WorkerDied(Exception):
    """A worker was killed (by the system, by a person, by running out of memory); its case is not done."""


def answers(job: Job, cases: Iterable[str], workers: int, scheduler: str | None) -> Generator[Done, None, None]:
    """Measure cases and answer in the order in which they finish; the records are stored by the workers."""
    if scheduler is not None:
        with _cluster(scheduler) as cores:
            yield from _parallel(job, cases, cores, max(_AHEAD, 2 * cores))
    elif workers > 1:
        with _cores():
            yield from _parallel(replace(job, parent=os.getpid()), cases, workers, 2 * workers)
    else:
        with one_thread():
            yield from (work(job, case) for case in cases)


def _parallel(job: Job, cases: Iterable[str], workers: int, ahead: int) -> Iterator[Done]:
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import BrokenProcessPool

    parallel: Any = Parallel(n_jobs=workers, return_as="generator_unordered", pre_dispatch=ahead)
    stream = parallel(delayed(work)(job, case) for case in cases)
    try:
        yield from stream
    except BrokenProcessPool as death:
        raise WorkerDied(str(death)) from death
    except Exception as death:
        if type(death).__name__ == "KilledWorker":  # of distributed, which is not imported unless it is used
            raise WorkerDied(str(death)) from death
        raise
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # joblib's advice about cancelled cases: we mean to
            stream.close()


def _cores() -> AbstractContextManager[Any]:
    from joblib import parallel_config

    config: AbstractContextManager[Any] = parallel_config(backend="loky", inner_max_num_threads=1)
    return config


@contextmanager
def _cluster(address: str) -> Iterator[int]:
    """Connect to a Dask scheduler and give the number of its threads, at least one worker having arrived."""
    if find_spec("distributed") is None:
        raise BadInput("--scheduler needs Dask, which is not installed: pip install 'edgewise[distributed]'.")
    from distributed import Client
    from joblib import parallel_config

    try:
        client = Client(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"No Dask scheduler answers at {address}: {error}. Start one with `dask scheduler`.") from error
    with client:
        client.wait_for_workers(1)
        with parallel_config(backend="dask", client=client):
            yield max(1, sum(client.nthreads().values()))
