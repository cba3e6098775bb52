"""Weights, gradients and updates of the matrices, from one row in sixteen, the same rows before and after the step.

Slices are views with strides, made once; norms of slices of one size are one call. Of a parameter that is spread over
processes (FSDP2) the local part is sampled, and sums of squares are added over processes by `ranks`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from edgewise.arrays import Array, in_double
from edgewise.models.names.model_sites import Projection
from edgewise.monitor.places import Places


class ParameterViews:
    """Views into some parameters; they follow what the optimizer writes, because they share its memory."""

    def __init__(self, model: nn.Module, parameters: Sequence[str], make: Callable[[], list[Tensor]]) -> None:
        paths = [name.rpartition(".") for name in dict.fromkeys(parameters)]
        self._places = [(model.get_submodule(path)._parameters, leaf) for path, _, leaf in paths]
        self._make = make
        self._parameters: Sequence[Tensor | None] = []
        self._where: list[int] = []
        self._views: list[Tensor] = []
        self.spread = any(hasattr(parameters[leaf], "full_tensor") for parameters, leaf in self._places)
        self._gathered: list[Tensor] = []

    def __call__(self) -> list[Tensor]:
        return self._gathered or self._now()

    def gather(self) -> None:
        """Once for a row, if it is spread over processes: all of them must ask for it equally often."""
        self._gathered = self._now() if self.spread else []

    def release(self) -> None:
        """Let go of what was gathered."""
        self._gathered = []

    def _now(self) -> list[Tensor]:
        now = [parameters[leaf] for parameters, leaf in self._places]
        # Whether a parameter was replaced, or is somewhere else; without a loop, because it is asked at every row.
        known = self._where and all(map(is_, now, self._parameters))
        if not (known and list(map(Tensor.data_ptr, now)) == self._where):  # type: ignore[arg-type]
            self._parameters, self._views = now, [view.detach() for view in self._make()]
            own = {_storage(view) for view in self._views} <= {_storage(p) for p in now} - {0}
            # A copy (joined rows, a shard) is rebuilt every time.
            self._where = [p.data_ptr() for p in now if p is not None] if own else []
        return self._views


def _storage(tensor: Tensor | None) -> int:
    """Return where its storage begins; 0 if that cannot be said (None, or spread over processes)."""
    return 0 if tensor is None or hasattr(tensor, "to_local") else tensor.untyped_storage().data_ptr()


STRIDE = 16
LARGE = 2**22  # numbers; of a larger matrix (a vocabulary) fewer rows, so that it does not dominate the cost
KEPT = 64  # sets of rows whose views are kept
QUERY_KEY, VALUE_OUTPUT, MLP = 0, 1, 2  # groups of a block's matrices
ROLE_GROUPS = {"query": QUERY_KEY, "key": QUERY_KEY, "mlp": MLP}
WEIGHT, GRADIENT, UPDATE = 0, 1, 2


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


class Views(NamedTuple):
    """One set of rows: where the parameters were when it was made, its slices, and where these begin in storage."""

    where: list[int]
    weights: list[Tensor]
    starts: list[int]


class Matrices:
    """The matrices of every block, in three groups, and the embedding tables as one more.

    If no blocks were found, or nothing of them trains (adapters, a head alone), all matrices that train are in the
    last group.
    """

    def __init__(self, places: Places) -> None:
        self.model, self.places = places.model, places
        self.groups = 3 * places.depth + 1
        self.parameters: dict[str, nn.Parameter] = {}
        self.slices: list[Slice] = []
        # blocks in which a parameter that is spread over processes has several roles
        self.mixed: set[int] = set()
        for group, projection in _projections(places):
            self.slices += self._slices(projection, group)
        for block, parts in places.matrices.items():
            self.mixed.add(block)
            for role, name in parts:
                self.slices.append(self._table(name, 3 * block + ROLE_GROUPS.get(role, VALUE_OUTPUT)))
        for name in places.embeddings if places.depth else ():
            self.slices.append(self._table(name, self.groups - 1))
        if not any(parameter.requires_grad for parameter in self.parameters.values()):
            self.slices += [self._table(name, self.groups - 1) for name in loose(places.model)]
        self.slices.sort(key=lambda s: math.prod(s.size))  # what is of one size is summed at once
        self.sharded = any(_spread(parameter) for parameter in self.parameters.values())
        device = next(places.model.parameters()).device
        groups = np.array([s.group for s in self.slices], np.int64)
        # of weights, gradients, updates
        self._groups = np.stack([groups + i * self.groups for i in range(3)])
        self._weights = np.array([s.weight for s in self.slices])
        self._copied = _merged(self.slices)
        self._flat = Flat([s.size for s in self._copied], [math.prod(s.size) for s in self.slices], device)
        self._period = math.lcm(*(s.shifts for s in self.slices)) if self.slices else 1
        self._views: dict[int, Views] = {}  # by shift
        self._tracked, order = list(self.parameters.values()), list(self.parameters)
        self._strided, self._strides = [torch.strided] * len(order), [p.stride() for p in self._tracked]
        self._order = [order.index(s.parameter) for s in self._copied]
        self._sizes, self._steps = [s.size for s in self._copied], [s.strides for s in self._copied]
        self._now: list[Tensor] = []
        self._still: set[int] = set()  # groups in which no matrix got a gradient at this step
        self._without = np.zeros(len(self.slices), bool)  # slices that got none

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
        shift = count % self._period
        views = self._views_at(shift)
        self._now = views.weights
        self._flat.fill_before(self._now + self._gradients(views, shift))

    def _views_at(self, shift: int) -> Views:
        """The slices of the weights, made once for every shift and again when a parameter has moved."""
        where = [] if self.sharded else list(map(Tensor.data_ptr, self._tracked))
        known = self._views.get(shift)
        if known is None or known.where != where or self.sharded:
            places = {name: local(parameter) for name, parameter in self.parameters.items()}
            weights = [s.of(places[s.parameter], shift) for s in self._copied]
            known = Views(where, weights, [s.start + shift % s.shifts * s.step for s in self._copied])
            if self._period <= KEPT:
                self._views[shift] = known
        return known

    def _gradients(self, views: Views, shift: int) -> list[Tensor]:
        """The same rows of the gradients; not-a-number if there is none."""
        # what was frozen may keep a gradient of before
        found = [parameter.grad if parameter.requires_grad else None for parameter in self._tracked]
        plain = not self.sharded and [g is not None and g.layout for g in found] == self._strided
        present = cast("list[Tensor]", found)  # `plain`: every gradient is there
        if (
            plain
            and [*map(Tensor.stride, present)] == self._strides
            and not any(map(Tensor.storage_offset, present))
        ):
            # Laid out like their parameters, from the beginning of their storage: cut without a loop.
            self._still, self._without = set(), np.zeros(len(self.slices), bool)
            ordered = [present[i] for i in self._order]
            return [*map(Tensor.as_strided, ordered, self._sizes, self._steps, views.starts)]
        whole = {name: self._gradient(parameter) for name, parameter in self.parameters.items()}
        self._without = np.array([whole[s.parameter] is None for s in self.slices], bool)
        reached = {s.group for s, none in zip(self.slices, self._without, strict=True) if not none}
        self._still = {s.group for s in self.slices} - reached
        pairs = [(s, whole[s.parameter]) for s in self._copied]
        return [torch.full(s.size, math.nan) if g is None else s.of(g, shift) for s, g in pairs]

    def _gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """Laid out like the parameter; None if there is none, or only some of its rows."""
        gradient = parameter.grad if parameter.requires_grad else None
        if gradient is None or gradient.layout is not torch.strided:
            return None
        gradient, like = (local(gradient), local(parameter)) if self.sharded else (gradient, parameter)
        if gradient.stride() != like.stride():
            gradient = torch.empty_like(like, dtype=gradient.dtype).copy_(gradient)
        return gradient

    def after(self) -> Tensor:
        """Norms of the sampled rows of weights, gradients and updates, (3, slices); of shards, whose slices are others
        in other processes, sums of squares (3, groups)."""
        self._flat.fill_after(self._now)
        self._now = []
        norms = self._flat.norms()
        if not self.sharded:
            return norms
        groups, weights = (
            torch.as_tensor(x).to(norms.device) for x in (self._groups[0], self._weights.astype("f4"))
        )
        squares = norms.square_().mul_(weights)
        return torch.zeros(3, self.groups, device=norms.device).index_add_(1, groups, squares)

    def audit(self) -> Tensor:
        """(share of entries with a gradient that kept their value, cosine of update and gradient), after `after`."""
        return self._flat.audit()

    def grouped(self, numbers: Array) -> tuple[Array, Array]:
        """|W|^2, |G|^2, |dW|^2, estimated from the sampled rows: (3, groups), and (3,) in all; numbers: of `after`."""
        if self.sharded:
            return numbers, self._total(numbers)
        squares = numbers * numbers * self._weights
        squares[GRADIENT, self._without] = 0.0  # in a group, the others count
        sums = np.bincount(self._groups.ravel(), squares.ravel(), 3 * self.groups)
        squares = np.asarray(sums, float).reshape(3, -1)
        squares[GRADIENT, sorted(self._still)] = math.nan
        return squares, self._total(squares)

    def _total(self, squares: Array) -> Array:
        """(3,) of all groups together; gradients of those that got one, if any did."""
        sums = np.asarray(np.add.reduce(squares, 1))
        moving = [i for i in range(self.groups) if i not in self._still] if self._still else []
        if moving:
            sums[GRADIENT] = squares[GRADIENT, moving].sum()
        return sums


class Flat:
    """Three sets of slices (weights, gradients, updates), behind each other in float32, in order of their sizes.

    shapes: of what is copied; sizes: of what is summed, where several slices are copied as one.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], sizes: Sequence[int], device: torch.device) -> None:
        numbers = torch.empty(3, sum(sizes), device=device)
        lengths = [math.prod(shape) for shape in shapes]
        weights, gradients, self._after = (
            [part.view(shape) for part, shape in zip(part.split(lengths), shapes, strict=True)]
            for part in numbers
        )
        self._before = weights + gradients
        self._weights, self._gradients, self._updates = numbers.unbind()
        counts = Counter(sizes)  # in order, since sizes are
        spans = numbers.split([size * count for size, count in counts.items()], 1)
        self._alike = [
            span.unflatten(1, (counts[size], size)) for span, size in zip(spans, counts, strict=True)
        ]

    def fill_before(self, slices: list[Tensor]) -> None:
        """Weights, then gradients."""
        torch._foreach_copy_(self._before, slices)

    def fill_after(self, slices: list[Tensor]) -> None:
        """The weights after the step."""
        torch._foreach_copy_(self._after, slices)

    def audit(self) -> Tensor:
        """(2,): which part of the updates was lost though there is a gradient, and cos(update, gradient)."""
        gradient, update = self._gradients.nan_to_num(), self._updates
        used = gradient != 0
        lost = (used & (update == 0)).sum() / used.sum()
        size = torch.linalg.vector_norm(gradient) * torch.linalg.vector_norm(update)
        return torch.stack([lost, (gradient * update).sum() / size])

    def norms(self) -> Tensor:
        """|.| (3, slices) of weights, gradients and updates, if the weights after the step stand for these."""
        self._updates.sub_(self._weights)
        return torch.cat([torch.linalg.vector_norm(rows, dim=2) for rows in self._alike], 1)


