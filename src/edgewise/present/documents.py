"""The JSON documents of `edgewise predict` and `edgewise measure`, described by the files in schema/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import SCHEMA, Verdict, finite
from edgewise.present.depth_curves import block_numbers, rows_with_errors, within_blocks

if TYPE_CHECKING:
    from edgewise.audit.finding import AuditFinding
    from edgewise.critical.critical_point import CriticalPoint
    from edgewise.judgement.comparison import Comparison

SHOWN = ("norm", "overlap", "gradient_norm", "relative_gradient_norm", "attention_entropy", "condensation")


def prediction(trace: Trace, verdict: Verdict, critical: CriticalPoint | None = None) -> dict[str, Any]:
    """One network: its description, numbers per block (length depth + 1, embedding first), and verdict."""
    numbers = block_numbers(trace)
    blocks = {name: listed(numbers[name]) for name in SHOWN if name in numbers}
    document = {
        "architecture": None if trace.architecture is None else trace.architecture.to_dict(),
        "trace": {"blocks": blocks, "source": trace.source, "readout": verdict.readout or None},
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


def measurement(
    trace: Trace,
    verdict: Verdict,
    predicted: tuple[Trace, Verdict] | None = None,
    audit: Sequence[AuditFinding] | None = None,
) -> dict[str, Any]:
    """Measured numbers with their errors and statistics, the prediction beside them, the audit of the weights."""
    return {
        "measured": prediction(trace, verdict),
        "standard_errors": {name: listed(error) for name, (_, error) in rows_with_errors(trace).items()},
        "statistics": statistics(trace),
        "predicted": None if predicted is None else prediction(*predicted),
        "audit": None if audit is None else [finding.json() for finding in audit],
    } | stamp()


def statistics(trace: Trace) -> dict[str, list[float | None]]:
    """Per block, means over seeds and heads; growths add up over the sites of a block."""
    rows = {
        name: within_blocks(trace, values)
        for name, values in trace.statistics.items()
        if name != "pair_growth"
    }
    if trace.softmax_condition is not None:
        rows["softmax_condition"] = within_blocks(trace, trace.softmax_condition)
    if "pair_growth" in trace.statistics:
        total = trace.statistics["pair_growth"].mean(axis=0).cumsum()[trace.block_ends()]
        rows["pair_growth"] = total - [0.0, *total[:-1]]
    for readout in trace.readouts:
        rows[f"log_gradient.{readout}"] = trace.blocks("log_gradient", readout)
    return {name: listed(row) for name, row in rows.items()}
