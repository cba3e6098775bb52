"""A plan by measurement: the roots of the two measured totals over one gain, or two, for any repeated stack.

With a skip the gain is that of the matrices that write into the stream: the largest at which neither total exceeds
the budget (both vanish together only as branches do). Without one it is the gain of all matrices, drawn orthogonal
(delta-orthogonal filters [Xiao 2018]): where the gradient total vanishes, or the larger of the two is smallest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from edgewise.critical.plan.constraints import Kept
from edgewise.critical.plan.diagnosis import diagnose
from edgewise.critical.plan.drawing import drawn
from edgewise.critical.plan.goals import SCHEMES, Matrix, Scheme
from edgewise.critical.plan.levers import Anatomy, anatomy
from edgewise.critical.plan.meter import Meter
from edgewise.critical.plan.plan import TOLERANCE, Change, Plan, Totals
from edgewise.critical.plan.search import Search, largest_within, zero_of_gradient
from edgewise.critical.plan.stack import Layers, repeated
from edgewise.critical.plan.stack_matrices import copied, matrix_changes, norm_changes, zero_biases

MOST = 30  # forward-backward passes a plan may take
AGAIN = 2  # more draws at the gains found, so that the stated totals are means of three networks


@dataclass(frozen=True)
class Lever:
    """Parameters that one gain multiplies together; `changes` are those at gain one."""

    name: str
    changes: tuple[Change, ...]
    gain: float = 1.0

    def at(self, gain: float) -> Lever:
        return replace(self, gain=gain)

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
    fixed = (*_redrawn(model, layers, found, kept, same), *zero_biases(model, layers, found.biases, kept))
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
    model: nn.Module, layers: Layers, found: Anatomy, kept: Kept, same: Sequence[str]
) -> tuple[Change, ...]:
    """Layers that are copies of one another get values of their own, at the standard deviation they have."""
    if not same:
        return ()
    reason = "its own values: the layers were copies of one another"
    return matrix_changes(model, layers, found.matrices, kept, "normal", reason)


def _levers(model: nn.Module, layers: Layers, found: Anatomy, kept: Kept, draw: str | None) -> list[Lever]:
    """In the order in which they are tried; what has no parameters left is left out."""
    if found.skip:
        reason = "writes a branch into the stream: scaled so that the whole depth stays within the budget"
        made = [Lever("writers", matrix_changes(model, layers, found.writers, kept, draw or "normal", reason))]
    else:
        reason = "no skip: one common gain where the gradient keeps its size, singular values all equal"
        wanted = matrix_changes(model, layers, found.matrices, kept, draw or "orthogonal", reason, unit=True)
        made = [Lever("matrices", wanted)]
    reason = "sets the size of what follows the norm, which the matrices cannot"
    made.append(Lever("norm gains", norm_changes(model, layers, found.norm_gains, kept, reason)))
    if found.normed and not found.skip:
        made.reverse()  # a norm undoes the gain of the matrix before it
    if found.skip:
        reason = "second gain: how strongly the branch's inside is driven"
        made.append(Lever("inner matrices", matrix_changes(model, layers, found.inner, kept, draw or "normal", reason)))
    return [lever for lever in made if lever.changes]


def _solve(
    meter: Meter, fixed: Sequence[Change], levers: Sequence[Lever], found: Anatomy, budget: float
) -> tuple[list[Lever], Totals]:
    """One lever after the other, each at its best while the earlier ones stay, until the budget is kept."""
    chosen: list[Lever] = []
    trial = _Trial(meter, fixed)
    best = trial.read(chosen)
    for lever in levers:
        most = MOST - AGAIN - meter.passes
        if best.worst <= budget or most < 3:
            break
        search = Search(partial(trial.along, lever, list(chosen)), _depth(meter), most)
        x = (largest_within if found.skip else zero_of_gradient)(search, budget)
        if search.at(x).worst < best.worst - TOLERANCE / 5:
            chosen, best = [*chosen, lever.at(math.exp(x))], search.at(x)
    again = [best, *(trial.read(chosen, seed) for seed in range(1, 1 + min(AGAIN, MOST - meter.passes)))]
    return chosen, _mean(again)


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
            replaced |= {name: values * lever.gain for name, values in drawn.items()}
        cast = {name: values.to(self.meter.model.get_parameter(name)) for name, values in replaced.items()}
        return self.meter.read(cast, seed)

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