def loose(model: nn.Module) -> list[str]:
    """The matrices that train, by name, whatever their roles."""
    trained = ((name, local(p)) for name, p in model.named_parameters() if p.requires_grad)
    return [name for name, p in trained if p.dim() > 1 and p.is_contiguous() and p.is_floating_point()]


def _projections(places: Places) -> Iterator[tuple[int, Projection]]:
    for block in places.blocks:
        site = block.attention
        for projection in (site.query, site.key):
            yield 3 * block.index + QUERY_KEY, projection
        for projection in (site.value, site.output):
            yield 3 * block.index + VALUE_OUTPUT, projection
        for projection in block.mlp.projections if block.mlp is not None else ():
            yield 3 * block.index + MLP, projection


def _merged(slices: Sequence[Slice]) -> list[Slice]:
    """The same rows in fewer slices: those of one parameter that follow each other (queries, keys, values) are one."""
    merged: list[Slice] = []
    for part in slices:
        last = merged[-1] if merged else None
        if last is not None and _follows(last, part):
            merged[-1] = replace(last, size=(last.size[0] + part.size[0], *last.size[1:]))
        else:
            merged.append(part)
    return merged


def _follows(last: Slice, part: Slice) -> bool:
    alike = (last.parameter, last.size[1:], last.strides, last.step, last.shifts) == (
        part.parameter,
        part.size[1:],
        part.strides,
        part.step,
        part.shifts,
    )
    by_rows = last.strides[0] == last.step * last.shifts  # the first dimension is the one that is sampled
    return alike and by_rows and part.start == last.start + last.size[0] * last.strides[0]


