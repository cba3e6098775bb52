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
from edgewise.models.names.model_sites import (
    AttentionSite,
    BlockSite,
    MLPSite,
    ModelSites,
    Projection,
    Rows,
    StackSite,
)
from edgewise.models.names.name_reader import NameReader, embeddings_of, final_norm_of, head_of
from edgewise.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch import nn

    from edgewise.models.behavior.record import Block, Branch, BranchMatrix, Reading, Stack
    from edgewise.nouns.architecture import Architecture

UNREAD = "behavior was not read; call reading() first"
ROLES = {"attention": ("query", "key", "value", "output"), "mlp": ("gate", "input", "output")}
TORCH_LAYERS = {"torch.nn.modules.transformer"}
WITHOUT_PASS = "behavior is not read on {}, which cannot be run here"


class Field(NamedTuple):
    """One thing that is known of a model, or why it is not."""

    value: Any
    why: str = ""

    @classmethod
    def of(cls, find: Callable[[], Any]) -> Field:
        """Return what this gives, or the text of the `BadInput` that it raises."""
        try:
            return cls(find())
        except BadInput as error:
            return cls(None, str(error))


class ModelMap:
    """The blocks, branches, matrices by role, heads, norms, skips, gates, ties and axes of one model."""

    def __init__(self, model: nn.Module) -> None:
        from edgewise.models.readable import refuse_lazy

        self.model = unwrap(model)
        refuse_lazy(self.model)
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
        """List the devices of its parameters, each once."""
        return tuple(dict.fromkeys(str(parameter.device) for parameter in self.model.parameters()))

    @property
    def layout(self) -> tuple[str, ...]:
        """The axes of its stream (batch, token, feature) in order, as it behaves; empty if that was not read."""
        stack = None if self._reading is None else self._reading.default
        return () if stack is None else tuple((stack.layout or "").split())

    @property
    def partial(self) -> str:
        """The reason that its stack, as it behaves, is not one stream of all blocks; empty if it is."""
        from edgewise.models.behavior.stacks import PARTIAL, RESAMPLED

        stack = None if self._reading is None else self._reading.default
        reasons = () if stack is None else stack.not_read
        return next((reason for reason in reasons if reason.startswith((*PARTIAL, RESAMPLED))), "")

    @property
    def sequence_first(self) -> bool:
        """False if its stream is (tokens, sequences, width): as it behaves, else as torch's own attention says."""
        from torch import nn

        axes = self.layout
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
            except BadInput as error:
                self._named = error
        if isinstance(self._named, BadInput):
            raise self._named
        return self._named

    def sites(self, batch: Any = None) -> ModelSites:
        """Every stack, block, matrix and norm; raises `BadInput` if neither names nor behavior tell them.

        Names are enough if the model's family is known, or if it cannot be run here. Otherwise it is run (on this
        batch, or one that is made up), and what it does decides.
        """
        if self._sites is None:
            try:
                self._sites = self._find(batch)
            except BadInput as error:
                self._sites = error
        if isinstance(self._sites, BadInput):
            raise self._sites
        if not self._compared and self._reading is not None:
            self._compared, self._sites = True, self._corrected(self._sites, self._reading)
        return self._sites

    def _find(self, batch: Any) -> ModelSites:
        try:
            named: ModelSites | BadInput = self.named()
        except BadInput as error:
            named = error
        why = self._unrunnable()
        if isinstance(named, ModelSites) and (why or self._known(named)):
            return named
        if not why:
            try:
                reading = self.reading(batch, rows=True)
                self._compared = True
                return self._decided(named, reading)
            except BadInput as error:
                why = str(error)
                if self._compared and isinstance(named, ModelSites):
                    raise
        if isinstance(named, ModelSites):
            return replace(named, assumed=(*named.assumed, f"roles: by names alone, because {_first(why)}"))
        raise BadInput(f"{_first(str(named))} By its behavior: {why}") from named

    def _known(self, named: ModelSites) -> bool:
        """Return whether names can be believed without a pass: a family that is listed, torch's own layers, ours."""
        own = getattr(self.model, "architecture", None)
        family = self.family() if own is None else own
        if family is not None and getattr(family, "depth", None) == named.depth:
            return True
        kinds = {type(self.model.get_submodule(block.name)).__module__ for block in named.blocks}
        holder = self.model.get_submodule(named.stacks[0].name)
        return kinds <= TORCH_LAYERS and len(holder._modules) == named.depth

    def _decided(self, named: ModelSites | BadInput, reading: Reading) -> ModelSites:
        """The sites by name, corrected by what was read; as the model behaves if these are not its blocks."""
        first = reading.default  # the stack that is measured
        if isinstance(named, ModelSites) and first is not None:
            order = sorted(named.stacks, key=lambda stack: stack.name != first.name)
            named = replace(named, stacks=tuple(order))
        if isinstance(named, ModelSites) and _same_blocks(named.stacks[0], reading) is not None:
            return self._corrected(named, reading)
        stack = reading.default
        if stack is None:
            text = reading.not_read[0] if reading.not_read else "no stack of blocks was found"
            raise BadInput(f"{text}.")
        blocks, why = self.by_behavior(stack)
        if blocks:
            note = (
                str(named).partition(". ")[0]
                if isinstance(named, BadInput)
                else f"{named.stacks[0].name or 'the model'} has {named.depth} blocks"
            )
            return self._sites_of(stack, blocks, f"roles: as the model behaves; by names, {note}")
        if isinstance(named, ModelSites):
            why = (
                f"names say that {named.stacks[0].name or 'the model'} has {named.depth} blocks, and it behaves as "
                f"{stack.depth}; {why}"
            )
        unread = next((text for text in stack.not_read if not text.startswith("block ")), "")
        raise BadInput(f"{unread}; {why}." if unread else f"{why}.")

    def _sites_of(self, stack: Stack, blocks: tuple[BlockSite, ...], note: str) -> ModelSites:
        names = tuple(block.name for block in blocks)
        holder, width = names[0].rpartition(".")[0], stack.width
        inside = names if all(block.whole for block in blocks) else ()
        norm = final_norm_of(self.model, holder, names)
        return ModelSites(
            (StackSite(stack.name, blocks, norm, stack.norm or "", bool(stack.parallel)),),
            width,
            self._tables(inside, width, stack.depth if inside != names else 0),
            head_of(self.model, inside, width),
            tuple(name for block in blocks for name in block.unrecognized),
            (note,),
        )

    def _tables(self, blocks: tuple[str, ...], width: int, layers: int) -> tuple[str, ...]:
        """Return what makes the first stream; vectors of all layers in one parameter do not."""
        bare = {name: parameter for name, parameter in self.model.named_parameters() if "." not in name}
        found = embeddings_of(self.model, blocks, width)
        return tuple(name for name in found if not (layers and name in bare and len(bare[name]) == layers))

    def complete(self, batch: Any = None) -> ModelSites:
        """The sites of blocks that are modules, one row a module, with heads as the model behaves if names are silent.

        For hooks on modules: raises if a block is not one.
        """
        found = self.sites(batch)
        if any(b.attention.heads is None for b in found.blocks) and self._reading is None:
            with suppress(BadInput):  # then they stay unknown
                if not self._unrunnable():
                    self.reading(batch, rows=True)
        found = self.sites(batch)
        apart = next((b for s in found.stacks for b in s.blocks if not b.whole), None)
        if apart is not None:
            raise BadInput(
                f"block {apart.index} is not a module of its own: {apart.name or 'the model'} holds several."
            )
        stacks = (replace(s, blocks=tuple(replace(b, calls=1) for b in s.blocks)) for s in found.stacks)
        return replace(found, stacks=tuple(stacks))

    def _unrunnable(self) -> str:
        """Return why no pass is tried: nothing to run, or one that other processes would have to join."""
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
            wrong = _contradictions(list(zip(blocks, stack.blocks, strict=True))) if blocks else []
            if wrong or not blocks:
                blocks, unknown = self._plain_by_behavior(stack)
                why = "" if not unknown else why
                if wrong and unknown:
                    why = f"names say otherwise than the model behaves ({wrong[0]}), and {unknown}"
                self.notes += [note for note in wrong if note not in self.notes]
            self._roles[key] = blocks, why
        return self._roles[key]

    def _plain_by_behavior(self, stack: Stack) -> tuple[tuple[BlockSite, ...], str]:
        """The same of blocks that are modules of their own, whose matrices are parameters as they are."""
        blocks, why = self.by_behavior(stack)
        if len(blocks) < stack.depth or not all(block.whole for block in blocks):
            return (), why or f"the layers of {stack.name} are not modules of their own"
        if any(block.mlp is None for block in blocks):
            return (), f"the layers of {stack.name} have no MLP"
        if any(p.derived or p.index is not None for block in blocks for p in block.projections):
            return (), f"matrices of {stack.name} are not parameters by themselves"
        return blocks, ""

    def _corrected(self, sites: ModelSites, reading: Reading) -> ModelSites:
        """The sites by name; of a stack that was read: matrices, norms and calls as it behaves, heads if unsaid."""
        corrected = []
        for named in sites.stacks:
            stack = _same_blocks(named, reading)
            corrected.append(named if stack is None else self._corrected_stack(named, stack))
        return replace(
            sites, stacks=tuple(corrected), assumed=tuple(dict.fromkeys((*sites.assumed, *self.notes)))
        )

    def _corrected_stack(self, named: StackSite, stack: Stack) -> StackSite:
        blocks, first = named.blocks, {block.module: block for block in reversed(stack.blocks)}
        pairs = [(site, first[site.name]) for site in blocks]
        wrong = _contradictions(pairs)
        seen = any(True in (b.input_norm, b.output_norm, b.outside_norm) for b in stack.branches)
        norm = stack.norm or ("" if seen and named.norm == "none" else named.norm)  # some that have no name
        parallel = named.parallel if stack.parallel is None else stack.parallel
        if (norm, parallel) != (named.norm, named.parallel):
            said = f"norm {norm}, {'parallel' if parallel else 'one after the other'}"
            wrong.append(
                f"branches of {named.name or 'the model'}: {said}, as the model behaves; by names norm {named.norm}"
            )
        if wrong:
            self.notes += [note for note in wrong if note not in self.notes]
            own, why = self.by_behavior(stack)
            if own:
                blocks = own
            elif _contradictions(pairs):
                raise BadInput(f"the matrices of {named.name} have no certain role: {why}.")
        modules = [block.module for block in stack.blocks]
        blocks = tuple(
            replace(_with_heads(site, first[site.name]), calls=modules.count(site.name)) for site in blocks
        )
        heads = [(a.attention.heads, b.attention.heads) for a, b in zip(named.blocks, blocks, strict=False)]
        other = next(((said, found) for said, found in heads if said not in (None, found)), None)
        if other is not None:
            self.notes.append(f"{other[1]} heads in {named.name}, as the model behaves; by names {other[0]}")
        return replace(named, blocks=blocks, norm=norm, parallel=parallel)

    def by_behavior(self, stack: Stack) -> tuple[tuple[BlockSite, ...], str]:
        """(the blocks of a stack with their matrices as it behaves, ""), or ((), why that is not known)."""
        blocks: dict[object, BlockSite] = {}
        try:
            for block in stack.blocks:
                key = block.index if block.module is None else block.module
                if key in blocks:
                    blocks[key] = replace(blocks[key], calls=blocks[key].calls + 1)
                else:
                    blocks[key] = replace(_site(self._names, stack, block), index=len(blocks))
        except BadInput as error:
            return (), str(error).rstrip(".")
        return tuple(blocks.values()), ""

    def writers(self, stack: Stack) -> dict[str, tuple[Projection, ...]]:
        """The matrices that end the branches of a stack, one for each block; nothing if blocks differ in them."""
        kinds = [[(b.kind, len(b.writers)) for b in block.branches] for block in stack.blocks]
        if any(each != kinds[0] for each in kinds) or any(not count for _, count in kinds[0]):
            return {}
        places = [[m for b in block.branches for m in b.writers] for block in stack.blocks]
        return {
            f"{number}.{own[0].role}": tuple(_projection(self.model, [m]) for m in own)
            for number, own in enumerate(zip(*places, strict=True))
        }

    def stacks(self, batch: Any = None) -> tuple[str, ...]:
        """The names of its stacks, the default one first: as read, or by one traced pass."""
        if self._reading is None:
            from edgewise.models.behavior.read import stack_names

            return stack_names(self.model, batch)
        listed = sorted(self._reading.stacks, key=lambda stack: not stack.default)
        return tuple(stack.name for stack in listed)

    def attentions(self) -> tuple[tuple[int, Branch], ...]:
        """Every attention of the default stack with the number of its block, as the model behaves; runs it once.

        A block that is called several times has a row for each call. Of each, `Branch` has the heads and their width,
        what they see, and what positions do (rotary, alibi, bias); `Branch.calls` has where queries, keys and values
        come from, the place of the scores, and their scale. None is not known; raises if nothing can be read.
        """
        stack = self.reading(rows=True).default
        blocks = () if stack is None else stack.blocks
        return tuple((block.index, b) for block in blocks for b in block.branches if b.kind == "attention")

    def turns(self, attention: str) -> bool:
        """Tell if positions act on the queries and keys of this attention; False if behavior was not read."""
        found = [branch.positions for branch in self._branches(attention)]
        return any(positions is None or bool({*positions} - {"alibi", "bias"}) for positions in found)

    def norms_queries(self, attention: str) -> bool:
        """Tell if a norm acts on the queries of this attention; False if behavior was not read."""
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
        """Read what the model does from edited passes: once, and the gains again if the weights have changed.

        closely  inspect this stack also if its residual sums are not all that its blocks do
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
    from edgewise.models.behavior.compare import TRAINED, copies, spectral_edge
    from edgewise.models.behavior.read import reread

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
    heads = own[0].heads if len(own) == 1 and (own[0].products == 1 or attention.heads is None) else None
    if not heads or heads == attention.heads or attention.query.fan_out % heads:
        return site
    width = own[0].head_width or attention.query.fan_out // heads  # a matrix may make more than queries
    keys = own[0].kv_heads or attention.key.fan_out // width
    return replace(site, attention=replace(attention, heads=heads, kv_heads=keys, head_width=width))


def _same_blocks(named: StackSite, reading: Reading) -> Stack | None:
    """The stack that was read of exactly these blocks, whatever the number of their calls."""
    own = tuple(block.name for block in named.blocks)
    listed = (s for s in reading.stacks if tuple(dict.fromkeys(b.module for b in s.blocks)) == own)
    return next(listed, None)


def _first(text: str) -> str:
    """Its first sentence."""
    return text.partition(". ")[0].rstrip(".") + "."


def _contradictions(pairs: Sequence[tuple[BlockSite, Block]]) -> list[str]:
    """Matrices that names and behavior give different roles, one sentence a role; what behavior did not tell agrees."""
    found: dict[tuple[str, str], list[str]] = {}
    for site, block in pairs:
        for kind, roles in ROLES.items():
            branches = [branch for branch in block.branches if branch.kind == kind]
            if len(branches) != 1:
                continue
            own = site.attention if kind == "attention" else site.mlp
            for role, matrices in _by_role(branches[0]).items():
                other = getattr(own, role, None)
                read = tuple(dict.fromkeys(matrix.parameter for matrix in matrices))
                if role in roles and other is not None and {*other.parameters} != {*read}:
                    text = f"{read[0]} as the model behaves; {other.parameter} by its name"
                    found.setdefault((kind, role), []).append(text)
    return [
        f"{kind} {role}: {texts[0]}" + (f" (so in {len(texts)} blocks)" if len(texts) > 1 else "")
        for (kind, role), texts in found.items()
    ]


def _site(names: NameReader, stack: Stack, block: Block) -> BlockSite:
    """One block as it behaves; raises what is not certain."""
    attention = _only(block, "attention")
    mlp = None if len(block.branches) == 1 else _only(block, "mlp")
    heads, width = attention.heads, attention.head_width
    a = {role: _projection(names.model, own) for role, own in _by_role(attention).items()}
    m = {}
    if mlp is not None:
        m = {role: _projection(names.model, own, mlp.experts) for role, own in _by_role(mlp).items()}
    key_heads = (
        attention.kv_heads if width and a["key"].fan_out == (attention.kv_heads or 0) * width else heads
    )
    latents = tuple(matrix for role, matrix in a.items() if role.startswith("latent"))
    own = AttentionSite(
        attention.module, a["query"], a["key"], a["value"], a["output"], heads, key_heads, width, latents
    )
    other = None if mlp is None else MLPSite(mlp.module, m["input"], m["output"], m.get("gate"))
    if block.module is None:
        return BlockSite(_holder(own, other), block.index, own, other, (), None, whole=False)
    return names.block(block.module, block.index, stack.norm, bool(stack.parallel), own, other)


def _holder(attention: AttentionSite, mlp: MLPSite | None) -> str:
    """The smallest module that holds both."""
    one, other = (site.name.split(".") for site in (attention, mlp or attention))
    same = next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if len({*pair}) > 1),
        min(len(one), len(other)),
    )
    return ".".join(one[:same])


def _only(block: Block, kind: str) -> Branch:
    branches = [branch for branch in block.branches if branch.kind == kind]
    where = block.module or f"block {block.index}"
    if len(branches) != 1:
        kinds = ", ".join(branch.kind or "one that was not read" for branch in block.branches)
        raise BadInput(
            f"{where} has {len(branches) or 'no'} {kind} branches; expected one. Its branches: {kinds}."
        )
    if not branches[0].matrices:
        why = branches[0].no_roles or "it was not inspected"
        raise BadInput(f"which matrix of the {kind} of {where} is which is not certain: {why}.")
    return branches[0]


def _by_role(branch: Branch) -> dict[str, list[BranchMatrix]]:
    """Several of a role if every head or every expert has its own."""
    found: dict[str, list[BranchMatrix]] = {}
    for matrix in branch.matrices or ():
        found.setdefault(matrix.role, []).append(matrix)
    return found


def _projection(model: nn.Module, matrices: Sequence[BranchMatrix], experts: bool = False) -> Projection:
    first = matrices[0]
    parameters = tuple(dict.fromkeys(matrix.parameter for matrix in matrices))
    biases = tuple(dict.fromkeys(matrix.bias for matrix in matrices if matrix.bias is not None))
    stacked = len(matrices) > 1 and len(parameters) == 1
    if stacked and [matrix.layer for matrix in matrices] != list(
        range(len(model.get_parameter(parameters[0])))
    ):
        raise BadInput(f"of {first.parameter} not every slice is a matrix of one layer.")
    place = Projection(
        first.role,
        parameters,
        0,
        0,
        first.transposed,
        experts=len(matrices) if experts and len(matrices) > 1 else 0,
        biases=biases if len(biases) in (1, len(parameters)) else (),
        index=None if stacked else first.layer,
        split=first.split,
        derived=first.derived,
    )
    out, into = place.weight(model).shape[-2:]
    rows = None if first.rows is None else Rows(*first.rows)
    if rows is not None and rows.groups * rows.size != out:
        raise BadInput(f"{first.parameter} has {out} rows, and {rows.groups * rows.size} were read.")
    return replace(place, fan_in=into, fan_out=rows.count if rows else out, rows=rows)


def sites(model: nn.Module, batch: Any = None) -> ModelSites:
    """Return the places of a model: its blocks, and in each the matrices by role, the norms and the heads.

    batch  whatever the model accepts; default: one that is made up, if the model has to be run

    By names, without a pass, if the model's family is known or it cannot be run here; otherwise as the model behaves in
    a few passes, and `assumed` says where names told something else. Raises, naming the block, if a role is found in
    some blocks and not in all: nothing is ever averaged over a part of the layers.
    """
    return ModelMap(model).sites(batch)


def stacks(model: nn.Module, batch: Any = None) -> tuple[str, ...]:
    """Return the names of the model's stacks, the default one first.

    batch  as in `describe`: whatever the model accepts; default: made from its own signature
    """
    return ModelMap(model).stacks(batch)
