"""Phase by the sign of the angle exponent and its error; outcome by the two changes over depth."""

from __future__ import annotations

from edgewise.verdict import Exponent, Outcome, Phase

ZERO = 1e-5  # the tabulated averages are good to 1e-6: a smaller exponent is none
RISKY, FAILS = 4.0, 7.0  # on twice the log-change over the second half of the depth


def phase(angle: Exponent) -> Phase:
    """Ordered, chaotic, or undecided at this depth; critical only where an asymptotic exponent is exactly zero."""
    if angle.asymptotic is not None:
        if abs(angle.asymptotic) < ZERO:
            return Phase.CRITICAL
        return Phase.ORDERED if angle.asymptotic < 0 else Phase.CHAOTIC
    if not abs(angle.at_depth) > angle.error:
        return Phase.UNDECIDED
    return Phase.ORDERED if angle.at_depth < 0 else Phase.CHAOTIC


def outcome(*exponents: Exponent | None) -> Outcome:
    """The worst of what the exponents say: fails above 7 by more than the error, risky above 4, else trains.

    An error bar that reaches from below 4 to above 7 leaves it undecided.
    """
    order = (Outcome.TRAINS, Outcome.UNDECIDED, Outcome.RISKY, Outcome.FAILS)
    return max((_single(e) for e in exponents if e is not None), key=order.index)


def _single(exponent: Exponent) -> Outcome:
    size, error = abs(exponent.change or 0.0), exponent.change_error or 0.0
    error = 0.0 if error != error else error  # unknown error: the number stands alone
    if size - error > FAILS:
        return Outcome.FAILS
    if size - error < RISKY and size + error > FAILS:
        return Outcome.UNDECIDED
    return Outcome.RISKY if size > RISKY else Outcome.TRAINS
