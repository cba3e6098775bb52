"""Levers: parameters of all layers that one gain multiplies together, in the order in which a plan tries them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from edgewise.repair.anatomy import Anatomy
from edgewise.repair.layers import Exclusions, Layers, matrix_changes, norm_changes
from edgewise.repair.plan import Change


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
        """The changes at this gain."""
        return tuple(replace(change, new_std=change.new_std * self.gain) for change in self.changes)


def levers_of(
    model: nn.Module, layers: Layers, anatomy: Anatomy, exclusions: Exclusions, draw: str | None
) -> list[Lever]:
    """In the order in which they are tried, without those that have no parameters left."""
    levers = (_with_skip if anatomy.skip else _without_skip)(model, layers, anatomy, exclusions, draw)
    return [lever for lever in levers if lever.changes]


def _with_skip(
    model: nn.Module, layers: Layers, anatomy: Anatomy, exclusions: Exclusions, draw: str | None
) -> list[Lever]:
    kind = draw or "normal"
    reason = "writes a branch into the stream: scaled so that the whole depth stays within the budget"
    ends = {path: anatomy.offsets[path] for path in anatomy.writers if path in anatomy.offsets}
    paths = [path for path in anatomy.writers if path not in ends]
    matrices = matrix_changes(model, layers, paths, exclusions, kind, reason)
    writers = Lever("writers", (*matrices, *norm_changes(model, layers, ends, exclusions, reason)))
    if anatomy.undone:
        return [writers]
    reason = "second gain: how strongly the branch's inside is driven"
    inner = Lever("inner matrices", matrix_changes(model, layers, anatomy.inner, exclusions, kind, reason))
    return [writers, _norm_gains(model, layers, anatomy, exclusions), inner]


def _without_skip(
    model: nn.Module, layers: Layers, anatomy: Anatomy, exclusions: Exclusions, draw: str | None
) -> list[Lever]:
    matrices = Lever("matrices", common_gain(model, layers, anatomy, exclusions, draw))
    levers = [matrices, _norm_gains(model, layers, anatomy, exclusions)]
    if anatomy.has_norms:
        levers.reverse()  # a norm undoes the gain of the matrix before it
    if draw is not None:
        return levers  # mirrored pairs would be another draw than the one asked for
    reason = "no skip, and an activation that merges inputs: mirrored pairs of units are linear at the start"
    pairs = matrix_changes(model, layers, anatomy.matrices, exclusions, "mirrored", reason, unit=True)
    return [*levers, Lever("mirrored matrices", pairs)]


def common_gain(
    model: nn.Module, layers: Layers, anatomy: Anatomy, exclusions: Exclusions, draw: str | None
) -> tuple[Change, ...]:
    """All matrices at gain one; before norms in mirrored pairs, whose mean is zero, so that a norm takes none away."""
    kind = draw or ("mirrored" if anatomy.has_norms else "orthogonal")
    reason = "no skip: one common gain where the gradient keeps its size, singular values all equal"
    return matrix_changes(model, layers, anatomy.matrices, exclusions, kind, reason, unit=True)


def _norm_gains(model: nn.Module, layers: Layers, anatomy: Anatomy, exclusions: Exclusions) -> Lever:
    reason = "sets the size of what follows the norm, which the matrices cannot"
    return Lever("norm gains", norm_changes(model, layers, anatomy.offsets, exclusions, reason))


def merge(first: Sequence[Change], second: Sequence[Change]) -> tuple[Change, ...]:
    """One change per parameter: the second replaces the first."""
    return tuple({change.projection.parameter: change for change in (*first, *second)}.values())
