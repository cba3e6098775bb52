"""Engine of recipes: measure what is missing, in this process, on all cores (joblib) or on a Dask cluster; resume.

A worker loads the recipe once, measures a case, and stores the outcome before it answers.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from edgewise import __version__
from edgewise.errors import BadInput
from edgewise.files import LARGEST_TEXT, open_regular
from edgewise.study import store
from edgewise.study.recipe import Recipe, Result, load_recipe
from edgewise.study.store import Record, Stamp, Writer, commit, dumps, loads, stamp

RECORDS = "records"
PER_CORE = 64  # processes; cases that wait may use more of them than there are cores


def folder_of(name: str, into: str | Path) -> Path:
    """Return the folder for the runs of a recipe."""
    return Path(into).resolve() / name


def records_of(name: str, into: str | Path) -> Path:
    """Return the folder of the records of a recipe."""
    return folder_of(name, into) / RECORDS


@dataclass(frozen=True)
class Work:
    """What is to be measured: a recipe's cases of one scale, as canonical JSON, and where their records are."""

    recipe: Recipe
    scale: str
    folder: Path
    cases: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe, scale: str = "small", into: str | Path = "runs") -> Work:
        return cls(recipe, scale, folder_of(recipe.name, into), tuple(map(dumps, recipe.cases(scale))))

    @property
    def records(self) -> Path:
        """The folder of records, shared by both scales: a case in both is measured once."""
        return self.folder / RECORDS

    def contents(self) -> store.Contents:
        """Return what the store holds of these cases."""
        return store.read(store.files_of(self.records), set(self.cases))

    def missing(self, done: Collection[str]) -> list[str]:
        """Return the cases that are not done, in order."""
        return [case for case in self.cases if case not in done]

    def start_fresh(self) -> None:
        """Set earlier records aside, in a folder beside them, so that every case is computed once more."""
        if self.records.is_dir():
            self.records.rename(self.records.with_name(f"{RECORDS}-until-{time.strftime('%Y%m%d-%H%M%S')}"))


@dataclass(frozen=True)
class Results:
    """The measured cases in the recipe's order, what is missing, and what was wrong with the store.

    failures: case to traceback. lost: cases whose worker died each time. damaged: unreadable lines.
    differing: cases that two workers measured with different values, so `measure` is not deterministic.
    stamps: what measured them. earlier: what measured those that were there before this run.
    """

    cases: list[Result]
    missing: int
    failures: dict[str, str]
    computed: int = 0
    lost: int = 0
    damaged: int = 0
    differing: int = 0
    stamps: tuple[Stamp, ...] = ()
    earlier: tuple[Stamp, ...] = ()


def results_of(work: Work, contents: store.Contents) -> Results:
    """Return what a store's contents hold of some work."""
    records = [contents.done[case] for case in work.cases if case in contents.done]
    cases = [Result(record.case, record.value or {}, record.seconds) for record in records]
    failures = {case: record.error or "" for case, record in contents.failed.items()}
    missing, stamps = len(work.cases) - len(cases), tuple(contents.stamps())
    return Results(
        cases, missing, failures, damaged=contents.damaged, differing=contents.differing, stamps=stamps
    )


Tell = Callable[[int, int], None]  # cases answered, cases to do
TRIES = 3  # deaths of the worker of one case, alone in flight, before that case is given up


def run(
    work: Work,
    workers: int = 1,
    scheduler: str | None = None,
    limit: int | None = None,
    tell: Tell | None = None,
) -> Results:
    """Measure the cases that the store lacks (at most `limit`), then read all results from the store."""
    work.records.mkdir(parents=True, exist_ok=True)
    before = work.contents()
    missing, earlier = work.missing(before.done)[:limit], tuple(before.stamps())
    if not missing:
        return replace(results_of(work, before), earlier=earlier)
    del before  # a million records need a gigabyte: not while others work
    queue = _Queue(work, missing, tell)
    queue.measure(
        workers if workers < 2 else max(2, min(workers, len(missing), PER_CORE * (os.cpu_count() or 1))),
        scheduler,
    )
    measured, lost = len(missing) - len(queue.lost), len(queue.lost)
    return replace(results_of(work, work.contents()), computed=measured, lost=lost, earlier=earlier)


