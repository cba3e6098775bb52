"""In words: is the start the reason, does the plan cure it, and if not, where to look."""

from __future__ import annotations

import math

from edgewise.repair.plan import TOLERANCE, Totals
from edgewise.stability.limits import FAILS, RISKY


def diagnose(
    before: Totals | None, after: Totals | None, budget: float, changed: bool, skip: bool = True
) -> tuple[str, tuple[str, ...]]:
    """(diagnosis, what was found elsewhere)."""
    if before is not None and not changed and before.worst <= budget + TOLERANCE:
        return (
            f"Nothing to change: neither total exceeds {budget:g} by more than the tolerance, so if this network does "
            "not train, the start is not the reason.",
            ("Look at the learning rate, the data and the precision: judge(measure(model)) and watch(model) name what "
             "leaves its band.",),
        )  # fmt: skip
    said = [] if before is None else [_cause(before)]
    if after is not None and not after.worst <= budget + TOLERANCE:
        said.append(_left(after, budget, skip))
    return " ".join(said), ()


def _cause(before: Totals) -> str:
    if not math.isfinite(before.worst) or before.worst >= FAILS:
        return f"The start is the reason: a total beyond {FAILS:g} does not train."
    if before.worst >= RISKY:
        return f"The start is a likely reason: a total beyond {RISKY:g} is risky."
    return f"The start alone should not stop it (totals below {RISKY:g}); the plan still brings it to the edge."


def _left(after: Totals, budget: float, skip: bool) -> str:
    """No gain does it: what is left, and what would."""
    which = "angle" if abs(after.angle) >= abs(after.gradient) else "gradient"
    why = (
        "the gains of these matrices do not move it, the multipliers of the skips would; where those are below one and "
        "the MLP is gated, smaller branches only let the stream die"
        if skip
        else "without a skip this activation merges inputs whatever the gain: add a skip, or an odd one such as tanh"
        if which == "angle"
        else "no common gain of the matrices moves it"
    )
    return f"NO: no gain brings both totals within {budget:g}. What is left is the {which} ({after}); {why}."
