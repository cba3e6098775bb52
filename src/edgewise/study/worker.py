"""What happens in a worker: load the recipe once, measure a case, store the outcome before answering."""

from __future__ import annotations

import hashlib
import os
import random
import sys
import time
import traceback
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgewise.errors import BadInput
from edgewise.study.code_hash import code_hash
from edgewise.study.json_values import loads
from edgewise.study.recipe import Recipe, load_recipe
from edgewise.study.record import Record, key_of, versions
from edgewise.study.store import Writer


@dataclass(frozen=True)
class Job:
    """What all cases of one run have in common; small, because it travels with every case."""

    recipe: str
    records: str
    code: str


@dataclass(frozen=True)
class Done:
    """A worker's answer; the value itself is already in the store. `refusal` stops the run."""

    key: str
    failed: bool = False
    refusal: str = ""


def work(job: Job, case_text: str) -> Done:
    """Measure one case and append its record; a case that raises is recorded as failed."""
    try:
        recipe = _recipe(job.recipe, job.code)
        record = _measured(recipe, case_text, job.code)
        _writer(job.records, os.getpid()).append(record)
    except BadInput as mistake:
        return Done(key_of(case_text, job.code), refusal=str(mistake))
    return Done(record.key, failed=record.error is not None)


def _measured(recipe: Recipe, case_text: str, code: str) -> Record:
    case, key = loads(case_text), key_of(case_text, code)
    _seed(case_text)
    began = time.perf_counter()
    try:
        value, error = recipe.module.measure(loads(case_text)), None
    except Exception:  # noqa: BLE001  whatever a case raises is its result, and must not stop the others
        value, error = None, traceback.format_exc()
    seconds = round(time.perf_counter() - began, 6)
    if error is None:
        value = recipe.checked_value(value)
    return Record(key, case, code, seconds, value, error, versions())


def _seed(case_text: str) -> None:
    """Global random numbers begin at the case, so that neither order nor worker changes a result."""
    seed = int.from_bytes(hashlib.sha256(case_text.encode()).digest()[:4], "big")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@lru_cache(maxsize=8)
def _recipe(path: str, code: str) -> Recipe:
    """The recipe, loaded once per process, one torch thread; other code than the run's is refused."""
    recipe = load_recipe(path)
    if (found := code_hash(Path(path))) != code:
        raise BadInput(f"The code of {path} is {found} at a worker and {code} at the run: install the same version.")
    one_thread()
    return recipe


def one_thread() -> None:
    """Processes share the cores, so each gets one thread; also makes sums independent of the machine."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@lru_cache(maxsize=8)
def _writer(folder: str, process: int) -> Writer:  # noqa: ARG001  a forked process must not share its parent's file
    return Writer(Path(folder))


def forget() -> Any:
    """Close what this process has open (a serial run leaves nothing behind)."""
    _writer.cache_clear()
    _recipe.cache_clear()
