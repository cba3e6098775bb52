"""Fits that have not seen the architecture (or neither it nor the task) they forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgewise.study.forecast_baselines import three_constant_loss, three_constants
from edgewise.study.forecast_fit import Logistic, fit_logistic
from edgewise.study.forecast_scores import combined
from edgewise.study.forecast_table import Row

Array = NDArray[np.float64]
Forecast = Callable[[Sequence[Row], Sequence[Row]], Array]  # fitted on the first, of the second


def plain(row: Row) -> float:
    """|log-change of angle| + |log-change of relative gradient|, pooled readout, whole depth: nothing fitted."""
    return combined(*row.changes(readout="pooled"))


def with_forgetting(row: Row) -> float:
    """The plain sum and a third of what the stream forgets. The third was chosen after seeing the runs."""
    return plain(row) + row.forgetting() / 3


def defects(row: Row) -> list[float]:
    """(sum of both exponents with the task's own readout, forgetting): what the fit weighs."""
    return [combined(*row.changes()), row.forgetting()]


def calibration(rows: Sequence[Row]) -> Logistic:
    """The plain sum turned into a probability: two constants."""
    return fit_logistic([[plain(row)] for row in rows], [row.failed for row in rows])


def fitted_score(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    """Two weights and an offset."""
    return _fitted(fitted).score([defects(row) for row in of])


def fitted_probability(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    return _fitted(fitted).probability([defects(row) for row in of])


def _fitted(rows: Sequence[Row]) -> Logistic:
    return fit_logistic([defects(row) for row in rows], [row.failed for row in rows])


def plain_probability(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    return calibration(fitted).probability([[plain(row)] for row in of])


def paper_loss(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    """The paper's three constants."""
    fit = three_constants(fitted)
    return np.array([three_constant_loss(fit, row) for row in of])


def cross_fitted(rows: Sequence[Row], forecast: Forecast, same_task: bool = False) -> Array:
    """For every row a forecast fitted on other families: of the other tasks, or (`same_task`) of its own task."""
    found = np.full(len(rows), np.nan)
    for task, family in dict.fromkeys((row.task, row.family) for row in rows):
        inside = [i for i, row in enumerate(rows) if (row.task, row.family) == (task, family)]
        others = [row for row in rows if row.family != family and (row.task == task) == same_task]
        found[inside] = forecast(others, [rows[i] for i in inside])
    return found
