"""The loss of every step, which costs nothing to look at: whether it still falls, has jumped, or stays away.

Rows are rarer than steps where samples are dear. A loss that is far above its past asks for a row at once.
Logarithms throughout. Where the model computes on another device, asking it at every step would hold the device up:
there the losses are those of the rows.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

import numpy as np

from edgewise.arrays import Array
from edgewise.monitor.trend import FEWEST, LONG

RESTLESS, LOUD = 4.0, 0.1  # times the scatter, and nats, above its past: what asks for a row
WEIGHT = 0.1  # of a loss in the running mean of its past
RISEN, SURE = 0.15, 6.0  # of the first loss, and standard errors, above the lowest mean of 20 losses
LARGEST = 300.0  # nats: what is beyond has no square


class Losses:
    """Logarithms of the last losses and their steps."""

    def __init__(self) -> None:
        self.steps: deque[int] = deque(maxlen=LONG)
        self.logs: deque[float] = deque(maxlen=LONG)
        self.first = math.nan
        self.restless = False  # whether the last one is far above its past
        self._mean, self._scatter = math.nan, 0.0
        self._seen, self._lowest = 0, (math.inf, 0.0)  # mean and variance of the lowest 20 in a row

    def see(self, step: int, log: float) -> None:
        """Take in the loss of a step, once."""
        if math.isnan(log) or (self.steps and self.steps[-1] >= step):
            return
        self.steps.append(step)
        self.logs.append(log)
        if len(self.logs) == 1:
            self.first = self._mean = log
        away = log - self._mean if math.isfinite(log) else math.inf
        self.restless = len(self.logs) > FEWEST // 2 and away > max(RESTLESS * self._scatter, LOUD)
        if math.isfinite(away):
            weight = WEIGHT / 4 if self.restless else WEIGHT
            self._mean += weight * away
            self._scatter += weight * (
                1.25 * abs(away) - self._scatter
            )  # of a normal one, from its mean deviation
        self._seen += 1
        if self._seen % FEWEST == 0:
            self._lowest = min(self._lowest, self._level())

    def __len__(self) -> int:
        return len(self.logs)

    def last(self, count: int) -> Array:
        return np.array(self.logs, float)[-count:]

    def since(self, gap: int) -> int:
        """How many losses there are of the last `gap` steps; 1 where only those of rows are seen."""
        return sum(step > self.steps[-1] - gap for step in self.steps)

    def risen(self) -> float:
        """How far the mean of the last 20 is above the lowest, over the first loss; 0 where that may be chance."""
        if self._seen <= 2 * FEWEST:
            return 0.0
        (low, before), (now, variance) = self._lowest, self._level()
        first, error = math.exp(min(self.first, LARGEST)), math.sqrt((before + variance) / FEWEST)
        return (now - low) / first if now - low > max(RISEN * first, SURE * error) else 0.0

    def _level(self) -> tuple[float, float]:
        """Mean and variance of the last 20 losses themselves; without numpy, which is slow on so few."""
        losses = [math.exp(min(log, LARGEST)) for log in islice(reversed(self.logs), FEWEST)]
        mean = sum(losses) / len(losses)
        return mean, sum((loss - mean) ** 2 for loss in losses) / len(losses)

    def falls(self) -> bool | None:
        """Whether the last 20 are below 20 of 60 earlier by two standard errors; None with fewer than 80."""
        if len(self.logs) < LONG:
            return None
        logs = self.last(LONG)
        ends = np.stack([logs[:FEWEST], logs[-FEWEST:]])
        (early, late), error = ends.mean(1), math.sqrt(ends.var(1).sum() / FEWEST)
        return bool(late < early - 2 * error)
