"""The one score that outcome and probability are read from, and the parts it is made of.

    risk = w (|A| + |G|) + u F - b        P(trains) = 1 / (1 + exp(risk))

A and G are the late changes of the angle between tokens and of the relative gradient (twice those of the second half
of depth), F the late change of what the stream forgets. Tokens that are all alike at the output, whichever blocks made
them so, count as an A beyond every limit where each has a label. Where F cannot be known, because there is no
description, the same form without F has constants of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edgewise.errors import SearchBudget
from edgewise.judgement.forgetting import forgotten
from edgewise.judgement.reading import Reading
from edgewise.nouns.architecture import Architecture
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


def score_of(reading: Reading, budget: SearchBudget | None = None) -> Score | None:
    """The score of a trace, without its gradient where none was followed; None where the stream left the range."""
    if reading.out_of_range.any():
        return None
    gradient = reading.decisive_gradient
    changes = [reading.angle.change] + ([] if gradient is None else [gradient.change])
    errors = [0.0 if math.isnan(change.error) else change.error for change in changes]
    sizes = [_size(change.scalar) for change in changes]
    sizes[0] = sizes[0] if reading.collapsed is None else BEYOND
    return Score(
        sizes[0], sizes[1] if gradient is not None else 0.0, _forgetting(reading, budget), math.hypot(*errors)
    )


def _forgetting(reading: Reading, budget: SearchBudget | None) -> float | None:
    """By the description at the norms and overlaps of the trace, whether those are predicted or measured."""
    trace, architecture = reading.trace, reading.trace.architecture
    if not isinstance(architecture, Architecture) or architecture.depth != trace.depth:
        return None
    norms, separations = trace.blocks("norm"), trace.blocks("separation")
    logs = forgotten(architecture, norms.tolist(), separations.tolist(), budget)
    return (
        _size(growth(logs[None]).change.scalar) if np.isfinite(logs).all() else None
    )  # without a skip there is no F


def _size(change: float) -> float:
    return float(np.clip(abs(change), 0.0, BEYOND)) if math.isfinite(change) else BEYOND
