"""Records of what is where in a model, by name: stacks, blocks, attention, MLP, norms, projections.

Names are those of the bare model (outside torch.compile and DistributedDataParallel); nothing here holds a tensor.

One matrix of a block, wherever the model keeps it: alone, fused with others, transposed, or one per expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgewise.errors import BadInput
from edgewise.models.unwrap import unwrap

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
    """A matrix that multiplies an input of width fan_in: its place, and how to read it as (out, in)."""

    role: str
    parameters: tuple[str, ...]  # several where every head or every expert has its own
    fan_in: int
    fan_out: int
    transposed: bool = False  # stored (in, out): GPT-2's Conv1D, some experts
    rows: Rows | None = None  # None: all of them
    experts: int = 0  # 0: not a mixture; else the leading dimension of `weight`
    biases: tuple[str, ...] = ()
    index: int | None = None  # which slice along the first axis, of parameters that hold all layers
    split: int = (
        1  # how many axes of the parameter make the first axis of the matrix: (d, heads, d_h) is (in, out)
    )
    derived: bool = False  # the model computes the matrix from the parameter (weight norm, spectral norm)

    @property
    def parameter(self) -> str:
        """The parameter's dotted name (the first, if there are several)."""
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
        stored = (self.flat(bare.get_parameter(name)) for name in self.parameters)
        return [self._slice(s.transpose(-1, -2) if self.transposed else s, -2) for s in stored]

    def flat(self, stored: Tensor) -> Tensor:
        """A stored parameter as the matrix that it holds, experts in front: a view."""
        own = stored if self.index is None else stored[self.index]
        return own if self.experts or own.dim() < 3 else own.flatten(0, self.split - 1).flatten(1)

    def bias(self, model: nn.Module) -> Tensor | None:
        """The bias (out,) or (experts, out) that belongs to these rows, or None."""
        bare = unwrap(model)
        stored = (bare.get_parameter(name) for name in self.biases)
        own = (b if self.index is None or b.dim() == 1 else b[self.index] for b in stored)
        parts = [self._slice(b, -1).flatten(-2) for b in own]
        return None if not parts else parts[0] if len(parts) == 1 else self._joined(parts, -1)

    def row_numbers(self, stored: int) -> Tensor:
        """Number the stored output rows of one of its parameters that are this matrix's, in its own order."""
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


# Roles of a norm in a block. `outside` norms stand on the sum of stream and branch (post-norm).
BEFORE_ATTENTION, AFTER_ATTENTION = "before attention", "after attention"
BEFORE_MLP, AFTER_MLP = "before mlp", "after mlp"
BEFORE_CROSS, AFTER_CROSS = "before cross-attention", "after cross-attention"
OUTSIDE_ATTENTION, OUTSIDE_MLP, OUTSIDE_CROSS = "outside attention", "outside mlp", "outside cross-attention"
INSIDE_ATTENTION, INSIDE_MLP = "inside attention", "inside mlp"  # before an output matrix
QUERY_NORM, KEY_NORM, LATENT_NORM = "q_norm", "k_norm", "latent norm"


@dataclass(frozen=True)
class NormSite:
    """One norm: its module, its role, its kind (layer, rms, identity, or the class name)."""

    name: str
    role: str
    kind: str
    width: int | None


@dataclass(frozen=True)
class AttentionSite:
    """One attention: its module and its matrices; `extra` has those of low-rank latents (DeepSeek)."""

    name: str
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    heads: int | None
    kv_heads: int | None
    head_width: int | None
    extra: tuple[Projection, ...] = ()

    @property
    def projections(self) -> tuple[Projection, ...]:
        return (self.query, self.key, self.value, self.output, *self.extra)


@dataclass(frozen=True)
class MLPSite:
    """One MLP: `gate` is the matrix inside the activation of a gated MLP, `input` the other or only one."""

    name: str
    input: Projection
    output: Projection
    gate: Projection | None = None
    router: Projection | None = None
    shared: MLPSite | None = None

    @property
    def width(self) -> int:
        return self.output.fan_in

    @property
    def projections(self) -> tuple[Projection, ...]:
        own = [p for p in (self.gate, self.input, self.output, self.router) if p is not None]
        return (*own, *(self.shared.projections if self.shared else ()))


@dataclass(frozen=True)
class BlockSite:
    """One block. The stream between attention and MLP is the input of the module named `middle` (None if parallel)."""

    name: str
    index: int
    attention: AttentionSite
    mlp: MLPSite | None
    norms: tuple[NormSite, ...]
    middle: str | None
    cross_attention: AttentionSite | None = None
    scales: tuple[str, ...] = ()  # learned multipliers of the branches (LayerScale)
    unrecognized: tuple[str, ...] = ()
    calls: int = 1  # how often it runs in a pass: several where layers share one module
    whole: bool = (
        True  # `name` is a module that gives the stream after the block; else what holds its matrices
    )

    def norm(self, role: str) -> NormSite | None:
        """The norm of this role, if there is one."""
        return next((norm for norm in self.norms if norm.role == role), None)

    @property
    def projections(self) -> tuple[Projection, ...]:
        cross = self.cross_attention.projections if self.cross_attention else ()
        return (*self.attention.projections, *cross, *(self.mlp.projections if self.mlp else ()))

    @property
    def feed_forward(self) -> MLPSite:
        """The MLP; raises if the block has none."""
        if self.mlp is None:
            raise BadInput(f"{self.name} has attention alone; expected attention and an MLP.")
        return self.mlp


@dataclass(frozen=True)
class StackSite:
    """A list of blocks that follow each other."""

    name: str
    blocks: tuple[BlockSite, ...]
    final_norm: str | None
    norm: str  # pre, post, sandwich, branch or none
    parallel: bool


@dataclass(frozen=True)
class ModelSites:
    """All places of a model; the primary stack first (the encoder, if there are two)."""

    stacks: tuple[StackSite, ...]
    width: int
    embeddings: tuple[str, ...]  # modules and bare parameters that make the first stream
    head: str | None  # the module that reads the last stream out
    unrecognized: tuple[str, ...]  # parameters of the blocks that have no role here, by name
    assumed: tuple[str, ...] = ()  # what names and shapes leave open

    @property
    def blocks(self) -> tuple[BlockSite, ...]:
        """The blocks of the primary stack."""
        return self.stacks[0].blocks

    @property
    def final_norm(self) -> str | None:
        return self.stacks[0].final_norm

    @property
    def depth(self) -> int:
        """Layers of the primary stack: its blocks, each as often as it runs."""
        return sum(block.calls for block in self.blocks)

    @property
    def projections(self) -> tuple[Projection, ...]:
        """Every matrix of every stack."""
        return tuple(p for stack in self.stacks for block in stack.blocks for p in block.projections)
