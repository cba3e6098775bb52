"""How the best learning rate moves with the number of steps: networks at eight rates, looked at after 5 to 120 steps.

Why a rehearsal of 20 steps misses on images and with SGD. The networks: those of `population.py` on which it missed
(all images and all SGD), and five of text to develop on. The longer rehearsals were designed on this record.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from edgewise.study import Result

from .networks import Row, batches, loss, network, optimizer
from .population import BLIND, DEVELOPMENT, TINY
from .truth import FACTOR, START

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
STEPS = 120
LOOKS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120)
RUNGS = range(-3, 5)
FRESH = 6  # batches, as in a rehearsal


def chosen() -> list[Row]:
    """All images, all SGD, and the text networks to develop on; not what is meant to be untrainable."""
    others = [row for row in BLIND if row["task"] == "images" or row["optimizer"] == "sgd"]
    return [row for row in others if "dead" not in row["name"]] + DEVELOPMENT[:5]


def cases(scale: str = "small") -> list[dict[str, Any]]:
    if scale == "full":
        return [{"row": row, "steps": STEPS, "rungs": list(RUNGS)} for row in chosen()]
    return [{"row": row | TINY, "steps": 10, "rungs": [0, 1]} for row in (DEVELOPMENT[6], DEVELOPMENT[9])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Losses on fresh batches after some steps, and the training losses of all steps, at each rate."""
    row, steps = case["row"], case["steps"]
    data = list(itertools.islice(batches(row, 0), steps + FRESH))
    rates = [START[row["optimizer"]] * FACTOR**k for k in case["rungs"]]
    runs = [_run(row, rate, data[:steps], data[steps:]) for rate in rates]
    return {"rates": rates, "start": _fresh(network(row), data[steps:]), "runs": runs}


def _run(row: Row, rate: float, train: list[Any], fresh: list[Any]) -> dict[str, Any]:
    model = network(row).train()
    moving = optimizer(row, model, rate)
    losses, looks = [], {}
    for step, batch in enumerate(train, 1):
        value = loss(model, batch)
        losses.append(float(f"{float(value.detach()):.4g}"))
        if not torch.isfinite(value):
            break
        moving.zero_grad()
        value.backward()
        moving.step()
        if step in LOOKS:
            looks[str(step)] = _fresh(model, fresh)
    return {"losses": losses, "fresh": looks}


def _fresh(model: torch.nn.Module, data: list[Any]) -> float:
    model.eval()
    with torch.no_grad():
        value = sum(float(loss(model, batch)) for batch in data) / len(data)
    model.train()
    return float(f"{value:.5g}")


def claim(results: Sequence[Result]) -> Any:
    from . import horizon_report

    return horizon_report.claim(results)


def draw(results: Sequence[Result]) -> Any:
    from . import horizon_report

    return horizon_report.draw(results)
