"""Every matrix of every block, looked at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.adapters.roles.record import BlockSite, MLPSite, ModelSites, Projection

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Look:
    """What one matrix shows: root mean square, spread, largest entry; its role and its place."""

    stack: str
    block: int
    role: str  # attention.query, cross.key, mlp.output, shared.gate, ...
    matrix: Projection
    rms: float
    spread: float  # standard deviation; 0 for a constant
    largest: float
    count: int

    @property
    def error(self) -> float:
        """Relative sampling error of the root mean square of N normal entries, 1/sqrt(2 N)."""
        return 1 / math.sqrt(2 * self.count)

    @property
    def finite(self) -> bool:
        return math.isfinite(self.rms) and math.isfinite(self.largest)

    @property
    def drawn(self) -> bool:
        """Random, as far as its spread tells: finite, and no constant."""
        return self.finite and self.spread > 1e-12 * max(self.largest, 1e-30) and self.rms > 1e-12

    @property
    def parameter(self) -> str:
        return self.matrix.parameter


def look_at(model: nn.Module, sites: ModelSites) -> list[Look]:
    """All matrices of all stacks."""
    return [
        _look(model, stack.name, block.index, role, matrix)
        for stack in sites.stacks
        for block in stack.blocks
        for role, matrix in roles_of(block)
    ]


def roles_of(block: BlockSite) -> Iterator[tuple[str, Projection]]:
    """(role, matrix) of a block; roles say whose they are."""
    for owner, attention in (("attention", block.attention), ("cross", block.cross_attention)):
        if attention is not None:
            yield from ((f"{owner}.{matrix.role}", matrix) for matrix in attention.projections)
    yield from _roles_of_mlp("mlp", block.mlp)
    if block.mlp.shared is not None:
        yield from _roles_of_mlp("shared", block.mlp.shared)


def _roles_of_mlp(owner: str, mlp: MLPSite) -> Iterator[tuple[str, Projection]]:
    own = (mlp.gate, mlp.input, mlp.output, mlp.router)
    yield from ((f"{owner}.{matrix.role}", matrix) for matrix in own if matrix is not None)


def _look(model: nn.Module, stack: str, block: int, role: str, matrix: Projection) -> Look:
    weight = matrix.weight(model).detach().double()
    rms = float(weight.pow(2).mean().sqrt())
    return Look(stack, block, role, matrix, rms, float(weight.std()), float(weight.abs().max()), weight.numel())


def by(looks: Sequence[Look], key: Callable[[Look], object]) -> list[list[Look]]:
    """Groups in order of appearance."""
    groups: dict[object, list[Look]] = {}
    for look in looks:
        groups.setdefault(key(look), []).append(look)
    return list(groups.values())


def siblings(looks: Sequence[Look]) -> list[list[Look]]:
    """The same matrix in all blocks of a stack; experts and plain MLPs are not siblings."""
    return by(looks, lambda look: (look.stack, look.role, look.matrix.fan_in, look.matrix.experts))
