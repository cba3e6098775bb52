"""Where a prediction starts: the overlap and norm of the first tokens, and the starts that are refused."""

from __future__ import annotations

from typing import Any

from edgewise.errors import BadInput
from edgewise.nouns.trace import READOUTS, Trace


def refuse_start(start_overlap: float, readout: str) -> None:
    """An overlap of n tokens lies in (-1/(n-1), 1]; the recursion is written for those of at least 0."""
    refuse_readout(readout)
    if not (isinstance(start_overlap, (int, float)) and 0.0 <= start_overlap < 1.0):
        raise BadInput(
            f"start_overlap must be a mean cosine of at least 0 and below 1, got {start_overlap!r}."
        )


def refuse_readout(readout: str) -> None:
    """A theory knows where the gradient of a loss starts for these readouts only."""
    if readout not in READOUTS:
        raise BadInput(f"readout must be {' or '.join(READOUTS)}, got {readout!r}.")


def refuse_two_starts(start: Any, start_overlap: float) -> None:
    """A measured start has its own overlap."""
    if start is not None and start_overlap:
        raise BadInput("give start or start_overlap, not both: the start has its own overlap.")


def first_state(trace: Trace) -> tuple[float, float]:
    """Norm and mean cosine at the first site of a trace, averaged over seeds."""
    return float(trace.norm[:, 0].mean()), at_least_zero(float(trace.overlap[:, 0].mean()))


def at_least_zero(overlap: float) -> float:
    """A measured overlap below zero as zero, for a recursion that is written for overlaps of at least 0.

    n tokens that are centred, or drawn in few dimensions, have a mean cosine down to -1/(n-1): nothing aligns them.
    """
    return 0.0 if overlap < 0 else overlap
