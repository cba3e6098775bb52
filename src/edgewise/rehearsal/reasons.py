"""Why a rate is too large: which quantity left its range first, at which step.

Limits are relative (to the loss at the start, the best fall of the loss, the separation and outputs at the start), so
that the units of a loss do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgewise.rehearsal.rate import Moment, Rehearsal
from edgewise.rehearsal.walk import NOISE

NOT_FINITE = "the loss was not finite"
ALIKE = "the tokens became alike"
OUTPUTS = "the outputs grew"
ROSE = "the loss rose"
BEHIND = "it learned far less than a smaller rate"

SEPARATION = 0.02  # below this share of the separation at the start tokens count as alike
GROWTH = 30.0  # outputs this many times those at the start and at the best rate
RISE = 0.25  # of the loss at the start
SHARE = 0.75  # of the fall of the loss at the best rate


def with_reasons(rehearsals: Sequence[Rehearsal], best: Rehearsal | None, start: Moment) -> list[Rehearsal]:
    """Every rehearsal with the reason why its rate is too large, where it is; no rate up to the best one is."""
    return [_judged(rehearsal, best, start) for rehearsal in rehearsals]


def _judged(rehearsal: Rehearsal, best: Rehearsal | None, start: Moment) -> Rehearsal:
    if best is not None and rehearsal.rate <= best.rate:
        return replace(rehearsal, reason=None, left_at=None)
    step, reason = next(_departures(rehearsal, best, start), (None, None))
    if reason is None and best is not None and _share(rehearsal, best, start) < SHARE:
        step, reason = len(rehearsal.losses), BEHIND
    return replace(rehearsal, reason=reason, left_at=step)


def _share(rehearsal: Rehearsal, best: Rehearsal, start: Moment) -> float:
    """The fall of the loss as a share of the best one's; 1 where that one hardly fell."""
    most = start.loss - best.loss
    return (start.loss - rehearsal.loss) / most if most > NOISE * abs(start.loss) else 1.0


def _departures(rehearsal: Rehearsal, best: Rehearsal | None, start: Moment) -> Iterator[tuple[int, str]]:
    """(step, reason) in the order in which they were seen, of what was still so at the end."""
    lasting = set(_of_moment(rehearsal.moments[-1], best, start)) if rehearsal.moments else set()
    seen = [
        (m.step, 0, name) for m in rehearsal.moments for name in _of_moment(m, best, start) if name in lasting
    ]
    seen += [(k + 1, 1, NOT_FINITE) for k, value in enumerate(rehearsal.losses) if not math.isfinite(value)]
    if not math.isfinite(rehearsal.loss):
        seen.append((len(rehearsal.losses), 1, NOT_FINITE))
    yield from ((step, name) for step, _, name in sorted(seen))


def _of_moment(moment: Moment, best: Rehearsal | None, start: Moment) -> Iterator[str]:
    before, after = start.separation, moment.separation
    if before is not None and after is not None and after < SEPARATION * before:
        yield ALIKE
    outputs = max(start.output, best.moments[-1].output if best is not None and best.moments else 0.0)
    if math.isfinite(outputs) and moment.output > GROWTH * outputs:
        yield OUTPUTS
    if moment.loss > (1 + RISE) * start.loss:
        yield ROSE
