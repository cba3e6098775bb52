"""The places of a model, by name: stacks of blocks, attention, MLP, norms. Names are those of the bare model
(outside torch.compile and DistributedDataParallel); nothing here holds a tensor."""

from __future__ import annotations

from dataclasses import dataclass

from edgewise.adapters.projections import Projection

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
    mlp: MLPSite
    norms: tuple[NormSite, ...]
    middle: str | None
    cross_attention: AttentionSite | None = None
    scales: tuple[str, ...] = ()  # learned multipliers of the branches (LayerScale)
    unrecognised: tuple[str, ...] = ()

    def norm(self, role: str) -> NormSite | None:
        """The norm of this role, if there is one."""
        return next((norm for norm in self.norms if norm.role == role), None)

    @property
    def projections(self) -> tuple[Projection, ...]:
        cross = self.cross_attention.projections if self.cross_attention else ()
        return (*self.attention.projections, *cross, *self.mlp.projections)


@dataclass(frozen=True)
class Stack:
    """A list of blocks that follow each other."""

    name: str
    blocks: tuple[BlockSite, ...]
    final_norm: str | None
    norm: str  # pre, post, sandwich, branch or none
    parallel: bool


@dataclass(frozen=True)
class ModelSites:
    """All places of a model; the primary stack first (the encoder, where there are two)."""

    stacks: tuple[Stack, ...]
    width: int
    embeddings: tuple[str, ...]  # modules and bare parameters that make the first stream
    head: str | None  # the module that reads the last stream out
    unrecognised: tuple[str, ...]  # parameters of the blocks that have no role here, by name
    assumed: tuple[str, ...]  # what names and shapes leave open

    @property
    def blocks(self) -> tuple[BlockSite, ...]:
        """The blocks of the primary stack."""
        return self.stacks[0].blocks

    @property
    def final_norm(self) -> str | None:
        return self.stacks[0].final_norm

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def projections(self) -> tuple[Projection, ...]:
        """Every matrix of every stack."""
        return tuple(p for stack in self.stacks for block in stack.blocks for p in block.projections)
