"""The talk's figure of trainability: test loss against the angle exponent, the gradient exponent, and both.

From the recorded runs of `train.py` and the recorded geometry of `forecast.py`; nothing is trained here. With the fit
of three constants, c0 + max(c1 |lambda_a|, c2 |lambda_g|). The talk has one architecture, task and optimizer: the same
is judged in every such group, with intervals over starts instead of a limit (fixed before it was judged so).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgewise.study import Claim, Result, recorded_results

from . import exponents_report
from .exponents_report import Point, ends_of
from .table import recorded_runs, table

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
RECORDED = Path(__file__).parent / "recorded"
FAMILIES = ("paper", "gpt", "llama")
TASKS = ("digits", "bytes")


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """The runs of a family on a task; small: the paper's family on digits."""
    kinds = [(task, family) for task in TASKS for family in FAMILIES]
    return [{"task": task, "family": family} for task, family in (kinds if scale == "full" else kinds[:1])]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Of every recorded run: test loss over chance, exponents linearised at collapse and of its own orbit, depth."""
    geometries = recorded_results(RECORDED / "forecast.jsonl")
    rows = [
        row
        for row in table(geometries, recorded_runs(RECORDED / "train.jsonl"))
        if (row.task, row.family) == (case["task"], case["family"])
    ]
    return {
        "loss": [
            None if row.run["final"] is None or row.run["validation"] is None else round(row.held_out_loss, 4)
            for row in rows
        ],
        "linear": [[row.geometry["collapsed"][name] for name in ("angle", "gradient")] for row in rows],
        "total": [[round(x, 4) for x in row.changes(readout="pooled")] for row in rows],
        "depth": [row.depth for row in rows],
        "start": [row.start for row in rows],
        "optimizer": [row.optimizer for row in rows],
        "rise": [round(rise(row.run["curve"]) / row.run["chance"], 4) for row in rows],
    }


def rise(curve: list[float | None]) -> float:
    """How far a loss climbs above its lowest so far."""
    losses = np.array([loss for loss in curve if loss is not None], float)
    return float(np.max(losses - np.minimum.accumulate(losses))) if len(losses) else 0.0


def points(results: list[Result]) -> list[Point]:
    """One per run; a start is left out of a fit together with its two optimizers."""
    found = []
    for place, r in enumerate(results):
        best = ends_of(
            [x for other in results if other.case["task"] == r.case["task"] for x in other.value["loss"]]
        )
        names = ("loss", "linear", "total", "depth", "start", "rise", "optimizer")
        for *numbers, start, climb, optimizer in zip(*(r.value[name] for name in names), strict=True):
            group = f"{r.case['family']}, {r.case['task']}, {optimizer}"
            found.append(Point(*numbers, 100 * place + start, best, climb, group))
    return found


def _scale(results: list[Result]) -> str:
    sizes = "width 48, 8 to 18 blocks, digits and bytes, one seed (talk: 16 layers, food)"
    return f"{len(points(results))} recorded runs of {sizes}"


def claim(results: list[Result]) -> Any:
    judged = exponents_report.claim(points(results), _scale(results))
    own = [exponents_report.by_group(points(results), _scale(results), place) for place in (0, 1)]
    return Claim.all([*judged.parts, exponents_report.spikes(points(results), _scale(results)), *own])


def draw(results: list[Result]) -> Any:
    return exponents_report.draw(points(results), _scale(results))
