"""Where cases are measured: in this process, on this machine's cores (joblib, loky), or on a Dask cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
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
        yield from _on_cluster(job, cases, scheduler)
    elif workers > 1:
        yield from _on_cores(replace(job, parent=os.getpid()), cases, workers)
    else:
        with one_thread():
            yield from (work(job, case) for case in cases)


def _on_cores(job: Job, cases: Iterable[str], workers: int) -> Iterator[Done]:
    """joblib with loky: processes of one thread; short cases travel in batches, each is stored when it is done."""
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import BrokenProcessPool

    with parallel_config(backend="loky", inner_max_num_threads=1):
        parallel: Any = Parallel(n_jobs=workers, return_as="generator_unordered", pre_dispatch=2 * workers)
        stream = parallel(delayed(work)(job, case) for case in cases)
        try:
            for done in stream:  # noqa: UP028  `yield from` would close the stream itself, before the filter below
                yield done
        except BrokenProcessPool as death:
            raise WorkerDied(str(death)) from death
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # joblib's advice about cancelled cases: we mean to
                stream.close()


def _on_cluster(job: Job, cases: Iterable[str], address: str) -> Iterator[Done]:
    """Dask itself, some cases sent ahead (joblib's own Dask backend works here when a cluster has one worker)."""
    with _client(address) as client:
        from distributed import KilledWorker, as_completed

        waiting, measure = iter(cases), partial(work, job)
        ahead = max(_AHEAD, 2 * sum(client.nthreads().values()))
        first = client.map(measure, list(islice(waiting, ahead)), pure=False)
        stream = as_completed(first, with_results=True, loop=client.loop)
        try:
            for batch in stream.batches():
                stream.update(client.map(measure, list(islice(waiting, len(batch))), pure=False))
                yield from (done for _, done in batch)
        except KilledWorker as death:
            raise WorkerDied(str(death)) from death


def _client(address: str) -> Any:
    """A connection to a Dask scheduler at which at least one worker has arrived."""
    if find_spec("distributed") is None:
        raise BadInput("--scheduler needs Dask, which is not installed: pip install 'edgewise[distributed]'.")
    from distributed import Client

    try:
        client = Client(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"No Dask scheduler answers at {address}: {error}. Start one with `dask scheduler`.") from error
    client.wait_for_workers(1)
    return client
