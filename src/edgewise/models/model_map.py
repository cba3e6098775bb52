"""ModelMap: what is where in one model, read once and used by every verb.

Names are read first, without a pass: that works on meta tensors, shards, quantized and adapted weights. Behavior is
read when a verb needs it, or if names do not tell the matrices apart; where both were read and contradict each other,
behavior decides and `notes` says so. Everything is read when it is first used and kept: a verb makes one map and passes
it on. Modules must stay as they are while a map is in use; weights may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from edgewise.errors import BadInput
from edgewise.models.config.translate import config_of, described_by_config
from edgewise.models.names.find import embeddings_of, final_norm_of, head_of
from edgewise.models.names.model import NameReader
from edgewise.models.names.record import AttentionSite, BlockSite, MLPSite, ModelSites, Projection, Rows
from edgewise.models.names.record import Stack as NamedStack
from edgewise.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch import nn

    from edgewise.models.behavior.record import Block, Branch, BranchMatrix, Reading, Stack
    from edgewise.nouns.architecture import Architecture

UNREAD = "behavior was not read; call reading() first"
ROLES = {"attention": ("query", "key", "value", "output"), "mlp": ("gate", "input", "output")}
WITHOUT_PASS = "behavior is not read on {}, which cannot be run here"


class Field(NamedTuple):
    """One thing that is known of a model, or why it is not."""

    value: Any
    why: str = ""

    @classmethod
    def of(cls, find: Callable[[], Any]) -> Field:
        """What this gives, or the `BadInput` that it raises, as text."""
        try:
            return cls(find())
        except BadInput as refusal:
            return cls(None, str(refusal))


class ModelMap:
    """The blocks, branches, matrices by role, heads, norms, skips, gates, ties and axes of one model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        self.notes: list[str] = []  # what behavior decided against the names
        self._families: dict[int | None, Architecture | None] = {}
        self._names = NameReader(self.model, self.family)
        self._named: ModelSites | BadInput | None = None
        self._sites: ModelSites | BadInput | None = None
        self._compared = False  # whether `_sites` are those of the names, compared with behavior
        self._roles: dict[tuple[str | None, ...], tuple[tuple[BlockSite, ...], str]] = {}
        self._reading: Reading | None = None
        self._versions: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: nn.Module | ModelMap) -> ModelMap:
        """The map itself, or a new one of this model."""
        return model if isinstance(model, ModelMap) else cls(model)

    def fields(self) -> dict[str, Field]:
        """Everything that is known so far, by name: a value, or None and why. Reads names, and runs no pass itself."""
        blocks, stack = (
            Field.of(lambda: self.named().blocks if self._sites is None else self.sites().blocks),
            None,
        )
        if self._reading is not None:
            stack = self._reading.default
        why = UNREAD if self._reading is None else "no stack was read"
        sites: tuple[BlockSite, ...] | None = blocks.value
        read = {
            "branches": lambda s: tuple(tuple(b.kind for b in block.branches) for block in s.blocks),
            "skips": lambda s: tuple(tuple(b.skip for b in block.branches) for block in s.blocks),
            "gates": lambda s: tuple(b.gated for b in s.mlps),
            "shared": lambda s: s.shared,
            "token_axis": lambda s: None if s.layout is None else s.layout.split().index("token"),
        }
        named = {
            "roles": lambda b: tuple({p.role: p.parameter for p in site.projections} for site in b),
            "heads": lambda b: tuple(site.attention.heads for site in b),
            "norms": lambda b: tuple({norm.role: norm.name for norm in site.norms} for site in b),
        }
        return {
            "blocks": blocks._replace(value=None if sites is None else tuple(site.name for site in sites)),
            **{
                name: Field(None if sites is None else find(sites), blocks.why)
                for name, find in named.items()
            },
            **{
                name: Field(None, why) if stack is None else _read(name, find(stack))
                for name, find in read.items()
            },
            "ties": Field(self.ties),
            "devices": Field(self.devices),
        }

    @cached_property
    def ties(self) -> tuple[tuple[str, ...], ...]:
        """All names of every parameter that has more than one, in the order of the model."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return tuple(tuple(group) for group in names.values() if len(group) > 1)

    @property
    def devices(self) -> tuple[str, ...]:
        """Where its parameters are, each device once."""
        return tuple(dict.fromkeys(str(parameter.device) for parameter in self.model.parameters()))

    @property
    def sequence_first(self) -> bool:
        """False if its stream is (tokens, sequences, width): as it behaves, else as torch's own attention says."""
        from torch import nn

        stack = None if self._reading is None else self._reading.default
        axes = (stack.layout or "").split() if stack is not None else []
        if {"batch", "token"} <= {*axes}:
            return axes.index("batch") < axes.index("token")
        flags = (bool(m.batch_first) for m in self.model.modules() if isinstance(m, nn.MultiheadAttention))
        return next(flags, True)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config of a Hugging Face model as a dictionary; empty if it has none."""
        return config_of(self.model)

    def described(self, tokens: int | None = None) -> Architecture | None:
        """The description by the config's family, at this length; None if the family is not listed."""
        if tokens not in self._families:
            self._families[tokens] = described_by_config(self.model, tokens, self.config)
        return self._families[tokens]

    def family(self) -> Architecture | None:
        """The description by the config's family, at whichever length it was translated first."""
        return next(iter(self._families.values())) if self._families else self.described()

    def named(self) -> ModelSites:
        """Every stack, block, matrix and norm by names alone; raises `BadInput` if these do not tell them."""
        if self._named is None:
            try:
                self._named = self._names.sites()
            except BadInput as refusal:
                self._named = refusal
        if isinstance(self._named, BadInput):
            raise self._named
        return self._named

    def sites(self) -> ModelSites:
        """Every stack, block, matrix and norm; raises `BadInput` if neither names nor behavior tell them."""
        if self._sites is None:
            try:
                self._sites = self.named()
            except BadInput as refusal:
                self._sites, self._compared = self._sites_by_behavior(refusal), True
        if isinstance(self._sites, BadInput):
            raise self._sites
        if not self._compared and self._reading is not None:
            self._compared, self._sites = True, self._corrected(self._sites, self._reading)
        return self._sites

    def complete(self) -> ModelSites:
        """The sites, with numbers of heads as the model behaves if its names do not say them."""
        found = self.sites()
        if (
            any(b.attention.heads is None for b in found.blocks)
            and self._reading is None
            and not self._unrunnable()
        ):
            with suppress(BadInput):  # then they stay unknown
                self.reading(rows=True)
        return self.sites()

    def _sites_by_behavior(self, refusal: BadInput) -> ModelSites | BadInput:
        why = self._unrunnable()
        if not why:
            try:
                stack = self.reading(rows=True).default
                if stack is None:
                    why = "no stack of blocks was found"
                else:
                    blocks, why = self._by_behavior(stack)
            except BadInput as error:
                why = str(error)
        if why:
            return BadInput(f"{refusal} Its behavior does not tell either: {why}")
        assert stack is not None
        names = tuple(block.name for block in blocks)
        holder = names[0].rpartition(".")[0]
        width = stack.width
        return ModelSites(
            (
                NamedStack(
                    stack.name,
                    blocks,
                    final_norm_of(self.model, holder, names),
                    stack.norm or "",
                    bool(stack.parallel),
                ),
            ),
            width,
            embeddings_of(self.model, names, width),
            head_of(self.model, names, width),
            tuple(name for block in blocks for name in block.unrecognised),
            (f"roles: as the model behaves; by names, {str(refusal).partition('. ')[0]}",),
        )

    def _unrunnable(self) -> str:
        """Why no pass is tried: nothing to run, or one that other processes would have to join."""
        from edgewise.models.state import is_sharded

        if any(p.is_meta for p in self.model.parameters()):
            return WITHOUT_PASS.format("the meta device")
        if any(is_sharded(m) or type(m).__name__ == "FullyShardedDataParallel" for m in self.model.modules()):
            return WITHOUT_PASS.format("shards")
        return ""

    def roles(self, stack: Stack) -> tuple[tuple[BlockSite, ...], str]:
        """(the matrices of a stack that was read, by role, ""), or ((), why they are not known)."""
        key = tuple(block.module for block in stack.blocks)
        if key not in self._roles:
            blocks, why = self._names.roles_of(stack)
            if blocks and (wrong := _contradictions(blocks, stack)):
                blocks, unknown = self._by_behavior(stack)
                why = (
                    f"names say otherwise than the model behaves ({wrong[0]}), and {unknown}"
                    if unknown
                    else ""
                )
                self.notes += [note for note in wrong if note not in self.notes]
            elif not blocks:
                blocks, unknown = self._by_behavior(stack)
                why = why if unknown else ""
            self._roles[key] = blocks, why
        return self._roles[key]

    def _corrected(self, sites: ModelSites, reading: Reading) -> ModelSites:
        """The sites by name; of a stack that was read, matrices as it behaves, and heads if its names do not say."""
        stacks = {tuple(block.module for block in stack.blocks): stack for stack in reading.stacks}
        corrected = []
        for named in sites.stacks:
            stack, blocks = stacks.get(tuple(block.name for block in named.blocks)), named.blocks
            if stack is not None and _contradictions(blocks, stack):
                blocks, why = self.roles(stack)
                if not blocks:
                    raise BadInput(f"the matrices of {named.name} have no certain role: {why}.")
            if stack is not None:
                blocks = tuple(
                    _with_heads(site, block) for site, block in zip(blocks, stack.blocks, strict=True)
                )
            corrected.append(replace(named, blocks=blocks))
        return replace(
            sites, stacks=tuple(corrected), assumed=tuple(dict.fromkeys((*sites.assumed, *self.notes)))
        )

    def _by_behavior(self, stack: Stack) -> tuple[tuple[BlockSite, ...], str]:
        """(the blocks of a stack with their matrices as it behaves, ""), or ((), why that is not known)."""
        if stack.shared or any(block.module is None for block in stack.blocks):
            return (), f"the layers of {stack.name} are not modules of their own"
        try:
            blocks = tuple(_site(self._names, stack, block) for block in stack.blocks)
        except BadInput as error:
            return (), str(error)
        return blocks, ""

    def attentions(self) -> tuple[tuple[int, Branch], ...]:
        """Every attention of the default stack with the number of its block, as the model behaves; runs it once.

        A block that is called several times has a row for each call. Of each, `Branch` has the heads and their width,
        what they see, and what positions do (rotary, alibi, bias); `Branch.calls` has where queries, keys and values
        come from, where the scores are computed, and their scale. None is not known; raises if nothing can be read.
        """
        stack = self.reading(rows=True).default
        blocks = () if stack is None else stack.blocks
        return tuple((block.index, b) for block in blocks for b in block.branches if b.kind == "attention")

    def turns(self, attention: str) -> bool:
        """Whether positions act on the queries and keys of this attention; False if behavior was not read."""
        found = [branch.positions for branch in self._branches(attention)]
        return any(positions is None or bool({*positions} - {"alibi", "bias"}) for positions in found)

    def norms_queries(self, attention: str) -> bool:
        """Whether a norm acts on the queries of this attention; False if behavior was not read."""
        return any(branch.qk_norm is not False for branch in self._branches(attention))

    def _branches(self, attention: str) -> list[Branch]:
        stacks = () if self._reading is None else self._reading.stacks
        return [branch for stack in stacks for branch in stack.attentions if branch.module == attention]

    def reading(
        self,
        batch: Any = None,
        stack: str | None = None,
        *,
        closely: bool = False,
        again: bool = False,
        rows: bool = False,
    ) -> Reading:
        """What the model does, from edited passes; read once, and the gains again if the weights have changed.

        closely  look at this stack also if its residual sums are not all that its blocks do
        again    read on this batch, whatever was read before
        rows     tell apart the rows of fused matrices, if nothing was read before
        """
        from edgewise.models.behavior.read import choose_stack, read, read_closely

        if closely:
            return read_closely(self.model, batch, stack)
        versions = tuple(0 if p.is_inference() else p._version for p in self.model.parameters())
        if self._reading is not None and versions != self._versions:
            self._reading = _with_these_weights(self.model, batch, self._reading)
        if again or self._reading is None or self._reading.default is None:
            self._reading = read(self.model, batch, rows=rows)
        self._versions = versions
        return choose_stack(self._reading, stack)


