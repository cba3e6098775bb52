"""The JSON documents of the front door, described by schema/prediction-1.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgewise.trace import Trace
from edgewise.verdict import SCHEMA, Verdict, finite
from edgewise.view.per_block import block_numbers

if TYPE_CHECKING:
    from edgewise.critical.comparison import Comparison
    from edgewise.critical.critical_point import CriticalPoint

SHOWN = ("norm", "overlap", "gradient_norm", "relative_gradient_norm", "attention_entropy", "condensation")


def prediction(trace: Trace, verdict: Verdict, critical: CriticalPoint | None = None) -> dict[str, Any]:
    """One network: its description, numbers per block (length depth + 1, embedding first), and verdict."""
    numbers = block_numbers(trace)
    blocks = {name: listed(numbers[name]) for name in SHOWN if name in numbers}
    document = {
        "architecture": None if trace.architecture is None else trace.architecture.to_dict(),
        "trace": {"blocks": blocks, "source": trace.source, "readout": verdict.readout},
        "verdict": verdict.json(),
    }
    return document | ({} if critical is None else {"critical": critical.json()}) | stamp()


def comparison(compared: Comparison, predictions: list[dict[str, Any]]) -> dict[str, Any]:
    """Two networks: both documents, and what differs between them."""
    return {"comparison": compared.json(), "predictions": predictions} | stamp()


def listed(values: NDArray[np.float64]) -> list[float | None]:
    """A row for JSON; a number that is not finite is null."""
    return [finite(float(value)) for value in values]


def stamp() -> dict[str, Any]:
    """The version of the schema and of the library."""
    from edgewise import __version__

    return {"schema": SCHEMA, "version": __version__}
