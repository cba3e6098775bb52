"""The recent past of every number of a row: its trend, with a t-value, and its jump against its own scatter.

A jump sees what leaves its past at once and is blind to slow exponential growth, whose scatter grows with it; a
slope of the logarithm sees that. Both are kept, for all columns together. Shapes: C columns, W rows of the window.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array

WINDOW = 40  # rows of a trend
FEWEST = 20  # rows before which there is no trend and no jump


class Series:
    """A ring of the last rows, their steps, and the scatter of each column around its own recent mean."""

    def __init__(self, columns: int, window: int = WINDOW) -> None:
        self.steps = np.full(window, np.nan)
        self.values = np.full((window, columns), np.nan)
        self.count = 0

    def add(self, step: int, values: Array) -> None:
        place = self.count % len(self.steps)
        self.steps[place], self.values[place] = step, values
        self.count += 1

    def _past(self) -> tuple[Array, Array]:
        rows = min(self.count, len(self.steps))
        order = np.argsort(self.steps[:rows])
        return self.steps[:rows][order], self.values[:rows][order]

    def trends(self, columns: NDArray[np.int64]) -> tuple[Array, Array]:
        """(slope of the logarithm per step, its t-value) of some columns; nan with fewer than 20 positive numbers."""
        steps, values = self._past()
        slope = np.full(len(columns), np.nan)
        if len(steps) < FEWEST:
            return slope, slope.copy()
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(values[:, columns])
        return log_trend(steps, logs)

    def jumps(self, values: Array, columns: NDArray[np.int64]) -> Array:
        """(value - median of the past) / scatter of its logarithm, robust; nan with fewer than 20 rows.

        The past must not hold the value itself: call before `add`.
        """
        steps, past = self._past()
        if len(steps) < FEWEST:
            return np.full(len(columns), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs, now = np.log(past[:, columns]), np.log(values[columns])
            # Scatter around the trend, not around the mean: a healthy decay is not scatter.
            middle = np.nanmedian(logs[-FEWEST:], axis=0) if len(logs) else np.nan
            change = np.diff(logs, axis=0)
            spread = 1.4826 * np.nanmedian(np.abs(change - np.nanmedian(change, axis=0)), axis=0)
            return np.asarray((now - middle) / np.maximum(spread, FLOOR))


FLOOR = 0.02  # relative: a number that hardly ever moved does not jump by a little


def log_trend(steps: Array, logs: Array) -> tuple[Array, Array]:
    """Least squares of logs (W, C) against steps (W,): (slope, slope / its standard error), with the errors' memory.

    Neighbouring rows are not independent: the error is widened by sqrt((1 + r) / (1 - r)), r the correlation of
    neighbouring residuals [Quenouille 1952].
    """
    t = steps - steps.mean()
    usable = np.isfinite(logs).all(0)
    safe = np.where(usable, logs, 0.0)
    centred = safe - safe.mean(0)
    slope = (t @ centred) / (t @ t)
    residual = centred - np.outer(t, slope)
    freedom = max(len(t) - 2, 1)
    variance = (residual**2).sum(0) / freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        memory = (residual[1:] * residual[:-1]).sum(0) / np.maximum((residual**2).sum(0), 1e-300)
        wider = np.sqrt((1 + memory.clip(0, 0.95)) / (1 - memory.clip(0, 0.95)))
        value = slope / (np.sqrt(variance / (t @ t)) * wider + 1e-12)
    return np.where(usable, slope, np.nan), np.where(usable, value, np.nan)
