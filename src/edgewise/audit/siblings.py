"""Layers whose standard deviation departs from that of the same matrix in the other layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from edgewise.audit.finding import AuditFinding, Kind, Severity, redraw
from edgewise.audit.weights import MatrixSummary, siblings


def unlike_siblings(summaries: Sequence[MatrixSummary]) -> Iterator[AuditFinding]:
    """Robust z of log rms against the median of the layers, whose own error is small beside one layer's.

    Where more than a third of the layers depart, the depth has a schedule (some recipes shrink with the layer)
    and no layer is the odd one.
    """
    for group in siblings([s for s in summaries if s.random]):
        if len(group) < 3:
            continue
        middle = median(summary.rms for summary in group)
        odd = [summary for summary in group if summary.departs_from(middle)]
        if 0 < len(odd) <= len(group) / 3:
            yield from (_finding(summary, middle) for summary in odd)


def _finding(summary: MatrixSummary, middle: float) -> AuditFinding:
    place, errors = f"{summary.role} of block {summary.block}", abs(math.log(summary.rms / middle)) / summary.error
    return AuditFinding(
        Kind.DEPARTS_FROM_SIBLINGS, Severity.WARNING, summary.matrix.parameters,
        f"{place} has standard deviation {summary.rms:.4g} ({errors:.0f} sampling errors away)",
        f"{middle:.4g}, as in the other blocks", redraw([summary.matrix], middle),
    )  # fmt: skip