@dataclass
class _Queue:
    """The cases still to be measured; shortened whenever a worker's death makes a new start necessary."""

    work: Work
    left: list[str]
    tell: Tell | None
    lost: list[str] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)

    def measure(self, workers: int, scheduler: str | None) -> None:
        """Measure all; what is `lost` at the end lost its worker again and again.

        After a death the cases that were under way go to the end. If not even one case was finished before it,
        they are measured one by one: then it is known which of them kills its worker.
        """
        total = len(self.left)
        one_round = partial(self._one_round, workers=workers, scheduler=scheduler, total=total)
        while self.left:
            before, sent = len(self.left), set[str]()
            try:
                one_round(self.left, sent)
                self.left = []
            except WorkerDied:  # the store knows what is left; what was sent comes last
                open_cases = set(self.left) - self._failed
                left = [case for case in self.work.missing(self.work.contents().done) if case in open_cases]
                self.left = sorted(left, key=lambda case: case in sent)
                if len(self.left) == before:
                    self._one_by_one(one_round, [case for case in self.left if case in sent])

    def _one_by_one(self, one_round: Callable[[list[str], set[str]], None], suspects: list[str]) -> None:
        """Each alone, with three tries; if that loses three in a row, the fault is not the cases', and all stop."""
        in_a_row = 0
        for case in suspects:
            survived = any(_survives(one_round, case) for _ in range(TRIES))
            self.left.remove(case)
            in_a_row = 0 if survived else in_a_row + 1
            self.lost += [] if survived else [case]
            if in_a_row == TRIES:
                self.lost, self.left = self.lost + self.left, []
                return

    def _one_round(
        self, cases: list[str], sent: set[str], workers: int, scheduler: str | None, total: int
    ) -> None:
        path = self.work.recipe.path
        job = RunJob(str(path), str(self.work.records), source_of(path))
        with closing(answers(job, _noted(cases, sent), workers, scheduler)) as stream:
            for count, done in enumerate(stream, start=total - len(self.left) + 1):
                if done.rejected:
                    raise BadInput(done.rejected)
                if done.failed:
                    self._failed.add(done.case)
                if self.tell is not None:
                    self.tell(count, total)


def _survives(one_round: Callable[[list[str], set[str]], None], case: str) -> bool:
    try:
        one_round([case], set())
    except WorkerDied:
        return False
    return True


def _noted(cases: list[str], sent: set[str]) -> Iterator[str]:
    for case in cases:
        sent.add(case)
        yield case


_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_CONNECT = 20
_PROTOCOLS = ("tcp", "tls", "ucx", "ws", "wss")
_ADDRESS = re.compile(rf"((?:{'|'.join(_PROTOCOLS)})://)?(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):\d{{1,5}}/?")
_AHEAD = 256  # cases sent ahead at least, so that a cluster that grows finds work waiting
_one_at_a_time = threading.RLock()  # a Dask worker may have several threads, random numbers are the process's


@dataclass(frozen=True)
class RunJob:
    """What all cases of one run have in common; small, because it travels with every case.

    source: `source_of` the recipe at the run. version: of edgewise there. parent: the process that a worker must not
    outlive, if it is its child.
    """

    recipe: str
    records: str
    source: str
    version: str = __version__
    parent: int | None = None


@dataclass(frozen=True)
class Done:
    """A worker's answer; the value itself is already in the store. A `rejected` stops the run."""

    case: str
    failed: bool = False
    rejected: str = ""


def work(job: RunJob, case_text: str) -> Done:
    """Measure one case and append its record; a case that raises is recorded as failed."""
    if job.parent is not None:
        _live_with(job.parent)
    try:
        with _one_at_a_time:
            record = measured(_recipe(job.recipe, job.source, job.version), case_text)
            try:
                _writer(job.records, os.getpid()).append(record)
            except OSError:  # its last line may be torn: the file is left, and another one begun
                _writer.cache_clear()
                raise
    except BadInput as mistake:
        return Done(case_text, rejected=str(mistake))
    return Done(case_text, failed=record.error is not None)


def measured(recipe: Recipe, case_text: str) -> Record:
    """Return the record of one case, whatever `measure` did; raises `BadInput` for values that a file cannot hold."""
    _prepare(case_text)
    value, error, began = None, None, _processor()
    try:
        value = recipe.module.measure(loads(case_text))
    except (Exception, SystemExit):  # noqa: BLE001  whatever a case raises is its outcome, and must not stop the others
        error = traceback.format_exc()
    seconds = round(_processor() - began, 6)
    checked = None if error else recipe.checked_value(value)
    return Record(loads(case_text), seconds, checked, error, stamp())


def _processor() -> float:
    """Seconds of the processor that this process and its finished children took, which other programs do not change."""
    return time.process_time() + sum(os.times()[2:4])


def _prepare(case_text: str) -> None:
    """Global random numbers begin at the case, so that neither order nor worker changes a result; one thread."""
    seed = int.from_bytes(hashlib.sha256(case_text.encode()).digest()[:4], "big")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if torch := sys.modules.get("torch"):
        # torch.manual_seed writes down the stack for a GPU, each time
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)


