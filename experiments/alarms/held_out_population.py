"""The runs of the held-out report, fixed before any was made: `python -m experiments.alarms.held_out_population`.

Seeds, shapes, optimizers and schedules that no threshold was chosen on. 64 failing runs, half of them driven, and 32
healthy ones of 2,000 steps under a monitor that samples every step; 12 failing and 4 healthy ones under the default
budget, with larger batches and slower ramps, because it samples few steps of a network as small as these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path
from typing import Any

from .population import DRIVEN, TASKS, UNDRIVEN

FILE = Path(__file__).with_name("held_out.json")
SEEDS = (11, 12)
SHAPES = {"digits": {"depth": 2, "width": 48, "heads": 4}, "bytes": {"depth": 3, "width": 64, "heads": 4}}
DEEPER = {"depth": 3, "width": 64, "heads": 4}
SLOWER: dict[str, dict[str, Any]] = {
    "rate ramped": {"failure": "rate ramped", "e_fold": 60},
    "stream ramped": {"failure": "stream ramped", "e_fold": 80},
}
LOGITS: dict[str, dict[str, Any]] = {  # read at one token, so that attention matters to the loss
    "logits ramped": {"failure": "logits ramped", "e_fold": 25},
    "query-key rate": {"failure": "query-key rate", "factor": 20},
}
HEALTHY: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm and warm-up": {"norm": "post", "warm_up": 200},
    "weight decay": {"optimizer": "adamw", "warm_up": 100, "rate": 3e-3, "depth": 4},
    "momentum": {"optimizer": "sgd", "rate": 0.01},
    "dropout": {"dropout": 0.1},
    "clipped": {"clip": 1.0, "rate": 2e-3, "norm": "post"},
    "one block": {"depth": 1, "width": 64, "heads": 1},
    "three blocks": {"depth": 3, "rate": 5e-4},
}
# Under the default budget: ramps four times as slow, which begin later; what is wrong from the start is left alone.
SLOW = 4
LATE: dict[str, dict[str, Any]] = {
    "rate ramped": {"e_fold": 25 * SLOW},
    "logits ramped": {"e_fold": 40 * SLOW},
    "stream ramped": {"e_fold": 40 * SLOW},
    "float16 overflow": {"e_fold": 15 * SLOW},
    "bad batch": {},
    "dead head": {},
}
BEGIN, END = 400, 1200
LARGER = {"bytes": 32, "digits": 96}  # batches, of which a step takes about 30 ms
DEEP = 6  # blocks from which on the batch is the small one


def held_out() -> list[dict[str, Any]]:
    """Every run as a case for `training.trained`: with its name, and which part of the report it is in."""
    return [*_failing(), *_healthy(), *_default()]


def _failing() -> Iterator[dict[str, Any]]:
    for (name, change), task, seed in product((DRIVEN | UNDRIVEN).items(), TASKS, SEEDS):
        yield _run(name, task, {**SHAPES[task], **change}, seed, 400)
    for (name, change), task, seed in product(SLOWER.items(), TASKS, SEEDS):
        yield _run(name, task, {**SHAPES[task], **change}, seed, 700)
    for (name, change), norm, seed in product(LOGITS.items(), ("pre", "post"), (11, 12, 13, 14)):
        yield _run(name, "digits", {**DEEPER, "norm": norm, "readout": "first", **change}, seed, 800)


def _healthy() -> Iterator[dict[str, Any]]:
    for (kind, change), task, seed in product(HEALTHY.items(), TASKS, SEEDS):
        yield {
            **_run("healthy", task, {**SHAPES["digits"], "rate": 1e-3, **change}, seed, 2000),
            "kind": kind,
        }


def _default() -> Iterator[dict[str, Any]]:
    tasks = cycle(TASKS)
    for (name, change), task in zip((DRIVEN | UNDRIVEN).items(), tasks, strict=False):
        late = {**LATE[name], "start": BEGIN} if name in LATE else {}
        yield _sampled(_run(name, task, {**DEEPER, **change, **late}, 15, END))
    for norm in ("pre", "post"):
        change = {**DEEPER, "norm": norm, "readout": "first", **LOGITS["query-key rate"]}
        yield _sampled(_run("query-key rate", "digits", change, 15, END))
    for (kind, change), task in zip(list(HEALTHY.items())[:4], tasks, strict=False):
        run = _run("healthy", task, {**SHAPES["digits"], "rate": 1e-3, **change}, 15, 2000)
        yield {**_sampled(run), "kind": kind}


def _run(name: str, task: str, change: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    usual = {"task": task, "batch": TASKS[task], "norm": "pre", "rate": 2e-3, "failure": "none"}
    return {**usual, **change, "seed": seed, "steps": steps, "name": name, "half": "every step"}


def _sampled(run: dict[str, Any]) -> dict[str, Any]:
    batch = run["batch"] if run["depth"] >= DEEP else LARGER[run["task"]]
    return {**run, "batch": batch, "sampling": "default", "half": "default"}


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(run) for run in held_out())
    FILE.write_text(f'{{"runs": [\n{lines}\n]}}\n')
