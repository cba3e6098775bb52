"""The limits: how large a late change may be, and which sign of an exponent is certain; for numbers and arrays."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgewise.errors import BadInput
from edgewise.stability.lyapunov import LateChange

# On twice the log-change over the second half of depth, in size. Chosen, not derived: on 90 trained networks of 16
# layers a change beyond 7 caught 31 of 37 failures with 4 false alarms under SGD, 29 of 31 with 6 under AdamW, and no
# published recipe exceeds it (docs/theory.md, "The verdict"). 4 is a margin below it.
RISKY, FAILS = 4.0, 7.0
ZERO = 1e-5  # tabulated averages are good to 1e-6: a smaller exponent is none


class Severity(IntEnum):
    """What a late change says, in order: within the limits, an error bar from fine to failing, risky, failing."""

    FINE = 0
    UNDECIDED = 1
    RISKY = 2
    FAILS = 3


def severities(change: LateChange) -> NDArray[np.int8]:
    """`Severity` of every entry: failing above 7 by more than the error, risky above 4, else fine.

    An error bar that reaches from below 4 to above 7 leaves it undecided; what is not a number is beyond every limit.
    """
    if not isinstance(change, LateChange):
        raise BadInput(
            f"the limits are for a LateChange, twice the log-change over the second half; got {type(change).__name__}. "
            "A total over the whole depth has none: it contains the first block's jump and harmless power laws."
        )
    size = np.abs(np.nan_to_num(change.value, nan=np.inf, posinf=np.inf, neginf=-np.inf))
    error = 0.0 if np.isnan(change.error) else change.error  # unknown: the number stands alone
    fails = size - error > FAILS
    undecided = (size - error < RISKY) & (size + error > FAILS)
    choices = (Severity.FAILS, Severity.UNDECIDED, Severity.RISKY)
    return np.select([fails, undecided, size > RISKY], choices, Severity.FINE).astype(np.int8)


def severity(*changes: LateChange) -> Severity:
    """The worst of what some changes of one network say."""
    return max(Severity(int(severities(change))) for change in changes)


def signs(rates: ArrayLike, error: float) -> NDArray[np.int8]:
    """-1 or 1 where a rate differs from zero by more than its error, 0 where its sign is open or it is not a number."""
    values = np.asarray(rates, np.float64)
    return np.where(np.abs(values) > error, np.sign(values), 0).astype(np.int8)
