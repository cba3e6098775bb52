"""Root finding on two totals with few evaluations: each costs a pass through the model (or a run of the theory)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from edgewise.repair.plan import TotalChanges

CLOSE = 0.05  # a total this near to its target is there
STEP = math.log(4.0)  # the most that log gain moves at once
REACH = math.log(
    16.0
)  # and the farthest it goes without a skip: beyond, the epsilon of a norm would be exploited


@dataclass
class Search:
    """Total changes against log gain; every evaluated point is remembered, and no more than `most` are evaluated."""

    totals: Callable[[float], TotalChanges]
    depth: int
    most: int
    points: dict[float, TotalChanges] = field(default_factory=dict)

    def at(self, x: float) -> TotalChanges:
        if x not in self.points:
            self.points[x] = self.totals(x)
        return self.points[x]

    @property
    def left(self) -> int:
        return self.most - len(self.points)

    @property
    def best(self) -> float:
        """The log gain at which the larger total is smallest; the larger gain of two equal ones."""
        return min(self.points, key=lambda x: (round(self.points[x].worst, 6), -x))


def largest_within(search: Search, budget: float, guess: float = 0.0, start: float = 0.0) -> float:
    """The largest log gain up to `start` whose worst total is within the budget: log worst against x is near a line.

    Branches of size s change the totals by O(s^2), so that the slope is 2 to begin with and a secant's afterwards.
    """
    x, slope = min(guess, start), 2.0
    within, before = None, None
    while search.left > 0:
        worst = max(search.at(x).worst, 1e-12)
        if worst <= budget:
            within = x if within is None else max(within, x)
            if x == start or worst >= 0.9 * budget:
                return within
        distance = math.log(0.96 * budget / worst)
        if before is not None and x != before[0]:
            slope = (math.log(worst) - before[1]) / (x - before[0])
        slope = min(max(slope, 0.5), 8.0)
        before = (x, math.log(worst))
        step = max(-STEP, min(STEP, distance / slope))
        if x + step < start - math.log(2.0**14) or abs(step) < 1e-3:
            break
        x = min(start, x + step)
    return search.best if within is None else within


def zero_of_gradient(search: Search, budget: float, start: float = 0.0) -> float:
    """The log gain at which the gradient total vanishes, then, if the angle is beyond the budget, the best compromise.

    A homogeneous layer changes log |g|^2 by 2 log gain, so that the first slope is 2 depth.
    """
    root = _secant(search, lambda t: t.gradient, start, 2.0 * search.depth)
    if search.points and search.at(root).worst > budget and search.left > 2:
        _secant(search, lambda t: t.angle + t.gradient, root, 2.0 * search.depth, most=search.left // 2)
    best = search.best  # a compromise that is none leaves the gradient at rest
    return best if search.at(best).worst <= budget < search.at(root).worst else root


def _secant(
    search: Search, quantity: Callable[[TotalChanges], float], x: float, slope: float, most: int | None = None
) -> float:
    """Secant steps, inside the bracket once there is one; returns the best point on the way."""
    low, high, before = -math.inf, math.inf, None
    values: dict[float, float] = {}
    for _ in range(search.left if most is None else most):
        value = values[x] = quantity(search.at(x))
        if abs(value) < CLOSE:
            break
        low, high = (max(low, x), high) if value < 0 else (low, min(high, x))
        if before is not None and x != before[0] and value != before[1]:
            slope = (value - before[1]) / (x - before[0])
        before = (x, value)
        step = -value / slope if slope > 0 else -math.copysign(STEP / 4, value)
        following = x + max(-STEP, min(STEP, step))
        if not low < following < high:
            following = (low + high) / 2 if math.isfinite(low + high) else x - math.copysign(STEP / 4, value)
        following = max(-REACH, min(REACH, following))
        if abs(following - x) < 1e-7:
            break
        x = following
    return min(values, key=lambda at: abs(values[at]))
