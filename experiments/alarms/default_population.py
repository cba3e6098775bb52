"""Runs under the default budget, fixed before any was made: `python -m experiments.alarms.default_population`.

Thresholds and the plan of sampling were chosen on `tuning` (seeds 1 and 3, trained with every step sampled and thinned
afterwards, as a clock would that is set by hand); `held_out` are other seeds, trained under the budget itself.
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
LENGTH = {"rate too high": 300, "no warm-up": 400, "sharp start at a high rate": 300, "post-norm too deep": 400,
          "bad batch": 450, "dead head": 450}  # fmt: skip
SHAPE = SHAPES["bytes"]
AGAIN = {"digits": ("rate too high", "bad batch"), "bytes": ("sharp start at a high rate",)}


def tuning() -> list[dict[str, Any]]:
    """22 failing runs and 16 healthy ones, every step sampled."""
    runs = [*_ramped("bytes", 1, 4), *_ramped("digits", 3, 2)]
    for task, seed in (("bytes", 1), ("digits", 3)):
        runs += _unramped(task, seed)
    runs += [_logits(norm, seed) for norm, seed in (("pre", 1), ("post", 3))]
    for (kind, change), (task, seed) in product(HEALTHY.items(), (("bytes", 1), ("digits", 3))):
        runs.append({**_run("healthy", task, {**SHAPES["digits"], "rate": 1e-3, **change}, seed, 1000), "kind": kind})
    return [{**run, "half": "tuning"} for run in runs]


def held_out() -> list[dict[str, Any]]:
    """24 failing runs and 24 healthy ones under the default budget, with seeds that nothing was chosen on."""
    runs = [run for run in (*_ramped("bytes", 31, 4), *_ramped("digits", 32, 2)) if run["name"] != "float16 overflow"]
    runs += [{**run, "steps": 570} for run in _ramped("digits", 32, 2) if run["name"] == "float16 overflow"]
    for task, seed in (("bytes", 31), ("digits", 32)):
        runs += _unramped(task, seed)
    runs += [run for run in (*_unramped("digits", 31), *_unramped("bytes", 32)) if run["name"] in AGAIN[run["task"]]]
    runs += [{**_logits(norm, seed), "steps": 700} for norm, seed in (("pre", 31), ("post", 32))]
    dear = {id(run) for run in runs if run["depth"] >= DEEP or "half_precision" in run}
    runs = [run if id(run) in dear else {**run, "batch": LARGER[run["task"]]} for run in runs]
    for (kind, change), (task, seed) in product(HEALTHY.items(), (("bytes", 31), ("digits", 31), ("digits", 32))):
        run = _run("healthy", task, {**SHAPES["digits"], "rate": 1e-3, **change}, seed, 700)
        runs.append({**run, "kind": kind, "batch": (LARGER if seed == 31 else BATCHES)[task]})
    return [{**run, "half": "default", "sampling": "default"} for run in runs]


def _ramped(task: str, seed: int, slow: int) -> Iterator[dict[str, Any]]:
    """Ramps `slow` times as slow as where every step is sampled."""
    for name, change in DRIVEN.items():
        late = {"e_fold": slow * E_FOLD[name], "start": START}
        yield _run(name, task, {**SHAPE, **change, **late}, seed, 300 + 150 * slow)


def _unramped(task: str, seed: int) -> Iterator[dict[str, Any]]:
    for name, change in UNDRIVEN.items():
        late = {"start": START} if name in ("bad batch", "dead head") else {}
        yield _run(name, task, {**SHAPE, **change, **late}, seed, LENGTH[name])


def _logits(norm: str, seed: int) -> dict[str, Any]:
    change = {**SHAPE, "norm": norm, "readout": "first", **LOGITS["query-key rate"]}
    return _run("query-key rate", "digits", change, seed, 800)


def _run(name: str, task: str, change: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    batch = (SMALL if change["depth"] >= DEEP else BATCHES)[task]
    usual = {"task": task, "batch": batch, "norm": "pre", "rate": 2e-3, "failure": "none"}
    return {**usual, **change, "seed": seed, "steps": steps, "name": name}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(run) for run in (*tuning(), *held_out()))
    FILE.write_text(f'{{"runs": [\n{lines}\n]}}\n')