def _read(name: str, value: Any) -> Field:
    return Field(
        value, "" if value is not None else f"{name.replace('_', ' ')}: not certain from its behavior"
    )


def _with_these_weights(model: nn.Module, batch: Any, reading: Reading) -> Reading | None:
    """The numbers of the default stack, read again; None if it does not show them alone."""
    from edgewise.models.behavior.read import reread
    from edgewise.models.behavior.weights import TRAINED, copies, spectral_edge

    stack = reading.default
    if stack is None or len(reading.stacks) > 1:
        return None
    try:
        fresh = reread(model, stack, stack.blocks, batch)
    except BadInput:
        return None
    edge = spectral_edge(model)
    fresh = replace(fresh, copies=copies(model, fresh.blocks))
    return replace(
        reading, stacks=(fresh,), trained=None if edge is None else edge > TRAINED, spectral_edge=edge
    )


def _with_heads(site: BlockSite, block: Block) -> BlockSite:
    own = [branch for branch in block.branches if branch.kind == "attention"]
    attention = site.attention
    if (
        attention.heads is not None
        or len(own) != 1
        or not own[0].heads
        or attention.query.fan_out % own[0].heads
    ):
        return site
    heads, width = own[0].heads, attention.query.fan_out // own[0].heads
    return replace(
        site,
        attention=replace(attention, heads=heads, kv_heads=attention.key.fan_out // width, head_width=width),
    )


def _contradictions(blocks: Sequence[BlockSite], stack: Stack) -> list[str]:
    """Matrices that names and behavior give different roles, one sentence a role; what behavior did not tell agrees."""
    found: dict[tuple[str, str], list[str]] = {}
    for site, block in zip(blocks, stack.blocks, strict=True):
        for kind, roles in ROLES.items():
            branches = [branch for branch in block.branches if branch.kind == kind]
            if len(branches) != 1:
                continue
            own = site.attention if kind == "attention" else site.mlp
            named = {role: getattr(own, role, None) for role in roles}
            for matrix in branches[0].matrices:
                other = named[matrix.role]
                if other is not None and other.parameters != (matrix.parameter,):
                    text = f"{matrix.parameter} as the model behaves; {other.parameter} by its name"
                    found.setdefault((kind, matrix.role), []).append(text)
    return [
        f"{kind} {role}: {texts[0]}" + (f" (so in {len(texts)} blocks)" if len(texts) > 1 else "")
        for (kind, role), texts in found.items()
    ]


def _site(names: NameReader, stack: Stack, block: Block) -> BlockSite:
    """One block as it behaves; raises what is not certain."""
    assert block.module is not None
    attention, mlp = (_only(block, kind) for kind in ("attention", "mlp"))
    heads, width = attention.heads, attention.head_width
    a = {m.role: _projection(names.model, m) for m in attention.matrices}
    m = {m.role: _projection(names.model, m) for m in mlp.matrices}
    key_heads = (
        attention.kv_heads if width and a["key"].fan_out == (attention.kv_heads or 0) * width else heads
    )
    return names.block(
        block.module,
        block.index,
        stack.norm,
        bool(stack.parallel),
        AttentionSite(
            attention.module, a["query"], a["key"], a["value"], a["output"], heads, key_heads, width
        ),
        MLPSite(mlp.module, m["input"], m["output"], m.get("gate")),
    )


def _only(block: Block, kind: str) -> Branch:
    branches = [branch for branch in block.branches if branch.kind == kind]
    if len(branches) != 1:
        number = len(branches) or "no"
        raise BadInput(f"{block.module} has {number} {kind} branches that were read; expected one.")
    if not branches[0].matrices:
        raise BadInput(f"which parameters the {kind} of {block.module} multiplies by is not certain.")
    return branches[0]


def _projection(model: nn.Module, matrix: BranchMatrix) -> Projection:
    shape = tuple(model.get_parameter(matrix.parameter).shape)
    out, into = shape[::-1] if matrix.transposed else shape
    rows = None if matrix.rows is None else Rows(*matrix.rows)
    if rows is not None and rows.groups * rows.size != out:
        raise BadInput(f"{matrix.parameter} has {out} rows, and {rows.groups * rows.size} were read.")
    biases = () if matrix.bias is None else (matrix.bias,)
    return Projection(
        matrix.role,
        (matrix.parameter,),
        into,
        rows.count if rows else out,
        matrix.transposed,
        rows,
        biases=biases,
    )


def sites(model: nn.Module) -> ModelSites:
    """The places of a model, unmodified and never run with its own weights changed.

    By names, without a pass; if these do not tell the matrices apart, as the model behaves in a few passes, which
    `assumed` says. Refuses, naming the block, when a role is found in some blocks and not in all: nothing is ever
    averaged over a part of the layers.
    """
    return ModelMap(model).sites()
