"""Exponents from the logs of the layers: the mean growth over depth, its error, the late change, and its limits.

Shapes: S seeds, L layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgewise.arrays import Array
from edgewise.errors import BadInput


class SeverityLimits(NamedTuple):
    """The late changes from which on a network is risky, and fails."""

    risky: float
    fails: float


# On twice the log-change over the second half of depth, in size. Chosen, not derived: on 90 trained networks of 16
# layers a change beyond 7 caught 31 of 37 failures with 4 false alarms under SGD, 29 of 31 with 6 under AdamW, and no
# published recipe exceeds it (docs/theory.md, "The verdict"). 4 is a margin below it.
SEVERITY_LIMITS = SeverityLimits(risky=4.0, fails=7.0)
ZERO = 1e-5  # tabulated averages are good to 1e-6: a smaller exponent is none


@dataclass(frozen=True)
class LateChange:
    """Twice the log-change over the second half of depth, and how well its mean is known (nan: unknown).

    It is lambda L for a constant exponent, O(1) for a power law, and ignores the start. The limits of `limits` are for
    this quantity only, which is why it has a type: a total over the whole depth cannot be taken for it.
    """

    value: float | Array
    error: float = 0.0

    @property
    def scalar(self) -> float:
        """The value of one network."""
        return float(self.value)


@dataclass(frozen=True)
class Growth:
    """How a quantity grows along depth."""

    rate: float  # lambda(L) = (log_L - log_0) / L, the exponent over this depth [Benettin 1976]
    error: float  # what one network scatters by
    change: LateChange


def growth(logs: Array, width: float | None = None, sampled: bool = True) -> Growth:
    """Return the growth of a quantity from its logs (S, L + 1).

    width: gives the finite-width scatter sqrt(2/(L d)); `error` is that or the standard error over seeds, whichever is
    larger. The error of the late change is that of its mean: over seeds, the finite-width scatter for one sampled
    network, none for an exact recursion (`sampled` False).
    """
    depth = logs.shape[1] - 1
    half = depth // 2
    with np.errstate(invalid="ignore"):
        total = logs[:, -1] - logs[:, 0]
        late = (logs[:, -1] - logs[:, half]) * depth / (depth - half)
    scatter = math.nan if width is None else math.sqrt(2 * depth / width)
    # A log-change over L/2 layers scatters by sqrt(L/d); doubled, sqrt(2) times the scatter of the total.
    alone = scatter * math.sqrt(depth / (depth - half))
    late_error = 0.0 if not sampled else _error(late) if len(logs) > 1 else alone
    return Growth(
        rate=_mean(total) / depth,
        error=float(np.fmax(_error(total), scatter)) / depth,
        change=LateChange(_mean(late), late_error),
    )


def _mean(values: Array) -> float:
    """Return the mean over seeds; minus infinity when every seed collapsed fully (inf - inf counts as such)."""
    return -math.inf if np.isnan(values).any() or np.isneginf(values).any() else float(values.mean())


def _error(values: Array) -> float:
    """Return the standard error over seeds; unknown (nan) for one seed, none for an infinite exponent."""
    if not np.isfinite(values).all():
        return 0.0
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def depth_scale(rate: float | None) -> float | None:
    """xi = 1/|lambda| for a log-rate per layer [Schoenholz 2017]; infinite on the edge, None without a rate.

    >>> depth_scale(-0.25)
    4.0
    """
    if rate is None or math.isnan(rate):
        return None
    return math.inf if rate == 0 else 1.0 / abs(rate)


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
    fails = size - error > SEVERITY_LIMITS.fails
    undecided = (size - error < SEVERITY_LIMITS.risky) & (size + error > SEVERITY_LIMITS.fails)
    choices = (Severity.FAILS, Severity.UNDECIDED, Severity.RISKY)
    return np.select([fails, undecided, size > SEVERITY_LIMITS.risky], choices, Severity.FINE).astype(np.int8)


def severity(*changes: LateChange) -> Severity:
    """Return the worst of what some changes of one network say."""
    return max(Severity(int(severities(change))) for change in changes)


def signs(rates: ArrayLike, error: float) -> NDArray[np.int8]:
    """-1 or 1 where a rate differs from zero by more than its error, 0 where its sign is open or it is not a number."""
    values = np.asarray(rates, np.float64)
    return np.where(np.abs(values) > error, np.sign(values), 0).astype(np.int8)
