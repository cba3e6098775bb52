"""What in one forward pass depends on the weights that move: marks that travel with the data, operation by operation.

A mark says which directions a tensor depends on, and whether in an affine way: views, sums, copies, and products with
something unmarked keep that; everything else ends it. Marks belong to storages, so views and writes in place count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
LINEAR = {aten.add, aten.sub, aten.rsub, aten.neg, aten.cat, aten.stack, aten.clone, aten._to_copy, aten.copy_,
          aten.index_select, aten.repeat, aten.sum, aten.mean, aten._unsafe_view}  # fmt: skip
PRODUCTS = {aten.mul: (0, 1), aten.mm: (0, 1), aten.bmm: (0, 1), aten.addmm: (1, 2), aten.baddbmm: (1, 2),
            aten.matmul: (0, 1), aten.div: (0,)}  # fmt: skip
DECIDES = {aten._local_scalar_dense, aten.is_nonzero, aten.nonzero, aten.masked_select, aten.equal,
           aten._unique2, aten.unique_dim}  # what Python may branch on  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """Which directions, and whether the dependence is affine."""

    directions: frozenset[int] = frozenset()
    affine: bool = True

    def __or__(self, other: Mark) -> Mark:
        return Mark(self.directions | other.directions, self.affine and other.affine)


NONE = Mark()


class Dataflow(TorchDispatchMode):
    """Follows marks while it is active; `decided` once Python has looked at a marked value and may branch on it."""

    def __init__(self, sources: Iterable[tuple[Tensor, Mark]]) -> None:
        super().__init__()
        self.marks: dict[int, Mark] = {}
        self.alive: list[Tensor] = []  # a marked storage must not be freed: its address would be given away
        self.decided = False
        for tensor, mark in sources:
            self.put(tensor, mark)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler (seconds) to keep it out of here; nothing is compiled during the pass."""
        return False

    def put(self, tensor: Tensor, mark: Mark) -> None:
        if tensor.numel():
            self.marks[tensor.untyped_storage().data_ptr()] = mark
            self.alive.append(tensor)

    def of(self, value: Any) -> Mark:
        """The mark of a tensor, or of all tensors in a nested value together."""
        found = NONE
        for tensor in tensors_in(value):
            if tensor.numel():
                found = found | self.marks.get(tensor.untyped_storage().data_ptr(), NONE)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = self.of((args, kwargs))
        result = func(*args, **kwargs)
        if before.directions:
            self.decided |= func.overloadpacket in DECIDES
            after = Mark(before.directions, before.affine and self._keeps_affine(func, args))
            for tensor in tensors_in(result):
                self.put(tensor, after)
        return result

    def _keeps_affine(self, func: Any, args: Any) -> bool:
        if func.is_view or func.overloadpacket in LINEAR:
            return True
        factors = PRODUCTS.get(func.overloadpacket)
        if factors is None:
            return False
        marked = [place for place in range(len(args)) if self.of(args[place]).directions]
        return sum(place in factors for place in marked) <= 1 and (
            func.overloadpacket is not aten.div or marked == [0]
        )


def tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
