"""Where a model is watched: its blocks, the modules that make queries, keys and values, and its matrices.

What cannot be read is not an error: `Places` says why, and the statistics of it are not-a-number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Block, Branch, Operation
from edgewise.models.model_map import ModelMap
from edgewise.models.names.model_sites import AttentionSite, BlockSite, ModelSites, Projection
from edgewise.optim.query_key import QueryKey, query_keys

WHOLE = "loss, gradient, weights and updates as a whole"  # if no blocks were found
UNHEARD = 3  # steps without a loss, or rows if rows alone show it, before a warning


@dataclass(frozen=True)
class AttentionPlace:
    """One attention: how logits are made (`query_key`), its value and output matrices, and the modules to copy from."""

    block: int
    query_key: QueryKey
    value: Projection
    output: Projection
    fused_call: bool  # nn.MultiheadAttention: projections happen inside one call, so its input is copied
    dropouts: tuple[float, ...]  # that may act on its entries, as the module and its parts say; 0 among them

    @property
    def name(self) -> str:
        return self.query_key.name

    @property
    def heads(self) -> int:
        return self.query_key.query.heads

    @property
    def key_heads(self) -> int:
        return self.query_key.key.heads

    @property
    def projections(self) -> tuple[Projection, Projection, Projection]:
        return self.query_key.query.projection, self.query_key.key.projection, self.value

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose outputs hold queries, keys and values, each once."""
        return tuple(dict.fromkeys(p.module for p in self.projections))


@dataclass
class AttentionOperations:
    """The attention of one block: the operations that turn scores into weights, in order, or the module around them."""

    block: int
    heads: int
    operations: tuple[Operation, ...] = ()
    room: str = ""  # any softmax inside this module, if the operations are not known
    scores: dict[int, Tensor] = field(default_factory=dict)  # by part: (S, H, Q, K), masked keys at -inf
    upstream: dict[int, Tensor] = field(default_factory=dict)  # likewise: dLoss/dweights
    outputs: dict[int, Tensor] = field(default_factory=dict)  # (S, H, Q, d)

    def clear(self) -> None:
        """Forget the last pass."""
        self.scores, self.upstream, self.outputs = {}, {}, {}


@dataclass
class Places:
    """What is watched of a model; `blind` says what is not, and why."""

    model: nn.Module  # without its wrappers
    depth: int = 0
    width: int = 0
    blocks: tuple[BlockSite, ...] = ()
    attentions: list[AttentionPlace] = field(default_factory=list)
    embeddings: tuple[str, ...] = ()
    sequence_first: bool = True
    blind: list[str] = field(default_factory=list)
    # before the first block and behind every block, if these are not modules
    streams: tuple[Operation, ...] = ()
    axes: tuple[str, ...] = ()  # of these streams
    # attention seen where it is computed
    by_operation: list[AttentionOperations] = field(default_factory=list)
    # by block: role, parameter
    matrices: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    modules: tuple[str, ...] = ()  # of the blocks, for people
    map: ModelMap | None = None  # that they were read from

    @property
    def heads(self) -> list[int]:
        """Heads per block; 0 where its attention is not watched."""
        by_block = {place.block: place.heads for place in self.attentions}
        by_block |= {place.block: place.heads for place in self.by_operation}
        return [by_block.get(block, 0) for block in range(self.depth)]


