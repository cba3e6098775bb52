"""Theory against recorded simulation, case by case, by the criteria of the project.

Norm within 3 % and overlap within 0.03 at the worst layer, both exponents within 0.01, each or two standard
errors where that is larger. An exponent is compared with the mean over seeds of each seed's own exponent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import edgewise
from edgewise.nouns.trace import Trace

LIMITS = {"norm": 0.03, "overlap": 0.03, "angle": 0.01, "gradient": 0.01}
EXPLOSIVE = 0.8  # a gradient exponent above it is reported apart
ENOUGH_SEEDS, ENOUGH_WIDTH = 16, 2048  # from which on a standard error may stretch a limit


@dataclass(frozen=True)
class Gap:
    """Difference between theory and simulation at the worst layer, and what was allowed there."""

    difference: float
    allowed: float

    @property
    def closed(self) -> bool:
        return abs(self.difference) <= self.allowed

    @classmethod
    def worst(cls, difference: Any, error: Any, limit: float) -> Gap:
        """The layer that uses most of what it is allowed."""
        difference = np.atleast_1d(difference)
        allowed = np.maximum(limit, 2 * np.atleast_1d(error))
        layer = int(np.argmax(np.abs(difference) / allowed))
        return cls(float(difference[layer]), float(allowed[layer]))


@dataclass(frozen=True)
class Comparison:
    """One case: simulated and predicted exponents, and the gap of every criterion."""

    name: str
    simulated: dict[str, float]
    predicted: dict[str, float]
    gaps: dict[str, Gap]

    @property
    def passed(self) -> bool:
        return all(gap.closed for gap in self.gaps.values())

    @property
    def explosive(self) -> bool:
        return self.simulated["gradient"] > EXPLOSIVE


def predicted(record: dict[str, Any]) -> Trace:
    """The theory's trace of a recorded case."""
    architecture = edgewise.transformer(**record["knobs"])
    return edgewise.predict(architecture, start_overlap=record["start_overlap"], readout=record["readout"])


def compare(record: dict[str, Any], trace: Trace) -> Comparison:
    """Every criterion of one recorded case."""
    depth = record["knobs"]["depth"]
    separation, gradient = trace.blocks("separation"), trace.blocks("log_gradient")
    exponents = {"angle": np.log(separation[-1] / separation[0]) / depth, "gradient": gradient[0] / depth}
    norm = np.array(record["norm"]["mean"])
    differences = {
        "norm": (trace.blocks("norm") / norm - 1, np.array(record["norm"]["error"]) / norm),
        "overlap": (np.array(record["separation"]["mean"]) - separation, record["separation"]["error"]),
        **{key: (value - record[key]["mean"], record[key]["error"]) for key, value in exponents.items()},
    }
    stretch = record["seeds"] >= ENOUGH_SEEDS or record["knobs"]["width"] >= ENOUGH_WIDTH
    gaps = {
        key: Gap.worst(difference, np.array(error) * stretch, LIMITS[key])
        for key, (difference, error) in differences.items()
    }
    simulated = {key: record[key]["mean"] for key in exponents}
    return Comparison(record["name"], simulated, {k: float(v) for k, v in exponents.items()}, gaps)
