"""The values a plan gives to each parameter: the same for the same seed and name, whatever the order or the shards."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from edgewise.adapters.projections import Projection
from edgewise.critical.plan.draws import draw
from edgewise.critical.plan.plan import Change
from edgewise.probe.gradients import rows_of


def drawn(model: nn.Module, changes: Sequence[Change], seed: int) -> Iterator[tuple[str, Tensor]]:
    """(name, its new values in float32, whole) for every parameter; rows without a change keep theirs."""
    by_name: dict[str, list[Change]] = {}
    for change in changes:
        for name in change.projection.parameters:
            by_name.setdefault(name, []).append(change)
    for name, listed in by_name.items():
        yield name, _parameter(model.get_parameter(name), name, listed, seed)


def _parameter(parameter: Tensor, name: str, listed: Sequence[Change], seed: int) -> Tensor:
    if any(change.projection.rows is not None for change in listed):
        values = whole(parameter).detach().float().clone()
    else:
        values = torch.empty(parameter.shape)
    for change in listed:
        part = rows_of(values, change.projection)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}/{change.role}".encode()))
        shape = _matrix_shape(part, change)
        made = draw(change.draw, shape, change.new_std, generator, change.groups) - change.offset
        part.copy_(made.reshape(part.shape))
        if change.zero_row is not None:
            values[change.zero_row] = 0.0
    return values


def _matrix_shape(part: Tensor, change: Change) -> tuple[int, ...]:
    """(..., out, in): the groups of a fused matrix are joined, so that an orthogonal one is orthogonal as a whole."""
    if change.projection.rows is None:
        return tuple(part.shape)
    *front, groups, rows, columns = part.shape
    return (*front, groups * rows, columns)


def whole(parameter: Tensor) -> Tensor:
    """The full values of a parameter on this device, gathered where it is sharded (every rank must call)."""
    gather = getattr(parameter, "full_tensor", None)
    return gather() if callable(gather) else parameter


def root_mean_square(parameter: Tensor, projection: Projection) -> float:
    part = rows_of(parameter.detach(), projection)
    return float(part.double().square().mean().sqrt())
