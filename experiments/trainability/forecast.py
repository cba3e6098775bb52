"""The forecast, scores: what theory and other methods say of 156 starts before any of them trains.

Each case is one start on one task: orbits by theory (no network built) and by measurement of the very network that
trains, the paper's linearised exponents, the random-energy limit, the Koopman score. The claim joins them with the
runs of `train.py` as recorded beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgewise.study import tasks

from . import report
from .figure import figure
from .geometry import geometry
from .starts import FAMILIES, starts
from .table import recorded_runs, table

TOLERANCE = 0.0001  # of the largest number in an entry; deterministic, or one seed: rounding alone
STARTS, TASKS = 26, ("digits", "bytes")
FEW, QUICK = ("paper", "gpt"), 3  # families of the small scale, and a start with 8 blocks in both
RUNS = Path(__file__).parent / "recorded" / "train.jsonl"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Every start on both tasks; small: one start of two families, each on a task of its own."""
    pairs = [(task, family) for task in TASKS for family in FAMILIES]
    return [
        {
            "task": task,
            "family": family,
            "start": start,
            "knobs": starts(family, STARTS)[start],
            "seed": start,
        }
        for start in (range(STARTS) if scale == "full" else (QUICK,))
        for task, family in (pairs if scale == "full" else zip(TASKS, FEW, strict=True))
    ]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    return geometry(case["knobs"], tasks.task(case["task"]), case["seed"])


def claim(results: list[Any]) -> Any:
    return report.claim(results, RUNS)


def draw(results: list[Any]) -> Any:
    """Loss against score, ROC curves with bands, reliability, all scores side by side."""
    return figure(table(results, recorded_runs(RUNS)))
