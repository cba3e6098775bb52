"""JSON documents of predictions, measurements and comparisons, as in schema/, and the numbers per block in them.

`block_numbers` is what tables, figures and JSON all show of a trace, at the embedding and after every block.
Shapes: S seeds, N sites, H heads, L blocks; every row is (L + 1,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgewise.arrays import Array
from edgewise.files import Document
from edgewise.nouns.trace import Trace
from edgewise.nouns.verdict import SCHEMA, Verdict, finite

if TYPE_CHECKING:
    from edgewise.audit.finding import AuditFinding
    from edgewise.critical.critical_point import CriticalPoint
    from edgewise.judgement.comparison import Comparison

Rows = dict[str, Array]
RowsWithErrors = dict[str, tuple[Array, Array]]


def block_numbers(trace: Trace) -> Rows:
    """Return the rows this trace has, mean over seeds: norm, overlap, separation, gradients, attention."""
    rows = {name: trace.blocks(name) for name in ("norm", "overlap", "separation")}
    if trace.log_gradient is not None:
        rows["gradient_norm"] = trace.blocks("gradient_norm")
        rows["relative_gradient_norm"] = relative_gradient_norm(trace)
    if trace.attention_entropy is not None:
        rows["attention_entropy"] = within_blocks(trace, trace.attention_entropy)
    if "condensation" in trace.statistics:
        rows["condensation"] = within_blocks(trace, trace.statistics["condensation"])
    return rows


def relative_gradient_norm(trace: Trace) -> Array:
    """rho_l / rho_L with rho = |g|^2 q: what the output feels of a relative change of the stream (L + 1,)."""
    assert trace.log_gradient is not None
    ends = trace.block_ends()
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of a stream that has vanished
        log_norm = np.log(trace.norm[:, ends])
        logs = trace.log_gradient[0][:, ends] + log_norm - log_norm[:, -1:]
        return np.asarray(np.exp(logs).mean(axis=0))


def within_blocks(trace: Trace, values: Array) -> Array:
    """Mean over seeds, heads and the sites of a block that have the quantity (S, N, ...); nan if none."""
    per_site = np.moveaxis(values, 1, 0).reshape(values.shape[1], -1)  # (N, S * H)
    ends = trace.block_ends()
    starts = [0, *(end + 1 for end in ends[:-1])]
    parts = [per_site[start : end + 1] for start, end in zip(starts, ends, strict=True)]
    return np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else np.nan for part in parts])


def rows_with_errors(trace: Trace) -> RowsWithErrors:
    """Mean over seeds and standard error of it at the embedding and after every block; errors nan for one seed."""
    ends = trace.block_ends()
    values = {name: getattr(trace, name)[:, ends] for name in ("norm", "overlap", "separation")}
    if trace.log_gradient is not None:
        logs = trace.log_gradient[0][:, ends] + np.log(values["norm"]) - np.log(values["norm"][:, -1:])
        with np.errstate(over="ignore"):
            values["relative_gradient_norm"] = np.exp(logs)
    if trace.attention_entropy is not None:
        each = [within_blocks(trace, one[None]) for one in trace.attention_entropy]
        values["attention_entropy"] = np.stack(each)
    return {name: (seeds.mean(axis=0), standard_error(seeds)) for name, seeds in values.items()}


def standard_error(seeds: Array) -> Array:
    """Of the mean over the first axis; nan when there is only one."""
    if len(seeds) < 2:
        return np.full(seeds.shape[1:], math.nan)
    return np.asarray(seeds.std(axis=0, ddof=1) / math.sqrt(len(seeds)))


SHOWN = ("norm", "overlap", "gradient_norm", "relative_gradient_norm", "attention_entropy", "condensation")


def prediction(trace: Trace, verdict: Verdict, critical: CriticalPoint | None = None) -> Document:
    """Return one network: its description, numbers per block (length depth + 1, embedding first), and verdict."""
    numbers = block_numbers(trace)
    blocks = {name: listed(numbers[name]) for name in SHOWN if name in numbers}
    document = {
        "architecture": None if trace.architecture is None else trace.architecture.to_dict(),
        "trace": {"blocks": blocks, "source": trace.source, "readout": verdict.readout or None},
        "verdict": verdict.json(),
    }
    return document | ({} if critical is None else {"critical": critical.json()}) | stamp()


def comparison(compared: Comparison, predictions: list[Document]) -> Document:
    """Return two networks: both documents, and what differs between them."""
    return {"comparison": compared.json(), "predictions": predictions} | stamp()


def listed(values: NDArray[np.float64]) -> list[float | None]:
    """Return a row for JSON; a number that is not finite is null."""
    return [finite(float(value)) for value in values]


def stamp() -> Document:
    """Return the version of the schema and of the library."""
    from edgewise import __version__

    return {"schema": SCHEMA, "version": __version__}


def measurement(
    trace: Trace,
    verdict: Verdict,
    predicted: tuple[Trace, Verdict] | None = None,
    audit: Sequence[AuditFinding] | None = None,
) -> Document:
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
