"""A task: examples in tokens with a fixed split.

Shapes: N examples of n tokens: images are vectors (N, n, features), one label each; text is ids (N, n), one per token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """Examples in tokens; `chance` is the loss of a uniform guess, log(outputs)."""

    name: str
    inputs: int  # vocabulary, or features of one token
    outputs: int
    vectors: bool  # tokens are vectors of unit mean square, not ids
    pooled: bool  # one label per sequence, not per token
    train: Pair
    validation: Pair

    @property
    def tokens(self) -> int:
        return int(self.train[0].shape[1])

    @property
    def chance(self) -> float:
        return math.log(self.outputs)

    @cached_property
    def prior(self) -> Tensor:
        """Return the log frequency of every label in the training part, each counted once more (outputs,)."""
        counts = torch.bincount(self.train[1].flatten(), minlength=self.outputs) + 1.0
        return (counts / counts.sum()).log()

    def batches(self, size: int, seed: int) -> Iterator[Pair]:
        """Yield an endless stream of random batches, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        inputs, labels = self.train
        while True:
            chosen = torch.randint(len(inputs), (size,), generator=generator)
            yield inputs[chosen], labels[chosen]

    def held_out(self, size: int) -> Pair:
        """Return the first examples of the validation part."""
        return self.validation[0][:size], self.validation[1][:size]
