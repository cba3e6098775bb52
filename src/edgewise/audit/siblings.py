"""Layers whose standard deviation departs from that of the same matrix in the other layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from edgewise.audit.finding import AuditFinding, Kind, Severity, redraw
from edgewise.audit.weights import Look, siblings

SIGNIFICANT = 5.0  # sampling errors: one false alarm in two million looks
NOTICEABLE = 0.02  # relative; smaller departures change nothing, however significant


def unlike_siblings(looks: Sequence[Look]) -> Iterator[AuditFinding]:
    """Robust z of log rms against the median of the layers, whose own error is small beside one layer's.

    Where more than a third of the layers depart, the depth has a schedule (some recipes shrink with the layer)
    and no layer is the odd one.
    """
    for group in siblings([look for look in looks if look.drawn]):
        if len(group) < 3:
            continue
        middle = median(look.rms for look in group)
        odd = [look for look in group if departs(look, middle)]
        if 0 < len(odd) <= len(group) / 3:
            yield from (_finding(look, middle) for look in odd)


def departs(look: Look, expected: float) -> bool:
    """|log(rms/expected)| beyond both the sampling error and what matters."""
    return abs(math.log(look.rms / expected)) > max(SIGNIFICANT * look.error, NOTICEABLE)


def _finding(look: Look, middle: float) -> AuditFinding:
    z = abs(math.log(look.rms / middle)) / look.error
    return AuditFinding(
        Kind.DEPARTS_FROM_SIBLINGS, Severity.WARNING, look.matrix.parameters,
        f"{look.role} of block {look.block} has standard deviation {look.rms:.4g} ({z:.0f} sampling errors away)",
        f"{middle:.4g}, as in the other blocks", redraw([look.matrix], middle),
    )  # fmt: skip