def _of_rows(name: str, stored: Tensor, group: int) -> Slice:
    """Every k-th row of a parameter as it is stored."""
    view = stored.detach().flatten(1) if stored.dim() > 1 else stored.detach().reshape(-1, 1)
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
    apart = [d for d in range(len(size)) if d == dimension or size[d] > 1]  # so that neighbors can be told
    start = int(view.storage_offset()) - int(parameter.storage_offset())
    return Slice(
        name,
        tuple(size[d] for d in apart),
        tuple(strides[d] for d in apart),
        start,
        step,
        stride,
        length / max(count, 1),
        group,
    )


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor, without gradient."""
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def _spread(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


RIDGE = 1e-13  # of the trace: keeps a change of low rank positive, below what an entropy notices


def spectral_entropy(query: Tensor, key: Tensor, query_after: Tensor, key_after: Tensor) -> Tensor:
    """In nats, per head; 0 is a change of rank one; nan if nothing changed, or something is not finite.

    The largest singular values carry the entropy, so their squares in double precision suffice.
    """
    q, k, q1, k1 = (in_double(t) for t in (query, key, query_after, key_after))
    dq, dk = q1 - q, k1 - k
    a = torch.maximum(_size(dq) / _size(q), _size(dk) / _size(k))
    XY = torch.stack([torch.cat([dq / a, q], 1), torch.cat([a * k1, dk], 1)])
    gram, other = XY @ XY.mT
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).sum(-1, keepdim=True)
    L = torch.linalg.cholesky_ex(gram + torch.diag_embed(ridge.expand(-1, gram.shape[1]))).L
    product = L.mT @ other @ L
    usable = product.isfinite().all(-1).all(-1)[:, None, None]  # eigvalsh raises for the others
    square = torch.linalg.eigvalsh(torch.where(usable, product, 0.0)).clamp_min(0)
    p = square / square.sum(-1, keepdim=True)
    return -torch.special.xlogy(p, p).sum(-1)


def _size(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
