"""The diagnosis of a plan, in words: is the start the reason, does the plan cure it, and if not, where to look."""

from __future__ import annotations

from edgewise.repair.plan import TOLERANCE, TotalChanges
from edgewise.stability.lyapunov import SEVERITY_LIMITS, LateChange, Severity, severity

ELSEWHERE = (
    "Look at the learning rate, the data and the precision; judge(measure(model)) says what the layers do."
)


def diagnose(
    before: TotalChanges, after: TotalChanges | None, budget: float, changed: bool, skip: bool = True
) -> tuple[str, tuple[str, ...]]:
    """(diagnosis, where else to look) of a network, given its totals before and after the change, if there is one."""
    if not changed and before.worst <= budget + TOLERANCE:
        text = (
            f"Nothing to change: neither total exceeds {budget:g} by more than {TOLERANCE:g}, so if this network does "
            "not train, the start is not the reason."
        )
        return text, (ELSEWHERE,)
    sentences = [_cause(before)]
    if after is not None and not after.worst <= budget + TOLERANCE:
        sentences.append(_remainder(after, budget, skip))
    return " ".join(sentences), ()


def with_frozen(before: TotalChanges, after: TotalChanges | None, budget: float) -> str:
    """The diagnosis where frozen weights stand in the way; `after` is None where nothing else can be written."""
    if after is None:
        return f"{_cause(before)} Nothing can be changed: the weights that would help are frozen."
    which, value = _larger(after)
    return (
        f"{_cause(before)} The weights that are not frozen do not bring both totals within {budget:g}; the {which} "
        f"still changes by {value:+.2f}."
    )


def _cause(before: TotalChanges) -> str:
    """What the limits of a verdict say of the network as it is: they are about the second half of its depth."""
    if before.exponents is None:
        return "The start is the reason: the signal leaves the range of floating point."
    size = max(abs(exponent.change or 0.0) for exponent in before.exponents)
    rate = f"at the rate of the second half of the depth, the whole depth changes angle or gradient by e^{size:.1f}"
    match severity(*(LateChange(e.change or 0.0, e.change_error or 0.0) for e in before.exponents)):
        case Severity.FAILS:
            return f"The start is the reason: {rate}, and beyond e^{SEVERITY_LIMITS.fails:g} networks do not train."
        case Severity.RISKY:
            return f"The start is a likely reason: {rate}; beyond e^{SEVERITY_LIMITS.risky:g} is risky."
        case Severity.UNDECIDED:
            return f"The start may be the reason: {rate}, but one network of this width scatters too much to tell."
    risky = SEVERITY_LIMITS.risky
    rest = (
        " The rest of the totals is a jump or a power law in the first half." if before.worst >= risky else ""
    )
    return (
        f"The start alone should not prevent training: {rate}, less than the e^{risky:g} that is risky.{rest}"
    )


def _remainder(after: TotalChanges, budget: float, skip: bool) -> str:
    """What no gain removes, and what would."""
    which, value = _larger(after)
    if skip:
        why = (
            "the gains of these matrices do not move it, the multipliers of the skips would; where those are below one "
            "and the MLP is gated, smaller branches only let the stream die"
        )
    elif which == "angle":
        why = "without a skip this activation merges inputs at any gain: add a skip, or use an odd one such as tanh"
    else:
        why = "no common gain of the matrices moves it"
    return f"No gain brings both totals within {budget:g}; the {which} still changes by {value:+.2f}: {why}."


def _larger(totals: TotalChanges) -> tuple[str, float]:
    """The total that changes more, by name."""
    angle = abs(totals.angle) >= abs(totals.gradient)
    return ("angle", totals.angle) if angle else ("gradient", totals.gradient)
