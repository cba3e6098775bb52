"""Weights, gradients and updates of the matrices, from one row in sixteen, the same rows before and after the step.

Slices are views with strides, computed once; all norms of a kind are one call. Of a parameter that is spread over
processes (FSDP2) the local part is sampled, and sums of squares are added over processes by `ranks`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgewise.adapters.roles.record import Projection
from edgewise.monitor.places import Places

STRIDE = 16
LARGE = 2**22  # numbers; of a larger matrix (a vocabulary) fewer rows, so that it does not dominate the cost
QUERY_KEY, VALUE_OUTPUT, MLP = 0, 1, 2  # groups of a block's matrices


@dataclass(frozen=True)
class Slice:
    """Part of the rows of a matrix, as strides into its parameter; `weight`: rows in all per row sampled."""

    parameter: str
    size: tuple[int, ...]
    strides: tuple[int, ...]
    start: int  # in storage, from the beginning of the parameter
    step: int  # in storage, from one row to the next
    shifts: int  # how many different sets of rows there are
    weight: float
    group: int

    def of(self, tensor: Tensor, shift: int) -> Tensor:
        start = tensor.storage_offset() + self.start + shift % self.shifts * self.step
        return tensor.as_strided(self.size, self.strides, start)


class Matrices:
    """The matrices of every block, in three groups, and the embedding tables as one more."""

    def __init__(self, places: Places) -> None:
        self.model, self.places = places.model, places
        self.groups = 3 * places.depth + 1
        self.parameters: dict[str, nn.Parameter] = {}
        self.slices: list[Slice] = []
        self.mixed: set[int] = set()  # blocks in which a parameter that is spread over processes has several roles
        for group, projection in _projections(places):
            self.slices += self._slices(projection, group)
        for name in places.embeddings:
            self.slices.append(self._table(name, self.groups - 1))
        self.sharded = any(_spread(parameter) for parameter in self.parameters.values())
        device = next(places.model.parameters()).device
        self._groups = torch.tensor([s.group for s in self.slices], dtype=torch.int64, device=device)
        self._weights = torch.tensor([s.weight for s in self.slices], device=device)
        self._before: list[Tensor] = []
        self._views: list[Tensor] = []
        self._squares: list[Tensor] = []

    def _slices(self, projection: Projection, group: int) -> list[Slice]:
        parameters = [self.model.get_parameter(name) for name in projection.parameters]
        if any(_spread(parameter) for parameter in parameters):
            return self._local_slices(projection, group)
        self.parameters |= dict(zip(projection.parameters, parameters, strict=True))
        views = projection.views(self.model)
        rows = -1 if projection.transposed else -2  # as they are stored
        pairs = zip(projection.parameters, parameters, views, strict=True)
        return [_of_view(name, view.detach(), parameter, rows, group) for name, parameter, view in pairs]

    def _local_slices(self, projection: Projection, group: int) -> list[Slice]:
        """Rows of one role may be on another process: the whole local part counts, once."""
        if any(name in self.parameters for name in projection.parameters):
            self.mixed.add(group // 3)
            return []
        return [self._table(name, group) for name in projection.parameters]

    def _table(self, name: str, group: int) -> Slice:
        parameter = self.parameters.setdefault(name, self.model.get_parameter(name))
        return _of_rows(name, local(parameter), group)

    def before(self, count: int) -> None:
        """Weights and gradients as the optimizer's step begins; count: how many samples there were."""
        weights = [local(self.parameters[s.parameter]) for s in self.slices]
        self._views = [s.of(w, count) for s, w in zip(self.slices, weights, strict=True)]
        self._before = [view.clone() for view in self._views]
        gradients = [self._gradient(s, count) for s in self.slices]
        self._squares = [_squares(self._before), _squares(gradients)]

    def _gradient(self, part: Slice, count: int) -> Tensor:
        parameter = self.parameters[part.parameter]
        if parameter.grad is None or parameter.grad.layout is not torch.strided:
            return torch.full((1,), math.nan, device=parameter.device)
        gradient, like = local(parameter.grad), local(parameter)
        if gradient.stride() != like.stride():
            gradient = torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
        return part.of(gradient, count)

    def after(self) -> Tensor:
        """(3, groups): |W|^2, |G|^2, |dW|^2 of each group, estimated from the sampled rows."""
        moved = torch._foreach_sub(self._views, self._before)
        squares = torch.stack([*self._squares, _squares(moved)]) * self._weights
        sums = torch.zeros(3, self.groups, device=squares.device)
        sums.index_add_(1, self._groups, squares)
        self._before, self._views = [], []
        return sums


def _projections(places: Places) -> Iterator[tuple[int, Projection]]:
    for block in places.blocks:
        site = block.attention
        for projection in (site.query, site.key):
            yield 3 * block.index + QUERY_KEY, projection
        for projection in (site.value, site.output):
            yield 3 * block.index + VALUE_OUTPUT, projection
        for projection in block.mlp.projections:
            yield 3 * block.index + MLP, projection


def _of_rows(name: str, stored: Tensor, group: int) -> Slice:
    """Every k-th row of a parameter as it is stored."""
    view = stored.detach().reshape(stored.shape[0] if stored.dim() else 1, -1)
    return _of_view(name, view, view, 0, group)


def _of_view(name: str, view: Tensor, parameter: Tensor, dimension: int, group: int) -> Slice:
    dimension %= view.dim()
    length = view.shape[dimension]
    stride = max(1, min(length, STRIDE * max(1, view.numel() // LARGE)))
    count = max(length // stride, min(length, 1))
    size = [*view.shape]
    size[dimension] = count
    strides = [*view.stride()]
    step = strides[dimension]
    strides[dimension] = step * stride
    return Slice(
        name, tuple(size), tuple(strides), int(view.storage_offset()) - int(parameter.storage_offset()), step, stride,
        length / max(count, 1), group,
    )  # fmt: skip


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, without gradient."""
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def _spread(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    """|.|^2 of each, (tensors,), in float32."""
    return torch.stack(torch._foreach_norm([t.float() for t in tensors])).square()