def check_model(model: object) -> None:
    """Refuse what cannot train."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"watch takes a torch module, got {type(model).__name__}.")
    if next(model.parameters(), None) is None:
        raise BadInput(
            f"{type(model).__name__} has no parameters: nothing to watch. Give the model that trains."
        )


def places_of(model: nn.Module | ModelMap, batch: Any = None) -> Places:
    """The places of a model, which is run on this batch if it has to be; never raises."""
    where = ModelMap.of(model)
    bare = where.model
    try:
        record = where.complete(batch)
    except BadInput as error:
        reason = str(error)
        for advice in (" Describe the network with", " Give a batch as"):  # helps who asks other verbs
            reason = reason.partition(advice)[0]
        return _places_by_behavior(where, batch) or Places(
            bare, blind=[f"blocks, activations and attention: {reason}"]
        )
    if where.partial:
        return Places(bare, blind=[f"blocks, activations and attention: {where.partial}"])
    idle = next(
        (b.name for b in record.blocks if type(bare.get_submodule(b.name)).forward is nn.Module.forward), None
    )
    if idle is not None:  # a list of parts, which no hook hears
        reason = f"blocks, activations and attention: {idle} is a list of modules, which is not called itself"
        return _places_by_behavior(where, batch) or Places(bare, blind=[reason])
    if (
        _called_again(where, record)
        or where.layout[-1:] not in ((), ("feature",))
        or where.layout.count("token") > 1
    ):
        places = _places_by_behavior(where, batch)
        if places is not None:
            return places
    places = Places(
        bare, record.depth, record.width, record.blocks, [], _tables(bare, record), where.sequence_first
    )
    places.modules = tuple(block.name for block in record.blocks)
    if len(record.stacks) > 1:
        others = ", ".join(stack.name for stack in record.stacks[1:])
        places.blind.append(f"{others}: of several stacks the first, {record.stacks[0].name}, is watched")
    _add_attentions(places, where)
    return places


def _called_again(where: ModelMap, record: ModelSites) -> bool:
    """Whether a block is called several times in a pass, so that it has several rows (ALBERT, a loop over one block).

    The config says more layers than there are blocks, one object has several names, or the only block is run in a loop.
    """
    layers = where.config.get("num_hidden_layers")
    if len(record.stacks) != 1 or not record.depth:
        return False
    if any(block.calls > 1 for block in where.sites().blocks):
        return True
    if isinstance(layers, int):
        return layers > record.depth
    blocks = {id(where.model.get_submodule(block.name)) for block in record.blocks}
    names = sum(id(m) in blocks for _, m in where.model.named_modules(remove_duplicate=False))
    if names > record.depth:
        return True
    if record.depth > 1:
        return False
    try:
        stack = where.reading(rows=True).default
    except BadInput:
        return False
    return stack is not None and stack.depth > 1


def _places_by_behavior(where: ModelMap, batch: Any = None) -> Places | None:
    """The places as the model behaves, by operation; None if no stack of blocks was read."""
    try:
        stack = where.reading(batch, rows=True).default
    except BadInput:
        return None
    if where.partial:
        return Places(where.model, blind=[f"blocks, activations and attention: {where.partial}"])
    if stack is None or not stack.depth or not {"batch", "feature"} <= {*(stack.layout or "").split()}:
        return None
    layers = [layer for block in stack.blocks for layer in _layers(block)]
    ends = [layer[-1].outlet or layer[-1].total for layer in layers]
    places = Places(where.model, len(layers), stack.width, streams=(stack.start, *ends))
    places.axes = tuple((stack.layout or "").split())
    places.modules = tuple(layer[0].module for layer in layers)
    if len(layers) == stack.depth:
        places.modules = tuple(block.module or block.branches[0].module for block in stack.blocks)
    taken: set[str] = set()
    for index, layer in enumerate(layers):
        places.matrices[index] = tuple(_matrices_of(where.model, layer, taken, places.modules[index]))
    tables = [name for name, m in where.model.named_modules() if isinstance(m, nn.Embedding)]
    places.embeddings = tuple(f"{n}.weight" for n in tables if f"{n}.weight" not in taken)
    _add_operations(places, [(i, branch) for i, layer in enumerate(layers) for branch in layer])
    return places


def _layers(block: Block) -> list[tuple[Branch, ...]]:
    """The branches of a block; several layers if the same kinds are repeated in it (blocks that hold the next one)."""
    kinds = [branch.kind for branch in block.branches]
    count = kinds.count("attention")
    size = len(kinds) // max(count, 1)
    if count < 2 or size < 2 or size * count != len(kinds) or kinds != kinds[:size] * count:
        return [block.branches]
    return [block.branches[i : i + size] for i in range(0, len(kinds), size)]


def _matrices_of(
    model: nn.Module, layer: Sequence[Branch], taken: set[str], holder: str
) -> Iterator[tuple[str, str]]:
    """(role, parameter) of the matrices of a layer; one that several layers share counts for the first."""
    for branch in layer:
        roles = {m.parameter: m.role for m in branch.matrices or ()}
        inside = branch.module and branch.module != holder and not roles
        own = model.get_submodule(branch.module).named_parameters(branch.module) if inside else ()
        part = "attention" if branch.kind == "attention" else "mlp"
        for name in [name for name, _ in own] or roles:
            if name not in taken and model.get_parameter(name).dim() > 1:
                taken.add(name)
                yield (roles.get(name, part) if part == "attention" else part), name


def _add_operations(places: Places, branches: Iterable[tuple[int, Branch]]) -> None:
    """Attention of these blocks where it is computed; what cannot be seen is said."""
    known = {each.block for each in places.by_operation} | {each.block for each in places.attentions}
    own = list(branches)
    attend = {index for index, branch in own if branch.kind == "attention"}
    for index, branch in own:
        crosses = branch.kind == "cross-attention" and index not in attend
        if not (branch.kind == "attention" or crosses) or not branch.softmax or index in known:
            continue
        operations = tuple(call.softmax for call in branch.calls or ())
        if branch.heads is None or not operations:
            places.blind.append(f"attention of block {index}: where its scores are computed was not read")
        else:
            known.add(index)
            places.by_operation.append(AttentionOperations(index, branch.heads, operations))


def frozen(places: Places) -> str:
    """Name the blocks that have no parameter that requires a gradient; nothing if all have one."""
    still = [
        block.index
        for block in places.blocks
        if not any(p.requires_grad for p in places.model.get_submodule(block.name).parameters())
    ]
    if not still:
        return ""
    return " (all frozen)" if len(still) == places.depth else f" ({', '.join(map(str, still))} frozen)"


def places_or_blind(model: nn.Module, batch: Any = None) -> Places:
    """The same; where a stranger's model breaks the reading of it, it is watched as a whole, and why is said."""
    where = ModelMap(model)
    try:
        return replace(places_of(where, batch), map=where)
    except Exception as error:  # noqa: BLE001  what cannot be read is not watched
        return Places(where.model, blind=[f"blocks and attention ({type(error).__name__}: {error})"])


