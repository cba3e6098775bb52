"""A plan by measurement: the roots of the two measured totals over one gain, or two, for any repeated stack.

With a skip the gain is that of the matrices (or norms) that write into the stream: the largest at which neither total
exceeds the budget (both vanish together only as branches do). Without one it is the gain of all matrices, drawn
orthogonal (delta-orthogonal filters [Xiao 2018]): where the gradient total vanishes; and where the activation still
merges inputs, drawn in mirrored pairs, which makes ReLU and its kin linear at the start [Balduzzi 2017].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from edgewise.repair.anatomy import Anatomy, anatomy
from edgewise.repair.diagnosis import diagnose
from edgewise.repair.draw import drawn
from edgewise.repair.layers import Kept, Layers, copied, matrix_changes, norm_changes, repeated, zero_biases
from edgewise.repair.meter import BEYOND, Meter
from edgewise.repair.plan import TOLERANCE, Change, Plan, Totals
from edgewise.repair.schemes import SCHEMES, Matrix, Scheme
from edgewise.repair.search import Search, largest_within, zero_of_gradient

MOST = 30  # forward-backward passes a plan may take
AGAIN = 2  # more draws at the gains found, so that the stated totals are means of three networks
FAR = 5.0  # a total that no scatter explains
FAIR = 9  # passes that a lever gets before the next one is thought of
DIES = -7.0  # log of the last mean square over the first: below, the epsilon of a norm decides what is measured


@dataclass(frozen=True)
class Lever:
    """Parameters that one gain multiplies together; `changes` are those at gain one."""

    name: str
    changes: tuple[Change, ...]
    gain: float = 1.0

    def at(self, gain: float) -> Lever:
        return replace(self, gain=gain)

    def shift(self, name: str) -> float:
        """What scaling adds to stored values that the module adds an offset o to: (v + o) gain - o = v gain + this."""
        return self.offsets.get(name, 0.0) * (self.gain - 1)

    @cached_property
    def offsets(self) -> dict[str, float]:
        return {change.projection.parameter: change.offset for change in self.changes if change.offset}

    def final(self) -> tuple[Change, ...]:
        return tuple(replace(change, new_std=change.new_std * self.gain) for change in self.changes)


def measured_plan(
    model: nn.Module, batch: Any, kept: Kept, budget: float, draw: str | None = None, spent: int = 0
) -> Plan:
    """Measure, search, state: at most 30 passes (with those already spent), which the plan counts."""
    layers = repeated(model)
    found = anatomy(model, batch, layers)
    meter = Meter(model, batch, layers, not found.normed, spent)
    before = meter.read()
    same = copied(model, layers, found.matrices)
    notes = [f"{found.runs} runs of one layer found its branches."] if found.runs else []
    if same:
        notes.append(f"{len(same)} matrices were copies of those of the first layer; all layers get their own.")
    width = _width(meter)
    frame: dict[str, Any] = {"goal": "critical", "before": before, "depth": layers.depth, "width": width}
    frame["budget"] = budget
    if before.worst <= budget + TOLERANCE and not same:
        text, findings = diagnose(before, None, budget, changed=False)
        return Plan(
            **frame, changes=(), expected=before, source="measurement", passes=meter.passes, diagnosis=text,
            findings=findings, notes=tuple(notes),
        )  # fmt: skip
    fixed = (*_redrawn(model, layers, found, kept, same, draw), *zero_biases(model, layers, found.biases, kept))
    levers = _levers(model, layers, found, kept, draw)
    chosen, expected = _solve(meter, fixed, levers, found, budget)
    changes = _merge(fixed, [change for lever in chosen for change in lever.final()])
    text, findings = diagnose(before, expected, budget, changed=bool(changes), skip=found.skip)
    return Plan(
        **frame, changes=changes, expected=expected, source=f"measurement ({meter.passes} forward-backward passes)",
        passes=meter.passes, reached=expected.worst <= budget + TOLERANCE, diagnosis=text, findings=findings,
        notes=(*notes, *kept.notes),
    )  # fmt: skip


def measured_scheme(model: nn.Module, batch: Any, kept: Kept, budget: float, goal: str, spent: int = 0) -> Plan:
    """A published scheme on a stack nobody has translated; its totals are the means of trial draws."""
    layers, scheme = repeated(model), SCHEMES[goal]
    found = anatomy(model, batch, layers)
    meter = Meter(model, batch, layers, not found.normed, spent)
    before = meter.read()
    made = matrix_changes(model, layers, found.matrices, kept, scheme.draw, scheme.reason)
    changes = [_by_scheme(change, scheme, layers.depth, found) for change in made]
    changes += zero_biases(model, layers, found.biases, kept) if scheme.zero_biases else ()
    trial = _Trial(meter, changes)
    expected = _mean([trial.read([], seed) for seed in range(1 + AGAIN)])
    text, findings = diagnose(before, expected, budget, changed=True, skip=found.skip)
    return Plan(
        goal, tuple(changes), before, expected, layers.depth, _width(meter), budget, "measurement", meter.passes,
        expected.worst <= budget + TOLERANCE, text, (scheme.note(layers.depth),) if scheme.note(layers.depth) else (),
        findings,
    )  # fmt: skip


def _by_scheme(change: Change, scheme: Scheme, depth: int, found: Anatomy) -> Change:
    place = change.projection
    path = f"{place.role}.weight"
    writes = path in found.writers or place.role in found.writers
    scores = found.skip and not writes and path not in found.inner and place.role not in found.inner
    return replace(change, new_std=scheme.std(Matrix(place.fan_in, place.fan_out, depth, writes, scores)))


def _width(meter: Meter) -> int:
    last = meter.streams[-1]
    return int(last.shape[1] if last.ndim > 3 else last.shape[-1])


def _redrawn(
    model: nn.Module, layers: Layers, found: Anatomy, kept: Kept, same: Sequence[str], draw: str | None
) -> tuple[Change, ...]:
    """What is drawn anew whatever the gains: layers without a skip, and layers that are copies of one another.

    A product of random matrices keeps the mean square and loses its small singular values, of orthogonal ones neither.
    """
    if not found.skip:
        return _alone(model, layers, found, kept, draw)
    if not same:
        return ()
    reason = "its own values: the layers were copies of one another"
    return matrix_changes(model, layers, found.matrices, kept, "normal", reason)


def _levers(model: nn.Module, layers: Layers, found: Anatomy, kept: Kept, draw: str | None) -> list[Lever]:
    """In the order in which they are tried; what has no parameters left is left out."""
    made = (_with_skip if found.skip else _without_skip)(model, layers, found, kept, draw)
    return [lever for lever in made if lever.changes]


def _with_skip(model: nn.Module, layers: Layers, found: Anatomy, kept: Kept, draw: str | None) -> list[Lever]:
    kind = draw or "normal"
    reason = "writes a branch into the stream: scaled so that the whole depth stays within the budget"
    ends = {path: found.offsets[path] for path in found.writers if path in found.offsets}
    matrices = [path for path in found.writers if path not in ends]
    wanted = matrix_changes(model, layers, matrices, kept, kind, reason)
    writers = Lever("writers", (*wanted, *norm_changes(model, layers, ends, kept, reason)))
    if found.undone:
        return [writers]
    reason = "second gain: how strongly the branch's inside is driven"
    inner = Lever("inner matrices", matrix_changes(model, layers, found.inner, kept, kind, reason))
    return [writers, _norm_gains(model, layers, found, kept), inner]


def _without_skip(model: nn.Module, layers: Layers, found: Anatomy, kept: Kept, draw: str | None) -> list[Lever]:
    made = [Lever("matrices", _alone(model, layers, found, kept, draw)), _norm_gains(model, layers, found, kept)]
    if found.normed:
        made.reverse()  # a norm undoes the gain of the matrix before it
    if draw is not None:
        return made  # it was asked for
    reason = "no skip, and an activation that merges inputs: mirrored pairs of units are linear at the start"
    pairs = matrix_changes(model, layers, found.matrices, kept, "mirrored", reason, unit=True)
    return [*made, Lever("mirrored matrices", pairs)]


def _alone(model: nn.Module, layers: Layers, found: Anatomy, kept: Kept, draw: str | None) -> tuple[Change, ...]:
    """All matrices at gain one; before norms in mirrored pairs, whose mean is zero, so that a norm takes none away."""
    kind = draw or ("mirrored" if found.normed else "orthogonal")
    reason = "no skip: one common gain where the gradient keeps its size, singular values all equal"
    return matrix_changes(model, layers, found.matrices, kept, kind, reason, unit=True)


def _norm_gains(model: nn.Module, layers: Layers, found: Anatomy, kept: Kept) -> Lever:
    reason = "sets the size of what follows the norm, which the matrices cannot"
    return Lever("norm gains", norm_changes(model, layers, found.offsets, kept, reason))


def _solve(
    meter: Meter, fixed: Sequence[Change], levers: Sequence[Lever], found: Anatomy, budget: float
) -> tuple[list[Lever], Totals]:
    """One lever after the other, each at its best while the earlier ones stay, until the budget is kept.

    One draw decides where to look, the mean of several whether it is kept: single networks scatter.
    """
    chosen: list[Lever] = []
    trial = _Trial(meter, fixed)
    enough = budget + TOLERANCE if found.skip else min(budget, TOLERANCE)  # a whole network's signal hangs on it
    best = _mean_of(trial, chosen, trial.read(chosen))
    for index, lever in enumerate(levers):
        left = MOST - AGAIN - meter.passes
        most = min(left, max(left // (len(levers) - index), FAIR))
        if best.worst <= enough or most < 3:
            break
        search = Search(partial(trial.along, lever, list(chosen)), _depth(meter), most)
        x = (largest_within if found.skip else zero_of_gradient)(search, budget)
        wanted = [*chosen, lever.at(math.exp(x))]
        reached = _mean_of(trial, wanted, search.at(x))
        if reached.worst < best.worst - TOLERANCE / 5:
            chosen, best = wanted, reached
    return chosen, best


def _mean_of(trial: _Trial, levers: Sequence[Lever], first: Totals) -> Totals:
    """The mean of this draw and of some more, as many as the passes allow; one that is far off needs no more."""
    if not first.worst < FAR:
        return first
    more = range(1, 1 + min(AGAIN, MOST - trial.meter.passes))
    return _mean([first, *(trial.read(levers, seed) for seed in more)])


def _depth(meter: Meter) -> int:
    return max(len(meter.streams) - 1, 1)


def _mean(found: Sequence[Totals]) -> Totals:
    count = len(found)
    return replace(
        found[0], angle=sum(t.angle for t in found) / count, gradient=sum(t.gradient for t in found) / count
    )


class _Trial:
    """Totals of the model with levers at some gains; draws at gain one are made once per seed and multiplied."""

    def __init__(self, meter: Meter, fixed: Sequence[Change]) -> None:
        self.meter, self.fixed = meter, fixed
        self.drawn: dict[tuple[str, int], dict[str, torch.Tensor]] = {}

    def read(self, levers: Sequence[Lever], seed: int = 0) -> Totals:
        replaced = dict(self._drawn("fixed", self.fixed, seed))
        for lever in levers:
            drawn = self._drawn(lever.name, lever.changes, seed)
            replaced |= {name: values * lever.gain + lever.shift(name) for name, values in drawn.items()}
        cast = {name: values.to(self.meter.model.get_parameter(name)) for name, values in replaced.items()}
        found = self.meter.read(cast, seed)
        return replace(found, gradient=-BEYOND) if not found.raw and self.meter.size < DIES else found

    def along(self, lever: Lever, others: Sequence[Lever], x: float) -> Totals:
        """The totals at log gain x of one lever, the others as they are."""
        return self.read([*others, lever.at(math.exp(x))])

    def _drawn(self, name: str, changes: Sequence[Change], seed: int) -> dict[str, torch.Tensor]:
        if (name, seed) not in self.drawn:
            self.drawn = {key: value for key, value in self.drawn.items() if key[1] == seed}
            self.drawn[name, seed] = dict(drawn(self.meter.model, changes, seed))
        return self.drawn[name, seed]


def _merge(fixed: Sequence[Change], moved: Sequence[Change]) -> tuple[Change, ...]:
    """One change per parameter: what a lever moves replaces what would only be drawn anew; what stays is left out."""
    by_name = {change.projection.parameter: change for change in (*fixed, *moved)}
    return tuple(by_name.values())
