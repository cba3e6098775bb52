"""What a detector saw, and what several of them measure with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.monitor.alarm import AlarmKind
from edgewise.monitor.bands import Bands
from edgewise.monitor.trend import FEWEST

HALVED, FADING = math.log(0.5), math.log(0.75)
STAYS = 3  # rows of what comes at once, and is not a passing one


@dataclass(frozen=True)
class Hit:
    """What a detector saw: where among the series, and the sentence with its numbers."""

    kind: AlarmKind
    series: int | None
    sentence: str


Detector = Callable[[Bands], Hit | None]


def median_of(bands: Bands, at: NDArray[np.int64]) -> Array:
    """Of the rows before this one, at most 20 of them."""
    if bands.count < 2:
        return bands.now[at]
    with np.errstate(invalid="ignore"):
        return np.asarray(np.median(bands.past()[1][:-1][:, at][-FEWEST:], axis=0))
