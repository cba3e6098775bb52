"""What points to a cause once something else has shown that a run goes wrong: less is asked of it than of an alarm.

    by a trend     t-value over the one that chance reaches once in a hundred, for all series together
    by a step      median of the last three rows against those before them, over four times their scatter

The larger of the two; above 1 a series has moved. A kink, flat at first and then steep, has a step and no trend.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy import stats

from edgewise.arrays import Array
from edgewise.monitor.bands import Bands
from edgewise.monitor.trend import FLOOR

CHANCE, SCATTER = 0.01, 4.0
LATE = 3  # rows that are held against those before them
MOVED = math.log(1.5)  # what changed by less is no cause


def evidence(bands: Bands) -> Array:
    """How far each series has moved the wrong way, (series,); 0 with fewer than twice three rows."""
    past = bands.past()[1]
    if len(past) < 2 * LATE:
        return np.zeros(bands.series)
    late, early = past[-LATE:], past[:-LATE]
    with np.errstate(invalid="ignore"):
        before = np.median(early, axis=0)
        change = bands.worse * (np.median(late, axis=0) - before)
        scatter = 1.4826 * np.median(np.abs(early - before), axis=0)
        step = change / np.maximum(scatter, FLOOR) / SCATTER
        moved = np.fmax(step, bands.worse * bands.t / _hint(bands.series, bands.rows))
        return np.where(change > MOVED, np.nan_to_num(moved), 0.0)


def steps_grew(bands: Bands) -> bool:
    """Whether the steps of the optimizer are larger than they were, against the weights."""
    return bool((evidence(bands)[bands.at("update_ratio")] > 1).any())


@cache
def _hint(series: int, rows: int) -> float:
    return float(stats.t.isf(CHANCE / max(series, 1), rows - 2))