@lru_cache(maxsize=8)
def _recipe(path: str, source: str, version: str) -> Recipe:
    """Return the recipe, loaded once per process; one run must not be measured by two versions of it or of edgewise."""
    if __version__ != version:
        raise BadInput(
            f"A worker has edgewise {__version__}, the run has {version}. Install the same version everywhere."
        )
    commit()  # now, and not when the first case is done: the checkout may have moved on by then
    recipe = load_recipe(path)
    if source_of(Path(path)) != source:
        raise BadInput(f"{path} or a file beside it was edited since the run began. Run again.")
    return recipe


def source_of(path: Path) -> str:
    """Return a digest of a recipe and the Python files beside it, which every process must measure with."""
    digest = hashlib.sha256()
    for place in sorted(path.parent.glob("*.py")):
        with open_regular(place, LARGEST_TEXT) as file:
            digest.update(file.read() + b"\0")
    return digest.hexdigest()[:16]


@lru_cache(maxsize=8)
def _writer(folder: str, process: int) -> Writer:  # noqa: ARG001  a forked process must not use its parent's file
    return Writer(Path(folder))


def _begin(parent: int) -> None:
    """Leave Ctrl-C to the run, which ends this worker: interrupted while it waits, it would print a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _live_with(parent)


@lru_cache(maxsize=8)
def _live_with(parent: int) -> None:
    """End this process soon after its parent: a run that was killed must not leave orphaned workers."""

    def wait() -> None:
        if os.name != "nt":
            while os.getppid() == parent:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        elif (above := multiprocessing.parent_process()) is not None:  # there a number outlives its process
            above.join()
        else:
            return
        os._exit(1)  # at any moment: a torn record is detected and computed once more

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for numerical libraries, as in workers: the same sums in the same order."""
    before = {name: os.environ.get(name) for name in _THREADS}
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else None
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        if torch and threads:
            torch.set_num_threads(threads)
        _writer.cache_clear()


class WorkerDied(Exception):
    """A worker was killed (by the system, by a person, by running out of memory); its case is not done."""


def answers(
    job: RunJob, cases: Iterable[str], workers: int, scheduler: str | None
) -> Generator[Done, None, None]:
    """Measure cases and answer in the order in which they finish; the records are stored by the workers."""
    if scheduler is not None:
        # Dask itself: joblib's own backend for it works only if a cluster has more than one worker.
        with _client(scheduler) as client:
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
    elif workers > 1:
        yield from _on_cores(replace(job, parent=os.getpid()), cases, workers)
    else:
        with one_thread():
            yield from (work(job, case) for case in cases)


def _on_cores(job: RunJob, cases: Iterable[str], workers: int) -> Iterator[Done]:
    """joblib with loky: processes of one thread; short cases travel in batches, each is stored when it is done."""
    from joblib import Parallel, delayed, parallel_config
    from joblib.externals.loky.process_executor import BrokenProcessPool

    settings: dict[str, Any] = {"initializer": _begin, "initargs": (job.parent,)}  # also without a case
    with parallel_config(backend="loky", inner_max_num_threads=1, **settings):
        parallel: Any = Parallel(n_jobs=workers, return_as="generator_unordered", pre_dispatch=2 * workers)
        stream = parallel(delayed(work)(job, case) for case in cases)
        try:
            for done in stream:  # noqa: UP028  `yield from` would close the stream itself, before the filter below
                yield done
        except BrokenProcessPool as death:
            raise WorkerDied(str(death)) from death
        finally:
            with warnings.catch_warnings():
                # joblib's advice about canceled cases: we mean to
                warnings.simplefilter("ignore", UserWarning)
                stream.close()


def check_address(address: str) -> None:
    """Check a scheduler's address before anything waits for it."""
    if not _ADDRESS.fullmatch(address):
        raise BadInput(
            f"--scheduler {address!r} is not an address. Write PROTOCOL://HOST:PORT, as in tcp://head:8786; protocols: "
            f"{', '.join(_PROTOCOLS)}."
        )


def _client(address: str) -> Any:
    """Return a connection to a Dask scheduler at which at least one worker has arrived."""
    if find_spec("distributed") is None:
        raise BadInput("--scheduler needs Dask, which is not installed: pip install 'edgewise[distributed]'.")
    from distributed import Client

    try:
        client = Client(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise BadInput(
            f"No Dask scheduler answers at {address}: {error}. Start one with `dask scheduler`."
        ) from error
    client.wait_for_workers(1)
    return client
