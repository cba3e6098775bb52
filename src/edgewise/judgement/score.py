"""The one score that outcome and probability are read from, and the parts it is made of.

    risk = w (|A| + |G|) + u F - b        P(trains) = 1 / (1 + exp(risk))

A and G are the late changes of the angle between tokens and of the relative gradient (twice those of the second half
of depth), F the late change of what the stream forgets. Where F cannot be known, because there is no description, the
same form without F has constants of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgewise.architecture import Architecture
from edgewise.judgement.forgetting import forgotten
from edgewise.judgement.reading import Reading
from edgewise.stability.lyapunov import growth

BEYOND = 200.0  # what has no finite log-change counts as this one, which is beyond every limit


@dataclass(frozen=True)
class Score:
    """The parts of the score, none negative; `error` is how well the sum of the first two is known."""

    angle: float
    gradient: float
    forgetting: float | None
    error: float = 0.0

    @property
    def exponents(self) -> float:
        return self.angle + self.gradient


def score_of(reading: Reading) -> Score | None:
    """The score of a trace; None where no gradient was followed, or the stream left the range of numbers."""
    gradient = reading.decisive_gradient
    if gradient is None or reading.out_of_range.any():
        return None
    errors = [change.error for change in (reading.angle.change, gradient.change)]
    return Score(
        _size(reading.angle.change.scalar), _size(gradient.change.scalar), _forgetting(reading),
        math.hypot(*(0.0 if math.isnan(error) else error for error in errors)),
    )  # fmt: skip


def _forgetting(reading: Reading) -> float | None:
    """By the description at the norms and overlaps of the trace, whether those are predicted or measured."""
    trace, architecture = reading.trace, reading.trace.architecture
    if not isinstance(architecture, Architecture) or architecture.depth != trace.depth:
        return None
    norms, separations = trace.blocks("norm"), trace.blocks("separation")
    logs = forgotten(architecture, norms.tolist(), separations.tolist())
    return _size(growth(logs[None]).change.scalar)


def _size(change: float) -> float:
    return float(np.clip(abs(change), 0.0, BEYOND)) if math.isfinite(change) else BEYOND
