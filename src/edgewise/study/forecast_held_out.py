"""Fits that have seen neither the task nor the architecture they forecast.

Features of a start are four defects from theory, each in log-units over the whole depth: tokens merge, tokens
separate, gradients explode, gradients vanish.
"""

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


def defects(row: Row) -> list[float]:
    """(merging, separating, exploding, vanishing), of which two are zero."""
    angle, gradient = row.changes(readout="pooled")
    return [max(-angle, 0.0), max(angle, 0.0), max(gradient, 0.0), max(-gradient, 0.0)]


def fitted_weights(rows: Sequence[Row]) -> Logistic:
    """The fitted score: a logistic curve in the four defects."""
    return fit_logistic([defects(row) for row in rows], [row.failed for row in rows])


def calibration(rows: Sequence[Row]) -> Logistic:
    """The plain sum turned into a probability: two constants."""
    return fit_logistic([[plain(row)] for row in rows], [row.failed for row in rows])


def fitted_score(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    return fitted_weights(fitted).score([defects(row) for row in of])


def fitted_probability(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    return fitted_weights(fitted).probability([defects(row) for row in of])


def plain_probability(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    return calibration(fitted).probability([[plain(row)] for row in of])


def paper_loss(fitted: Sequence[Row], of: Sequence[Row]) -> Array:
    """The paper's three constants."""
    fit = three_constants(fitted)
    return np.array([three_constant_loss(fit, row) for row in of])


def cross_fitted(rows: Sequence[Row], forecast: Forecast, tasks: bool = True, families: bool = True) -> Array:
    """For every row a forecast from rows of other tasks (`tasks`) and other families (`families`) only."""
    found = np.full(len(rows), np.nan)
    for task, family in dict.fromkeys((row.task, row.family) for row in rows):
        inside = [i for i, row in enumerate(rows) if (row.task, row.family) == (task, family)]
        others = [
            row for row in rows if (row.task != task or not tasks) and (row.family != family or not families)
        ]
        found[inside] = forecast(others, [rows[i] for i in inside])
    return found
