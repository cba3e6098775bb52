"""Every matrix of every block, summarised once: what all findings start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.interrupts import check
from edgewise.models.names.record import BlockSite, MLPSite, ModelSites, Projection

if TYPE_CHECKING:
    from torch import nn


SIGNIFICANT = 5.0  # sampling errors: one false alarm in two million matrices
NOTICEABLE = 0.02  # relative; smaller departures change nothing, however significant


@dataclass(frozen=True)
class MatrixSummary:
    """One matrix: its role and place, its root mean square, spread and largest entry."""

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
    def random(self) -> bool:
        """As far as its spread tells: finite, and not constant."""
        return self.finite and self.spread > 1e-12 * max(self.largest, 1e-30) and self.rms > 1e-12

    @property
    def parameter(self) -> str:
        return self.matrix.parameter

    def departs_from(self, expected: float) -> bool:
        """|log(rms/expected)| beyond both the sampling error and what matters."""
        return abs(math.log(self.rms / expected)) > max(SIGNIFICANT * self.error, NOTICEABLE)


def summarise(model: nn.Module, sites: ModelSites) -> list[MatrixSummary]:
    """All matrices of all stacks."""
    return [
        _summary(model, stack.name, block.index, role, matrix)
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


def _summary(model: nn.Module, stack: str, block: int, role: str, matrix: Projection) -> MatrixSummary:
    check()
    weight = matrix.weight(model).detach().double()
    rms, spread, largest = (float(x) for x in (weight.pow(2).mean().sqrt(), weight.std(), weight.abs().max()))
    return MatrixSummary(stack, block, role, matrix, rms, spread, largest, weight.numel())


def group_by(
    summaries: Sequence[MatrixSummary], key: Callable[[MatrixSummary], object]
) -> list[list[MatrixSummary]]:
    """Groups in order of appearance."""
    groups: dict[object, list[MatrixSummary]] = {}
    for summary in summaries:
        groups.setdefault(key(summary), []).append(summary)
    return list(groups.values())


def siblings(summaries: Sequence[MatrixSummary]) -> list[list[MatrixSummary]]:
    """The same matrix in all blocks of a stack; experts and plain MLPs are kept apart."""
    return group_by(summaries, lambda s: (s.stack, s.role, s.matrix.fan_in, s.matrix.experts))
