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
        bare = unwrap(model)
        parts = [self._rows_of(bare.get_parameter(name)) for name in self.parameters]
        return parts[0] if len(parts) == 1 else self._joined(parts)

    def bias(self, model: nn.Module) -> Tensor | None:
        """The bias (out,) or (experts, out) that belongs to these rows, or None."""
        import torch

        if not self.biases:
            return None
        bare = unwrap(model)
        parts = [self._slice(bare.get_parameter(name), -1) for name in self.biases]
        if len(parts) == 1:
            return parts[0]
        return torch.stack(parts) if self.experts else torch.cat(parts)

    def _rows_of(self, stored: Tensor) -> Tensor:
        matrix = stored.transpose(-1, -2) if self.transposed else stored
        return self._slice(matrix, -2)

    def _slice(self, tensor: Tensor, dimension: int) -> Tensor:
        if self.rows is None:
            return tensor
        if self.rows.groups == 1:
            return tensor.narrow(dimension, self.rows.start, self.rows.stop - self.rows.start)
        apart = tensor.unflatten(dimension, (self.rows.groups, self.rows.size))
        # unflatten puts the group where `dimension` was counted from the end; the rows follow it.
        kept = apart.narrow(dimension, self.rows.start, self.rows.stop - self.rows.start)
        return kept.flatten(dimension - 1, dimension)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        import torch

        return torch.stack(parts) if self.experts else torch.cat(parts, dim=-2)
