"""A plan by measurement: the roots of the two measured totals over one gain, or two, for any repeated stack.

With a skip the gain is that of the matrices (or norms) that write into the stream: the largest at which neither total
exceeds the limit (both vanish together only as branches do). Without one it is the gain of all matrices, drawn
orthogonal (delta-orthogonal filters [Xiao 2018]): where the gradient total vanishes; and where the activation still
merges inputs, drawn in mirrored pairs, which makes ReLU and its kin linear at the start [Balduzzi 2017].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import nn

from edgewise.repair.layers import (
    Anatomy,
    Exclusions,
    LayerStack,
    anatomy_of,
    copies_in_words,
    copies_of_first,
    matrix_changes,
    norm_changes,
    zero_biases,
)
from edgewise.repair.meter import BEYOND, Meter
from edgewise.repair.new_values import SCHEMES, MatrixSize, new_values
from edgewise.repair.plan import TOLERANCE, Change, Plan, TotalChanges, diagnose

CLOSE = 0.05  # a total this near to its target is there
STEP = math.log(4.0)  # the most that log gain moves at once
# And the farthest it goes without a skip: beyond, the epsilon of a norm would be exploited.
REACH = math.log(16.0)


@dataclass
class GainSearch:
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


def largest_within(search: GainSearch, limit: float, guess: float = 0.0, start: float = 0.0) -> float:
    """The largest log gain up to `start` whose worst total is within the limit: log worst against x is near a line.

    Branches of size s change the totals by O(s^2), so that the slope is 2 to begin with and a secant's afterwards.
    """
    x, slope = min(guess, start), 2.0
    within, before = None, None
    while search.left > 0:
        worst = max(search.at(x).worst, 1e-12)
        if worst <= limit:
            within = x if within is None else max(within, x)
            if x == start or worst >= 0.9 * limit:
                return within
        distance = math.log(0.96 * limit / worst)
        if before is not None and x != before[0]:
            slope = (math.log(worst) - before[1]) / (x - before[0])
        slope = min(max(slope, 0.5), 8.0)
        before = (x, math.log(worst))
        step = max(-STEP, min(STEP, distance / slope))
        if x + step < start - math.log(2.0**14) or abs(step) < 1e-3:
            break
        x = min(start, x + step)
    return search.best if within is None else within


def zero_of_gradient(search: GainSearch, limit: float, start: float = 0.0) -> float:
    """The log gain at which the gradient total vanishes, then, if the angle is beyond the limit, the best compromise.

    A homogeneous layer changes log |g|^2 by 2 log gain, so that the first slope is 2 depth.
    """
    root = _secant(search, lambda t: t.gradient, start, 2.0 * search.depth)
    if search.points and search.at(root).worst > limit and search.left > 2:
        _secant(search, lambda t: t.angle + t.gradient, root, 2.0 * search.depth, most=search.left // 2)
    best = search.best  # a compromise that is none leaves the gradient at rest
    return best if search.at(best).worst <= limit < search.at(root).worst else root


def _secant(
    search: GainSearch,
    quantity: Callable[[TotalChanges], float],
    x: float,
    slope: float,
    most: int | None = None,
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


@dataclass(frozen=True)
class Lever:
    """Parameters that one gain multiplies together; `changes` are those at gain one."""

    name: str
    changes: tuple[Change, ...]
    gain: float = 1.0

    def at(self, gain: float) -> Lever:
        return replace(self, gain=gain)

    def shift(self, name: str) -> float:
        """Return what scaling adds to stored values with an offset o: (v + o) gain - o = v gain + this."""
        return self.offsets.get(name, 0.0) * (self.gain - 1)

    @cached_property
    def offsets(self) -> dict[str, float]:
        return {change.projection.parameter: change.offset for change in self.changes if change.offset}

    def final(self) -> tuple[Change, ...]:
        """The changes at this gain."""
        return tuple(replace(change, new_std=change.new_std * self.gain) for change in self.changes)


def merge(first: Sequence[Change], second: Sequence[Change]) -> tuple[Change, ...]:
    """One change per parameter, or per layer of one that holds all: the second replaces the first."""
    places = {(c.projection.parameter, c.projection.index): c for c in (*first, *second)}
    return tuple(places.values())


MOST = 30  # forward-backward passes a plan may take
AGAIN = 2  # more draws at the chosen gains, so that the expected totals are means of three networks
FAR = 5.0  # a total that no scatter explains
FAIR = 9  # passes that a lever gets before the next one is tried
# Log of the last mean square over the first: below, the epsilon of a norm decides what is measured.
DIES = -7.0


@dataclass(frozen=True, eq=False)
class _Subject:
    """A model with its layers, their anatomy, a meter on them and the totals it read from the model as it is."""

    model: nn.Module
    layers: LayerStack
    exclusions: Exclusions
    anatomy: Anatomy
    meter: Meter
    before: TotalChanges

    @classmethod
    def of(
        cls, model: nn.Module, batch: object, layers: LayerStack, exclusions: Exclusions, spent: int
    ) -> _Subject:
        anatomy = anatomy_of(model, batch, layers)
        meter = Meter(model, batch, layers, not anatomy.has_norms, spent)
        return cls(model, layers, exclusions, anatomy, meter, meter.read())

    def matrices(
        self, paths: Sequence[str], draw: str, reason: str, unit: bool = False
    ) -> tuple[Change, ...]:
        return matrix_changes(self.model, self.layers, paths, self.exclusions, draw, reason, unit)

    def norms(self, offsets: Mapping[str, float], reason: str) -> tuple[Change, ...]:
        return norm_changes(self.model, self.layers, offsets, self.exclusions, reason)

    def biases(self) -> tuple[Change, ...]:
        return zero_biases(self.model, self.layers, self.anatomy.biases, self.exclusions)

    def levers(self, draw: str | None) -> list[Lever]:
        """In the order in which they are tried, without those that have no parameters left."""
        reason = "sets the size of what follows the norm, which the matrices cannot"
        norm_gains = Lever("norm gains", self.norms(self.anatomy.offsets, reason))
        levers = self._with_skip(norm_gains, draw) if self.anatomy.skip else self._without(norm_gains, draw)
        return [lever for lever in levers if lever.changes]

    def _with_skip(self, norm_gains: Lever, draw: str | None) -> list[Lever]:
        anatomy, kind = self.anatomy, draw or "normal"
        reason = "writes a branch into the stream: scaled so that the whole depth stays within the limit"
        ends = {path: anatomy.offsets[path] for path in anatomy.writers if path in anatomy.offsets}
        matrices = self.matrices([path for path in anatomy.writers if path not in ends], kind, reason)
        writers = Lever("writers", (*matrices, *self.norms(ends, reason)))
        if anatomy.undone:
            return [writers]
        reason = "second gain: how strongly the branch's inside is driven"
        return [writers, norm_gains, Lever("inner matrices", self.matrices(anatomy.inner, kind, reason))]

    def _without(self, norm_gains: Lever, draw: str | None) -> list[Lever]:
        levers = [Lever("matrices", self.common_gain(draw)), norm_gains]
        if self.anatomy.has_norms:
            levers.reverse()  # a norm undoes the gain of the matrix before it
        if draw is not None:
            return levers  # mirrored pairs would be another draw than the one asked for
        reason = (
            "no skip, and an activation that merges inputs: mirrored pairs of units are linear at the start"
        )
        pairs = self.matrices(self.anatomy.matrices, "mirrored", reason, unit=True)
        return [*levers, Lever("mirrored matrices", pairs)]

    def common_gain(self, draw: str | None) -> tuple[Change, ...]:
        """All matrices at gain one; before norms in mirrored pairs, whose mean is zero: a norm takes none away."""
        kind = draw or ("mirrored" if self.anatomy.has_norms else "orthogonal")
        reason = "no skip: one common gain where the gradient keeps its size, singular values all equal"
        return self.matrices(self.anatomy.matrices, kind, reason, unit=True)

    def redraws(self, copies: Sequence[str], draw: str | None) -> tuple[Change, ...]:
        """List what is drawn again whatever the gains: layers without a skip, and layers that are copies of others.

        A product of random matrices keeps the mean square and loses its small singular values, of orthogonal ones
        neither.
        """
        if not self.anatomy.skip:
            return self.common_gain(draw)
        reason = "its own values: the layers were copies of one another"
        return self.matrices(self.anatomy.matrices, "normal", reason) if copies else ()

    def plan(
        self,
        goal: str,
        limit: float,
        changes: Sequence[Change],
        expected: TotalChanges,
        source: str,
        notes: Sequence[str],
    ) -> Plan:
        text, findings = diagnose(self.before, expected, limit, changed=bool(changes), skip=self.anatomy.skip)
        return Plan(
            goal,
            tuple(changes),
            self.before,
            expected,
            self.layers.depth,
            self.meter.width,
            limit,
            source,
            self.meter.passes,
            expected.worst <= limit + TOLERANCE,
            text,
            tuple(notes),
            findings,
            measured=self.meter.measured,
        )


def plan_by_measurement(
    model: nn.Module,
    batch: object,
    layers: LayerStack,
    exclusions: Exclusions,
    limit: float,
    draw: str | None = None,
    spent: int = 0,
) -> Plan:
    """Measure, search, and say what to expect: at most 30 passes (with those already spent), which the plan counts."""
    subject = _Subject.of(model, batch, layers, exclusions, spent)
    anatomy = subject.anatomy
    copies = copies_of_first(model, layers, anatomy.matrices)
    notes = [f"{anatomy.runs} runs of one layer told its branches apart."] if anatomy.runs else []
    if copies:
        notes.append(copies_in_words(copies, exclusions))
    if subject.before.worst <= limit + TOLERANCE and not copies:
        return subject.plan("critical", limit, (), subject.before, "measurement", notes)
    fixed = (*subject.redraws(copies, draw), *subject.biases())
    choice, expected = _solve(subject.meter, fixed, subject.levers(draw), anatomy, limit)
    changes = merge(fixed, [change for lever in choice for change in lever.final()])
    source = f"measurement ({subject.meter.passes} forward-backward passes)"
    return subject.plan("critical", limit, changes, expected, source, notes)


def scheme_by_measurement(
    model: nn.Module,
    batch: object,
    layers: LayerStack,
    exclusions: Exclusions,
    limit: float,
    goal: str,
    spent: int = 0,
) -> Plan:
    """A published scheme on a stack that no adapter recognizes; its totals are the means of trial draws."""
    subject, scheme = _Subject.of(model, batch, layers, exclusions, spent), SCHEMES[goal]
    anatomy, changes = subject.anatomy, []
    for change in subject.matrices(subject.anatomy.matrices, scheme.draw, scheme.reason):
        place = change.projection
        paths = {f"{place.role}.weight", place.role}
        writes = bool(paths & {*anatomy.writers})
        scores = anatomy.skip and not writes and not paths & {*anatomy.inner}
        size = MatrixSize(place.fan_in, place.fan_out, layers.depth, writes, scores)
        changes.append(replace(change, new_std=scheme.std(size)))
    changes += subject.biases() if scheme.zero_biases else ()
    trial = _Trial(subject.meter, changes)
    expected = mean_of([trial.read([], seed) for seed in range(1 + AGAIN)])
    note = scheme.note(layers.depth)
    return subject.plan(goal, limit, changes, expected, "measurement", (note,) if note else ())


def _solve(
    meter: Meter, fixed: Sequence[Change], levers: Sequence[Lever], anatomy: Anatomy, limit: float
) -> tuple[list[Lever], TotalChanges]:
    """One lever after the other, each at its best while the earlier ones stay, until both totals fit the limit.

    One draw decides where to look, the mean of several whether a lever stays: single networks scatter.
    """
    choice: list[Lever] = []
    trial = _Trial(meter, fixed)
    # A whole network's signal hangs on it.
    enough = limit + TOLERANCE if anatomy.skip else min(limit, TOLERANCE)
    best = _mean_of_draws(trial, choice, trial.read(choice))
    for index, lever in enumerate(levers):
        left = MOST - AGAIN - meter.passes
        most = min(left, max(left // (len(levers) - index), FAIR))
        if best.worst <= enough or most < 3:
            break
        search = GainSearch(partial(trial.along, lever, list(choice)), meter.depth, most)
        x = (largest_within if anatomy.skip else zero_of_gradient)(search, limit)
        longer = [*choice, lever.at(math.exp(x))]
        reached = _mean_of_draws(trial, longer, search.at(x))
        if reached.worst < best.worst - TOLERANCE / 5:
            choice, best = longer, reached
    return choice, best


def _mean_of_draws(trial: _Trial, levers: Sequence[Lever], first: TotalChanges) -> TotalChanges:
    """The mean of this draw and of some more, as many as the passes allow; one that is far off needs no more."""
    if not first.worst < FAR:
        return first
    more = range(1, 1 + min(AGAIN, MOST - trial.meter.passes))
    return mean_of([first, *(trial.read(levers, seed) for seed in more)])


def mean_of(draws: Sequence[TotalChanges]) -> TotalChanges:
    """The mean totals of several networks."""
    count = len(draws)
    angle, gradient = (sum(getattr(draw, name) for draw in draws) / count for name in ("angle", "gradient"))
    return replace(draws[0], angle=angle, gradient=gradient, exponents=None)


class _Trial:
    """Totals of the model with levers at some gains; draws at gain one happen once per seed and are multiplied."""

    def __init__(self, meter: Meter, fixed: Sequence[Change]) -> None:
        self.meter, self.fixed = meter, fixed
        self.draws: dict[tuple[str, int], dict[str, torch.Tensor]] = {}

    def read(self, levers: Sequence[Lever], seed: int = 0) -> TotalChanges:
        replacements = dict(self._draw("fixed", self.fixed, seed))
        for lever in levers:
            unit = self._draw(lever.name, lever.changes, seed)
            replacements |= {name: values * lever.gain + lever.shift(name) for name, values in unit.items()}
        cast = {
            name: values.to(self.meter.model.get_parameter(name)) for name, values in replacements.items()
        }
        totals = self.meter.read(cast, seed)
        return replace(totals, gradient=-BEYOND) if not totals.raw and self.meter.size < DIES else totals

    def along(self, lever: Lever, others: Sequence[Lever], x: float) -> TotalChanges:
        """The totals at log gain x of one lever, the others as they are."""
        return self.read([*others, lever.at(math.exp(x))])

    def _draw(self, name: str, changes: Sequence[Change], seed: int) -> dict[str, torch.Tensor]:
        if (name, seed) not in self.draws:
            self.draws = {key: value for key, value in self.draws.items() if key[1] == seed}
            self.draws[name, seed] = dict(new_values(self.meter.model, changes, seed))
        return self.draws[name, seed]
