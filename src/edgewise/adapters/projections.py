"""One matrix of a block, wherever the model keeps it: alone, fused with others, transposed, or one per expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.adapters.discovery import unwrap

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Rows:
    """Which output rows of a fused matrix: rows (groups, size), of every group those from start to stop.

    groups = 1 is a plain slice; the fused q, k, v of Pythia has one group per head, that of Falcon one per key
    head; the interleaved gate and up rows of gpt-oss are groups of two.
    """

    groups: int
    size: int
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.groups * (self.stop - self.start)


@dataclass(frozen=True)
class Projection:
    """A matrix that multiplies an input of width fan_in: where it is, and how to read it as (out, in)."""

    role: str
    parameters: tuple[str, ...]  # several where every head or every expert has its own
    fan_in: int
    fan_out: int
    transposed: bool = False  # stored (in, out): GPT-2's Conv1D, some experts
    rows: Rows | None = None  # None: all of them
    experts: int = 0  # 0: not a mixture; else the leading dimension of `weight`
    biases: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """The parameter's dotted name (the first, where there are several)."""
        return self.parameters[0]

    @property
    def module(self) -> str:
        """The name of the module that owns the parameter."""
        return self.parameter.rpartition(".")[0]

    @property
    def fused(self) -> bool:
        return self.rows is not None

    def weight(self, model: nn.Module) -> Tensor:
        """The matrix (out, in), with experts (experts, out, in): a view, unless rows are spread or parts joined."""
        parts = [view.flatten(-3, -2) for view in self.views(model)]
        return parts[0] if len(parts) == 1 else self._joined(parts, -2)

    def views(self, model: nn.Module) -> list[Tensor]:
        """Views to write through, one per parameter: (groups, rows of a group, in), experts in front."""
        bare = unwrap(model)
        stored = (bare.get_parameter(name) for name in self.parameters)
        return [self._slice(s.transpose(-1, -2) if self.transposed else s, -2) for s in stored]

    def bias(self, model: nn.Module) -> Tensor | None:
        """The bias (out,) or (experts, out) that belongs to these rows, or None."""
        bare = unwrap(model)
        parts = [self._slice(bare.get_parameter(name), -1).flatten(-2) for name in self.biases]
        return None if not parts else parts[0] if len(parts) == 1 else self._joined(parts, -1)

    def row_numbers(self, stored: int) -> Tensor:
        """Which of the stored output rows of one of its parameters are this matrix's, in its own order."""
        import torch

        return self._slice(torch.arange(stored), -1).flatten()

    def _slice(self, tensor: Tensor, dimension: int) -> Tensor:
        """(..., groups, rows, ...) in place of the output dimension."""
        size = tensor.shape[dimension]
        rows = self.rows or Rows(1, size, 0, size)
        apart = tensor.unflatten(dimension, (rows.groups, rows.size))
        return apart.narrow(dimension, rows.start, rows.stop - rows.start)

    def _joined(self, parts: list[Tensor], dimension: int) -> Tensor:
        import torch

        return torch.stack(parts) if self.experts else torch.cat(parts, dim=dimension)
