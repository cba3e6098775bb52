"""Rows of a run that is driven by hand, and the alarms that they raise."""

from __future__ import annotations

import math

import numpy as np

from edgewise.monitor.alarm import Alarm
from edgewise.monitor.causes import Diagnosis
from edgewise.monitor.columns import fast_columns
from edgewise.monitor.series import History

DEPTH = 3
COLUMNS = fast_columns(DEPTH)
NAMES = [column.name for column in COLUMNS]
LEVELS = {
    "loss": 2.0,
    "gradient_norm": 1.0,
    "update_ratio": 1e-3,
    "norm": 2.0,
    "separation": 0.8,
    "gradient": 0.1,
    "gradient_growth": -1.0,
    "headroom": 100.0,
    "largest_logit": 6.0,
    "entropy": 2.0,
    "saturated": 0.05,
    "softmax_gain": 0.1,
    "head_share_min": 0.7,
    "update_ratio.attention": 1e-3,
    "update_ratio.mlp": 1e-3,
}


def run(
    changes: dict[str, object] | None = None,
    steps: int = 160,
    seed: int = 0,
    noise: float = 0.03,
    gap: int = 1,
) -> list[Alarm]:
    """Rows with 3 % of scatter around fixed levels, a falling loss, and `changes`: column to a factor of the step.

    gap: steps between two rows; of the others the loss is seen.
    """
    generator = np.random.default_rng(seed)
    diagnosis = Diagnosis(History(COLUMNS))
    alarms: list[Alarm] = []
    for step in range(steps):
        row = np.array([level(name) for name in NAMES])
        row *= np.exp(noise * generator.standard_normal(len(row)))
        row[NAMES.index("loss")] *= math.exp(-step / 200)
        for name, factor in (changes or {}).items():
            row[NAMES.index(name)] *= factor(step)  # type: ignore[operator]
        if step % gap:
            diagnosis.history.losses.see(step, math.log(row[NAMES.index("loss")]))
            continue
        diagnosis.history.see(step, row)
        alarms += diagnosis.see(step, np.full((DEPTH, 7, 2), np.nan))
    return alarms


def level(name: str) -> float:
    for prefix in ("", "embed.", *(f"block.{i}." for i in range(DEPTH))):
        if name.startswith(prefix) and name.removeprefix(prefix) in LEVELS:
            return LEVELS[name.removeprefix(prefix)]
    return 1.0


def kinds(alarms: list[Alarm]) -> list[str]:
    return [alarm.kind.value for alarm in alarms]


def ramp(start: int, e_fold: float):  # type: ignore[no-untyped-def]
    return lambda step: math.exp(max(0, step - start) / e_fold)
