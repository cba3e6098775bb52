"""The forecast, scores: what theory and rivals say of 156 starts before any of them trains.

Each case is one start on one task: orbits by theory (no network built) and by measurement of the very network that
trains, the paper's linearised exponents, the random-energy limit, the Koopman score. The claim joins them with the
runs of `train.py` as recorded beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from edgewise.study import tasks

from . import geometry as forecast_geometry
from . import report as forecast_report
from . import starts as forecast_starts

STARTS, TASKS = 26, ("digits", "bytes")
RUNS = Path(__file__).parent / "recorded" / "train.jsonl"


def cases(scale: str = "small") -> list[dict[str, Any]]:
    """Every start on both tasks; small: the first start of each family on each task."""
    return [
        {"task": task, "family": family, "start": start, "knobs": forecast_starts.starts(family, STARTS)[start],
         "seed": start}
        for start in range(STARTS if scale == "full" else 1)
        for task in TASKS
        for family in forecast_starts.FAMILIES
    ]  # fmt: skip


def measure(case: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    return forecast_geometry.geometry(case["knobs"], tasks.task(case["task"]), case["seed"])


def claim(results: list[Any]) -> Any:
    return forecast_report.claim(results, RUNS)


def draw(results: list[Any]) -> Any:
    return forecast_report.draw(results, RUNS)
