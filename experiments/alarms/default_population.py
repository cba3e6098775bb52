"""Runs under the default budget, fixed before any was made: `python -m experiments.alarms.default_population`.

Thresholds and the plan of sampling were chosen on `tuning` (seeds 1 and 3, trained with every step sampled and thinned
afterwards, as a clock would that is set by hand), and on `first_report` and the runs of `held_out_population.py` in the
same way, after these had been reported on; `held_out` are other seeds, trained under the budget itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from .held_out_population import HEALTHY, LOGITS, SHAPES
from .population import DRIVEN, UNDRIVEN

FILE = Path(__file__).with_suffix(".json")
BATCHES = {"bytes": 16, "digits": 48}
LARGER = {"bytes": 32, "digits": 96}  # of which a step takes 20 to 40 ms
DEEP, SMALL = 6, {"bytes": 4, "digits": 16}  # blocks from which on the batch is the small one
E_FOLD = {"rate ramped": 25, "logits ramped": 40, "stream ramped": 40, "float16 overflow": 15}
START = 300  # of what is ramped, and of events
LENGTH = {
    "rate too high": 300,
    "no warm-up": 400,
    "sharp start at a high rate": 300,
    "post-norm too deep": 400,
    "bad batch": 450,
    "dead head": 450,
}
SHAPE = SHAPES["bytes"]
AGAIN = {"digits": ("rate too high", "bad batch"), "bytes": ("sharp start at a high rate",)}
MORE = {"digits": ("rate too high", "bad batch"), "bytes": ("sharp start at a high rate", "dead head")}
OTHER = {
    "bytes": {"depth": 4, "width": 48, "heads": 4},
    "digits": {"depth": 2, "width": 64, "heads": 2},
}  # shapes


def tuning() -> list[dict[str, Any]]:
    """22 failing runs and 16 healthy ones, every step sampled."""
    runs = [*_ramped("bytes", 1, 4), *_ramped("digits", 3, 2)]
    for task, seed in (("bytes", 1), ("digits", 3)):
        runs += _unramped(task, seed)
    runs += [_logits(norm, seed) for norm, seed in (("pre", 1), ("post", 3))]
    for (kind, change), (task, seed) in product(HEALTHY.items(), (("bytes", 1), ("digits", 3))):
        runs.append(
            {**_run("healthy", task, {**SHAPES["digits"], "rate": 1e-3, **change}, seed, 1000), "kind": kind}
        )
    return [{**run, "half": "tuning"} for run in runs]


def first_report() -> list[dict[str, Any]]:
    """24 failing runs and 24 healthy ones under the default budget, of a first report."""
    runs = [
        run
        for run in (*_ramped("bytes", 31, 4), *_ramped("digits", 32, 2))
        if run["name"] != "float16 overflow"
    ]
    runs += [{**run, "steps": 570} for run in _ramped("digits", 32, 2) if run["name"] == "float16 overflow"]
    for task, seed in (("bytes", 31), ("digits", 32)):
        runs += _unramped(task, seed)
    runs += [
        run
        for run in (*_unramped("digits", 31), *_unramped("bytes", 32))
        if run["name"] in AGAIN[run["task"]]
    ]
    runs += [{**_logits(norm, seed), "steps": 700} for norm, seed in (("pre", 31), ("post", 32))]
    return [{**run, "half": "default", "sampling": "default"} for run in (*_larger(runs), *_healthy(31, 32))]


def held_out() -> list[dict[str, Any]]:
    """28 failing runs and 24 healthy ones under the default budget, with seeds that nothing was chosen on.

    The kinds of the first report, half of the ramps and of the events in networks of another shape and with other
    slopes, and two kinds of growing logits more, since the steps of warning need runs whose loss turns.
    """
    runs = [
        run
        for run in (*_ramped("bytes", 41, 3, OTHER["bytes"]), *_ramped("digits", 42, 2))
        if run["name"] != "float16 overflow"
    ]
    runs += [{**run, "steps": 570} for run in _ramped("digits", 42, 2) if run["name"] == "float16 overflow"]
    for task, seed in (("bytes", 41), ("digits", 42)):
        runs += _unramped(task, seed)
    again = (*_unramped("digits", 41, OTHER["digits"]), *_unramped("bytes", 42, OTHER["bytes"]))
    runs += [run for run in again if run["name"] in MORE[run["task"]]]
    runs += [
        {**_logits("pre", 41), "steps": 700},
        {**_logits("post", 42), "steps": 700},
        {**_logits("post", 41), "factor": 12, "steps": 700},
    ]
    for norm, seed in (("pre", 41), ("post", 42)):
        late = {"readout": "first", "norm": norm, "failure": "logits ramped", "e_fold": 50, "start": START}
        runs.append(_run("logits ramped", "digits", {**SHAPE, **late}, seed, 600))
    return [{**run, "half": "default", "sampling": "default"} for run in (*_larger(runs), *_healthy(41, 42))]


def _larger(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """With larger batches, where steps are not dear already."""
    for run in runs:
        dear = run["depth"] >= DEEP or "half_precision" in run
        yield run if dear else {**run, "batch": LARGER[run["task"]]}


def _healthy(first: int, second: int) -> Iterator[dict[str, Any]]:
    """24 runs: on text, and on digits with two sizes of a batch."""
    tasks = (("bytes", first), ("digits", first), ("digits", second))
    for (kind, change), (task, seed) in product(HEALTHY.items(), tasks):
        run = _run("healthy", task, {**SHAPES["digits"], "rate": 1e-3, **change}, seed, 700)
        yield {**run, "kind": kind, "batch": (LARGER if seed == first else BATCHES)[task]}


def _ramped(task: str, seed: int, slow: int, shape: dict[str, Any] = SHAPE) -> Iterator[dict[str, Any]]:
    """Ramps `slow` times as slow as where every step is sampled."""
    for name, change in DRIVEN.items():
        late = {"e_fold": slow * E_FOLD[name], "start": START}
        yield _run(name, task, {**shape, **change, **late}, seed, 300 + 150 * slow)


def _unramped(task: str, seed: int, shape: dict[str, Any] = SHAPE) -> Iterator[dict[str, Any]]:
    for name, change in UNDRIVEN.items():
        late = {"start": START} if name in ("bad batch", "dead head") else {}
        yield _run(name, task, {**shape, **change, **late}, seed, LENGTH[name])


def _logits(norm: str, seed: int) -> dict[str, Any]:
    change = {**SHAPE, "norm": norm, "readout": "first", **LOGITS["query-key rate"]}
    return _run("query-key rate", "digits", change, seed, 800)


def _run(name: str, task: str, change: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    batch = (SMALL if change["depth"] >= DEEP else BATCHES)[task]
    usual = {"task": task, "batch": batch, "norm": "pre", "rate": 2e-3, "failure": "none"}
    return {**usual, **change, "seed": seed, "steps": steps, "name": name}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(run) for run in (*tuning(), *first_report(), *held_out()))
    FILE.write_text(f'{{"runs": [\n{lines}\n]}}\n')
