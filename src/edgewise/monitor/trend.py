"""The trend of a series against the step, with a t-value that allows for neighbouring rows being alike."""

from __future__ import annotations

import math

import numpy as np

from edgewise.arrays import Array

WINDOW = 40  # rows of a trend
FEWEST = 20  # rows before which there is no trend and no jump
LONG = 80  # rows of the loss, which scatters most, that decide whether it still falls
FLOOR = 0.02  # relative: a number that hardly ever moved does not jump by a little


def log_trend(steps: Array, logs: Array) -> tuple[Array, Array]:
    """Least squares of logs (W, C) against steps (W,): (slope, slope / its error); nan where a row is not finite.

    Neighbouring rows are not independent: the error is widened by sqrt((1 + r) / (1 - r)), r the correlation of
    neighbouring residuals [Quenouille 1952].
    """
    t = steps - _mean(steps)
    whole = math.isfinite(np.add.reduce(logs, None))
    usable = None if whole else np.isfinite(logs).all(0)  # asked of each only where one is not
    safe = logs if usable is None else np.where(usable, logs, 0.0)
    centred = safe - _mean(safe)
    length = t @ t
    slope = (t @ centred) / length
    residual = centred - t[:, None] * slope
    squares = np.add.reduce(residual**2)
    memory = np.add.reduce(residual[1:] * residual[:-1]) / np.maximum(squares, 1e-300)
    memory = np.minimum(np.maximum(memory, 0.0), 0.95)
    error = np.sqrt(squares / (max(len(t) - 2, 1) * length) * (1 + memory) / (1 - memory))
    value = slope / (error + 1e-12)
    return (
        (slope, value)
        if usable is None
        else (np.where(usable, slope, np.nan), np.where(usable, value, np.nan))
    )


def _mean(values: Array) -> Array:
    """Along the first dimension; numpy's own is a function in Python around the same."""
    return np.asarray(np.add.reduce(values) / len(values))