def _tables(model: nn.Module, record: ModelSites) -> tuple[str, ...]:
    """The embedding tables, by parameter name."""
    modules = dict(model.named_modules())
    return tuple(
        f"{name}.weight" for name in record.embeddings if isinstance(modules.get(name), nn.Embedding)
    )


def _add_attentions(places: Places, where: ModelMap) -> None:
    try:
        logits = {query_key.name: query_key for query_key in query_keys(where, where.sites())}
    except BadInput as error:
        _add_rooms(places, where, str(error))
        return
    several: list[tuple[BlockSite, str]] = []  # every head has matrices, and a softmax, of its own
    for block in places.blocks:
        reason = _refusal(places.model, block.attention)
        if reason and len(block.attention.query.parameters) > 1:
            several.append((block, reason))
        elif reason and block.attention.heads:
            places.by_operation.append(
                AttentionOperations(block.index, block.attention.heads, room=block.attention.name)
            )
        elif reason:
            places.blind.append(f"attention of block {block.index}: {reason}")
        else:
            places.attentions.append(_place(places.model, block, logits[block.attention.name]))
    if several:
        with suppress(BadInput):  # then the reason is said
            _add_operations(
                places, [pair for pair in where.attentions() if pair[0] in {b.index for b, _ in several}]
            )
        seen = {layer.block for layer in places.by_operation}
        places.blind += [f"attention of block {b.index}: {why}" for b, why in several if b.index not in seen]


def _add_rooms(places: Places, where: ModelMap, reason: str) -> None:
    """Attention where it is computed, inside the modules that hold it: its scores cannot be rebuilt."""
    unknown = [block.index for block in places.blocks if not (block.attention.heads and block.attention.name)]
    for block in places.blocks:
        if block.index not in unknown and block.attention.heads:
            places.by_operation.append(
                AttentionOperations(block.index, block.attention.heads, room=block.attention.name)
            )
    if unknown:
        with suppress(BadInput):  # then the reason is the one of the names
            _add_operations(places, [pair for pair in where.attentions() if pair[0] in unknown])
        seen = {layer.block for layer in places.by_operation}
        places.blind += [f"attention of block {i}: {reason}" for i in unknown if i not in seen]


def _refusal(model: nn.Module, site: AttentionSite) -> str:
    whole = isinstance(model.get_submodule(site.name), nn.MultiheadAttention)
    for projection in (site.query, site.key, site.value, site.output):
        if len(projection.parameters) > 1 or projection.experts:
            return f"its {projection.role} is made of several matrices"
        if not whole and projection.module == site.name:
            return f"its {projection.role} is not a module of its own, so nothing can be copied"
    return ""


def _place(model: nn.Module, block: BlockSite, query_key: QueryKey) -> AttentionPlace:
    site, module = block.attention, model.get_submodule(block.attention.name)
    return AttentionPlace(
        block.index,
        query_key,
        site.value,
        site.output,
        isinstance(module, nn.MultiheadAttention),
        _dropouts(module),
    )


def _dropouts(module: nn.Module) -> tuple[float, ...]:
    """Every share that the module or a part of it drops; which one acts on attention is for the referee to say."""
    shares = {0.0}
    for part in module.modules():
        shares |= {part.p} if isinstance(part, nn.Dropout) else set()
        shares |= {
            v for name, v in vars(part).items() if "drop" in name and isinstance(v, float) and 0 < v < 1
        }
    return tuple(sorted(shares))
