"""One row of several processes: one packed collective per stored row, called by all of them at the same step.

Means are averaged, maxima are the largest, sums of squares of sharded matrices are added. What one process finds
wrong in its own batch travels with the row, so that all of them raise the alarm (logical or), and so does the number
of steps that each would wait until the next sample: the longest wait is everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


class Processes:
    """The processes of a run; with a group of None there is one."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def gather(self, values: Tensor) -> Tensor:
        """(processes, n) from (n,) of each."""
        if self.group is None:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        return torch.stack(parts)


Rule = Callable[[Tensor], Tensor]  # (processes, n) to (n,)


def mean(each: Tensor) -> Tensor:
    return each.mean(0)


def largest(each: Tensor) -> Tensor:
    return each.amax(0)


def total(each: Tensor) -> Tensor:
    return each.sum(0)


def joined(each: Tensor, sizes: Sequence[int], rules: Sequence[Rule]) -> Tensor:
    """One row (n,) of the rows (processes, n), part by part."""
    return torch.cat([rule(part) for rule, part in zip(rules, each.split(list(sizes), 1), strict=True)])
