"""The layers of a plan: modules, parameters that may be written, and the anatomy of a layer.

Anatomy is learned by switching the matrices of a layer off one at a time.

Matrices in series make one branch: switching any of them off gives the same output. The one that runs last writes the
branch into the stream, so that its gain scales the branch and leaves everything inside it (also attention) as it was.
If a norm ends the branch (Gemma 2, OLMo 2) the gain of that norm is the last, and a matrix before it moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.models.behavior.record import Operation, Stack
from edgewise.models.inputs import call, tensors
from edgewise.models.model_map import ModelMap
from edgewise.models.names.model_sites import BlockSite, Projection
from edgewise.models.names.names import FUSED, KEY, QUERY, leaf
from edgewise.models.names.norm import FAILURES, find_norms, gain_name
from edgewise.models.names.weight_gains import is_set, is_structured
from edgewise.models.state import preserved
from edgewise.models.twin import holding, twin
from edgewise.probe.streams import BlockCall
from edgewise.repair.plan import Change

# Classes that say nothing about what is inside: members must agree in their shapes, not in their class alone.
GENERIC = (nn.Sequential, nn.ModuleList, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
LEAST = 3


@dataclass(frozen=True)
class LayerStack:
    """Names of the layers. A `leaf` is a bare matrix or filter, its activation outside: its output is a stream.

    A module that runs several times is named as often. `weights` are the parameters that the layers multiply their
    stream by, adapters left out; None if that was not read. Layers that are not modules have a `stack`, whose
    operations say where they end, and their matrices by role.
    """

    names: tuple[str, ...]
    leaf: bool
    weights: frozenset[str] | None = None
    stack: Stack | None = None
    roles: Mapping[str, tuple[Projection, ...]] = field(default_factory=dict)
    unknown: str = ""  # why there are none
    sequence_first: bool = True  # False if the stream is (tokens, sequences, width)

    @property
    def depth(self) -> int:
        return len(self.names)

    @property
    def ends(self) -> tuple[Operation, ...]:
        """Of layers that are not modules: where the stream starts, and where it is after each of them."""
        stack = self.stack
        last = [] if stack is None else [block.branches[-1] for block in stack.blocks]
        return () if stack is None else (stack.start, *(b.outlet or b.total for b in last))

    @property
    def modules(self) -> tuple[str, ...]:
        """Every module once."""
        return tuple(dict.fromkeys(self.names))


def layers_of(model: nn.Module | ModelMap, batch: object = None) -> LayerStack:
    """The blocks of the stack that `measure` reads; the largest family of like siblings if it has no residual stack.

    Blocks that are not modules are read where their residual sums are.
    """
    where = ModelMap.of(model)
    return replace(_layers(where, batch), sequence_first=where.sequence_first)


def _layers(where: ModelMap, batch: object) -> LayerStack:
    unread = ""
    try:
        reading = where.reading(batch)
        stack = reading.default
        unread = next(iter((*reading.not_read, *(() if stack is None else stack.not_read))), "")
    except BadInput:
        stack = None
    if stack is None or all(
        branch.skip is None for branch in stack.branches
    ):  # no residual sums were followed
        try:
            return LayerStack(tuple(block.name for block in where.complete(batch).blocks), leaf=False)
        except BadInput:  # not a transformer
            if stack is not None and all(block.module is None for block in stack.blocks):
                return _without_modules(where, stack)
            return _siblings(where.model, unread)
    names = tuple(block.module for block in stack.blocks if block.module is not None)
    if len(names) < stack.depth:
        return _without_modules(where, stack)
    return LayerStack(names, leaf=False, weights=None if stack.weights is None else frozenset(stack.weights))


def _without_modules(where: ModelMap, stack: Stack) -> LayerStack:
    """Blocks whose parts lie side by side in one module, in lists of parts, or as slices of stacked parameters."""
    name = stack.name or type(where.model).__name__
    blocks, why = where.by_behavior(stack)
    names = tuple(f"{stack.name}.{index}".lstrip(".") for index in range(stack.depth))
    if not blocks:
        with suppress(BadInput):
            siblings = _siblings(where.model)
            if siblings.depth == stack.depth and not siblings.leaf:
                return siblings
        read = all(branch.skip is not None for branch in stack.branches)
        writers = where.writers(stack) if read else {}
        unknown = f"the {stack.depth} blocks of {name}: {next(iter(stack.not_read), why)}"
        return LayerStack(names, leaf=False, stack=stack, roles=writers, unknown="" if writers else unknown)
    roles = {
        f"{kind}.{p.role}": tuple(q for b in blocks for q in _of_kind(b, kind) if q.role == p.role)
        for kind in ("attention", "mlp")
        for p in _of_kind(blocks[0], kind)
    }
    return LayerStack(names, leaf=False, stack=stack, roles=roles)


def _of_kind(block: BlockSite, kind: str) -> tuple[Projection, ...]:
    """Its matrices, those that are fused with others as a whole."""
    site = block.attention if kind == "attention" else block.mlp
    fused = (p.rows.groups * p.rows.size if p.rows else p.fan_out for p in (site.projections if site else ()))
    return (
        ()
        if site is None
        else tuple(replace(p, rows=None, fan_out=out) for p, out in zip(site.projections, fused, strict=True))
    )


def _siblings(model: nn.Module, unread: str = "") -> LayerStack:
    """The largest family by parameters; the outermost of several of one size."""
    best: tuple[int, tuple[str, ...]] = (0, ())
    for name, module in model.named_modules():
        for family in _families(module):
            size = sum(p.numel() for key in family for p in module.get_submodule(key).parameters())
            if size > best[0]:  # not >=: the same parameters further inside do not count
                best = size, tuple(f"{name}.{key}".lstrip(".") for key in family)
    if not best[1]:
        raise BadInput(
            f"{type(model).__name__} has no repeated stack: no {LEAST} siblings of one class and shape that hold "
            "matrices. A plan needs layers that follow each other."
            + (f" As it runs: {unread}." if unread else "")
        )
    first = model.get_submodule(best[1][0])
    return LayerStack(best[1], leaf=not any(True for _ in first.children()))


def _families(module: nn.Module) -> Iterator[list[str]]:
    groups: dict[object, list[str]] = {}
    for key, child in module.named_children():
        shapes = tuple((path, tuple(p.shape)) for path, p in child.named_parameters())
        if type(child).forward is nn.Module.forward or not any(len(shape) > 1 for _, shape in shapes):
            continue
        alike = (type(child), shapes) if isinstance(child, GENERIC) else type(child)
        groups.setdefault(alike, []).append(key)
    yield from (family for family in groups.values() if len(family) >= LEAST)


@dataclass(frozen=True)
class Exclusions:
    """Parameters that a plan leaves alone: those the user names, under whichever of their names, and frozen ones."""

    names: frozenset[str]
    ties: Mapping[str, tuple[str, ...]]  # of a parameter with several names: each of them, to all
    frozen: frozenset[str] = frozenset()
    left: set[str] = field(default_factory=set, compare=False)  # frozen ones that a plan asked for

    @classmethod
    def of(cls, where: ModelMap, keep: Sequence[str], frozen: bool = False) -> Exclusions:
        """From names of parameters, of modules (all below them) or patterns with * (fnmatch); a typo is refused.

        frozen  whether parameters that do not train may be written too
        """
        if isinstance(keep, str):
            raise BadInput(f"keep must be a list of names, got the string {keep!r}. Write keep=[{keep!r}].")
        parameters = [name for name, _ in where.model.named_parameters(remove_duplicate=False)]
        names: set[str] = set()
        for pattern in keep:
            matches = {
                n for n in parameters if n == pattern or n.startswith(f"{pattern}.") or fnmatch(n, pattern)
            }
            if not matches:
                raise BadInput(
                    f"keep names {pattern!r}, which is not a parameter, module or pattern of this model."
                )
            names |= matches
        ties = {name: group for group in where.ties for name in group}
        return cls(frozenset(names), ties, frozenset() if frozen else frozen_names(where.model))

    def allows(self, name: str) -> bool:
        """True unless the parameter is excluded, under any of its names."""
        names = self.ties.get(name, (name,))
        if any(other in self.names for other in names):
            return False
        if any(other in self.frozen for other in names):
            self.left.add(names[0])
            return False
        return True

    def first(self, name: str) -> bool:
        """True for the one name under which a shared parameter is listed."""
        return self.ties.get(name, (name,))[0] == name


def frozen_names(model: nn.Module) -> frozenset[str]:
    """Parameters with requires_grad=False, and those that share memory with one, under all of their names."""
    parameters = list(model.named_parameters(remove_duplicate=False))
    frozen = {id(p): p for _, p in parameters if not p.requires_grad}
    spans = [span for p in frozen.values() if (span := _memory(p)) is not None]
    return frozenset(name for name, p in parameters if id(p) in frozen or _overlaps(_memory(p), spans))


def _memory(parameter: Tensor) -> tuple[int, int, int] | None:
    """(storage, first byte, byte after the last) of a plain tensor; else None."""
    if (
        type(parameter) not in (torch.Tensor, torch.nn.Parameter)
        or parameter.is_meta
        or not parameter.numel()
    ):
        return None
    last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True))
    start = parameter.data_ptr()
    return parameter.untyped_storage().data_ptr(), start, start + (last + 1) * parameter.element_size()


def _overlaps(span: tuple[int, int, int] | None, others: Sequence[tuple[int, int, int]]) -> bool:
    return span is not None and any(
        s == span[0] and span[1] < stop and start < span[2] for s, start, stop in others
    )


def matrix_changes(
    model: nn.Module,
    layers: LayerStack,
    paths: Sequence[str],
    exclusions: Exclusions,
    draw: str,
    reason: str,
    unit: bool = False,
) -> tuple[Change, ...]:
    """A change for each of these matrices in every layer, at its own standard deviation, or at gain one (`unit`)."""
    changes = []
    for path in paths if layers.stack is not None else ():
        free = [p for p in layers.roles[path] if all(map(exclusions.allows, p.parameters))]
        for place in {(p.parameter, p.index): p for p in free}.values():
            old, new = _rms(place.weight(model)), 1 / math.sqrt(place.fan_in)
            changes.append(Change(replace(place, role=path), old, new if unit else old, draw, reason))
    for name, path in _named(layers, paths, exclusions):
        parameter = model.get_parameter(name)
        fan_in = math.prod(parameter.shape[1:])
        old = _rms(parameter)
        kind = f"delta-{draw}" if draw in ("orthogonal", "mirrored") and parameter.ndim > 2 else draw
        place = Projection(path.removesuffix(".weight"), (name,), fan_in, parameter.shape[0])
        new = 1 / math.sqrt(fan_in) if unit else old
        changes.append(Change(place, old, new, kind, reason, _groups(model, name)))
    return tuple(changes)


def norm_changes(
    model: nn.Module, layers: LayerStack, offsets: Mapping[str, float], exclusions: Exclusions, reason: str
) -> tuple[Change, ...]:
    """Gains of norms (path: what the module adds to them), all entries at their present root mean square."""
    changes = []
    for name, path in _named(layers, tuple(offsets), exclusions):
        gain = _rms(model.get_parameter(name).detach() + offsets[path])
        change = _vector(model, name, path, gain, "constant", reason)
        changes.append(replace(change, old_std=gain, offset=offsets[path]))
    return tuple(changes)


def zero_biases(
    model: nn.Module, layers: LayerStack, paths: Sequence[str], exclusions: Exclusions
) -> tuple[Change, ...]:
    """Biases that are not zero become so: they add the same vector to every item."""
    reason = "adds the same vector to every item"
    return tuple(
        _vector(model, name, path, 0.0, "zero", reason)
        for name, path in _named(layers, paths, exclusions)
        if bool(model.get_parameter(name).detach().any()) and not is_set(model.get_parameter(name))
    )


def copies_of_first(model: nn.Module, layers: LayerStack, paths: Sequence[str]) -> list[str]:
    """Matrices of layers that are copies of the first: all of their random matrices equal, in parameters of their own.

    One equal matrix is not a copy: it may be a table, or a start that was meant. Dense layers lack those of experts.
    """
    if layers.stack is not None:
        return _copied_places(model, layers)
    copies = []
    parameters = [
        dict(model.get_submodule(m).named_parameters(remove_duplicate=False)) for m in layers.modules
    ]
    random = [path for path in paths if not is_structured(parameters[0][path])]
    for layer, theirs in zip(layers.modules[1:], parameters[1:], strict=True):
        pairs = [(f"{layer}.{path}", parameters[0][path], theirs.get(path)) for path in random]
        own = [(name, one, other) for name, one, other in pairs if other is not None and other is not one]
        if own and all(torch.equal(one, other) for _, one, other in own):
            copies += [name for name, *_ in own]
    return copies


def _copied_places(model: nn.Module, layers: LayerStack) -> list[str]:
    copies = []
    for index in range(1, layers.depth):
        pairs = [(places[0], places[index]) for places in layers.roles.values()]
        own = [(a, b) for a, b in pairs if (a.parameter, a.index) != (b.parameter, b.index)]
        if own and all(torch.equal(a.weight(model), b.weight(model)) for a, b in own):
            copies += [b.parameter for _, b in own]
    return copies


def copies_in_words(copies: Sequence[str], exclusions: Exclusions) -> str:
    """Say what a plan does about layers that are copies of one another."""
    free = sum(exclusions.allows(name) for name in copies)
    who = "all layers" if free == len(copies) else f"{free} of them"
    return f"{len(copies)} matrices were copies of those of the first layer; {who} get their own."


def _named(layers: LayerStack, paths: Sequence[str], exclusions: Exclusions) -> list[tuple[str, str]]:
    modules = () if layers.stack is not None else layers.modules
    names = [(f"{layer}.{path}", path) for path in paths for layer in modules]
    return [(name, path) for name, path in names if exclusions.allows(name) and exclusions.first(name)]


def _vector(model: nn.Module, name: str, path: str, value: float, draw: str, reason: str) -> Change:
    parameter = model.get_parameter(name)
    place = Projection(path, (name,), 1, parameter.numel())
    return Change(place, _rms(parameter), value, draw, reason)


def _rms(parameter: Tensor) -> float:
    return float(in_double(parameter.detach()).square().mean().sqrt())


def _groups(model: nn.Module, name: str) -> int:
    return int(getattr(model.get_submodule(name.rpartition(".")[0]), "groups", 1))


def has_norms(model: nn.Module, layers: LayerStack) -> bool:
    """Return whether norms are in the layers, or between bare matrices: then sizes are relative to the stream."""
    if layers.stack is not None:
        return layers.stack.norm != "none"
    first = model.get_submodule(layers.names[0])
    if not layers.leaf:
        return bool(_norms(first))
    return len(_norms(model.get_submodule(layers.names[0].rpartition(".")[0]))) >= layers.depth - 1


def _norms(module: nn.Module) -> list[str]:
    """Norms that do something: an Identity in the place of one does not."""
    return [name for name in find_norms(module) if not isinstance(module.get_submodule(name), nn.Identity)]


SAME = 1e-4  # relative difference of two outputs of one layer that counts as none


@dataclass(frozen=True)
class Anatomy:
    """One layer's parameters by their path in it. `writers` end the branches; without a skip there are none."""

    matrices: tuple[str, ...]
    writers: tuple[str, ...]  # matrices, or the gains of norms that end a branch
    skip: bool
    has_norms: bool  # a norm rescales the stream or what the matrices read
    norm_gains: tuple[str, ...]
    offsets: Mapping[str, float]  # what a norm adds to its stored gain: one in Gemma
    biases: tuple[str, ...]
    runs: int  # of one layer, that this took

    @property
    def inner(self) -> tuple[str, ...]:
        """Matrices of the branches that do not write, queries and keys left out: the plan leaves their scale alone."""
        return tuple(path for path in self.matrices if path not in self.writers and not _scores(path))

    @property
    def undone(self) -> bool:
        """A norm ends a branch: what is before it cannot be scaled."""
        return any(path in self.norm_gains for path in self.writers)


def anatomy_of(model: nn.Module, batch: object, layers: LayerStack) -> Anatomy:
    """Read from the first layer, run alone on the input it gets from this batch."""
    if layers.unknown:
        raise BadInput(
            f"no plan is possible, because it is not known which matrices end the branches of {layers.unknown}. Set "
            "the weights yourself, or pass a model whose blocks are modules with a forward method."
        )
    if layers.stack is not None:
        ends = tuple(role for role in layers.roles if role.endswith(".output"))
        return Anatomy(tuple(layers.roles), ends, True, has_norms(model, layers), (), {}, (), 0)
    block = model.get_submodule(layers.names[0])
    shapes = dict(block.named_parameters())
    matrices = tuple(path for path in shapes if _drawn(shapes[path], path, layers))
    norms = find_norms(block) if not layers.leaf else []
    named = ((norm, gain_name(block.get_submodule(norm))) for norm in norms)
    gains = tuple(f"{norm}.{gain}" for norm, gain in named if gain is not None and f"{norm}.{gain}" in shapes)
    owners = {_owner(path) for path in matrices}
    biases = tuple(path for path in shapes if path.endswith("bias") and _owner(path) in owners)
    offsets = {path: _offset(block.get_submodule(_owner(path)), block.get_parameter(path)) for path in gains}
    if layers.leaf:
        return Anatomy(matrices, (), False, has_norms(model, layers), gains, offsets, biases, 0)
    layer = _Alone(model, batch, layers.names[0], biases, offsets)
    off = layer.run(dict.fromkeys(matrices, 0.0))
    skip = _cosine(off, layer.stream) > 0.5
    writers = _writers(layer, matrices, gains) if skip else ()
    return Anatomy(matrices, writers, skip, has_norms(model, layers), gains, offsets, biases, layer.runs)


def _drawn(parameter: Tensor, path: str, layers: LayerStack) -> bool:
    """Whether a plan may draw it: a matrix that multiplies the stream, and whose entries were drawn before."""
    if parameter.ndim < 2 or path.endswith("bias") or is_structured(parameter):
        return False
    return layers.weights is None or f"{layers.names[0]}.{path}" in layers.weights


def _offset(norm: nn.Module, gain: Tensor) -> float:
    """Return one where a stored gain of zero is a gain of one."""
    x = torch.randn((2, *gain.shape), generator=torch.Generator().manual_seed(0)).to(gain)
    zeros = {name: torch.zeros_like(p) for name, p in norm.named_parameters()}
    norm = twin(norm)  # in the mode for evaluation a batch norm does not count what it sees
    with suppress(*FAILURES), torch.no_grad(), holding(norm, zeros):
        return float(bool(norm(x).any()))
    return 0.0  # it takes other shapes than rows of features: as it is stored


def _writers(layer: _Alone, matrices: Sequence[str], gains: Sequence[str]) -> tuple[str, ...]:
    """The last to run of every class of parts that do the same when switched off; queries and keys do not count."""
    plain = layer.run({})
    classes: list[tuple[Tensor, list[str]]] = []
    for path in (*sorted(matrices, key=layer.position), *gains):
        out = layer.run({path: 0.0})
        if _difference(out, plain) < SAME or _scores(path):
            continue
        alike = next((members for other, members in classes if _difference(out, other) < SAME), None)
        if alike is not None:
            alike.append(path)
        elif path in matrices:  # a norm on the stream is not a branch
            classes.append((out, [path]))
    last = [max(members, key=layer.position) for _, members in classes]
    off = layer.run(dict.fromkeys(last, 0.0))
    # With every other branch off, a writer still writes; an unnamed query or key, whose values are off, does not.
    alone = {path: layer.run({other: 0.0 for other in last if other != path}) for path in last}
    return tuple(path for path, out in alone.items() if _difference(out, off) > SAME)


class _Alone:
    """One layer, run alone with some matrices scaled and its biases off."""

    def __init__(
        self, model: nn.Module, batch: object, name: str, biases: Sequence[str], offsets: Mapping[str, float]
    ) -> None:
        self.block, self.runs = twin(model.get_submodule(name)), 0
        self.biases, self.offsets = biases, offsets
        self.order: dict[str, int] = {}
        self.call = _call_of(model, batch, name, self.order)
        self.stream = self.call.stream.detach()

    def position(self, path: str) -> int:
        """When the module that owns a parameter ran; bare parameters last, in the order they are declared."""
        return self.order.get(_owner(path), len(self.order))

    def run(self, scales: Mapping[str, float]) -> Tensor:
        self.runs += 1
        values = {name: buffer.clone() for name, buffer in self.block.named_buffers()}
        values |= {path: self._scaled(path, scale) for path, scale in scales.items()}
        values |= {path: torch.zeros_like(self.block.get_parameter(path)) for path in self.biases}
        with preserved(self.block, gradients=True), torch.no_grad(), holding(self.block, values):
            return next(tensors(self.block(*self.call.inputs, **self.call.named)))

    def _scaled(self, path: str, scale: float) -> Tensor:
        offset = self.offsets.get(path, 0.0)
        return (self.block.get_parameter(path).detach() + offset) * scale - offset


def _call_of(model: nn.Module, batch: object, name: str, order: dict[str, int]) -> BlockCall:
    """The first call of the layer, without its cache; `order` is filled with the order in which its parts run."""
    calls: list[BlockCall] = []
    block = model.get_submodule(name)

    def record(module: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:  # noqa: ARG001
        cacheless = {
            key: value for key, value in named.items() if key not in ("past_key_values", "use_cache")
        }
        calls.append(BlockCall(name, inputs, cacheless))

    with preserved(model, gradients=True) as stack, torch.no_grad():
        stack.callback(block.register_forward_pre_hook(record, with_kwargs=True).remove)

        def note(path: str) -> None:
            order.setdefault(path, len(order))

        for path, module in block.named_modules():
            stack.callback(module.register_forward_pre_hook(lambda *_, path=path: note(path)).remove)
        call(model, batch)
    if not calls:
        raise BadInput(f"this batch does not run {name}, the first of the layers.")
    return calls[0]


def _owner(path: str) -> str:
    return path.rpartition(".")[0]


def _scores(path: str) -> bool:
    """Named as a query or key alone (a fused one holds the values too)."""
    name = leaf(path.removesuffix(".weight"))
    return name in (*QUERY, *KEY) and name not in FUSED


def _difference(first: Tensor, second: Tensor) -> float:
    return float((first - second).norm() / max(float(second.norm()), math.ulp(1.0)))


def _cosine(first: Tensor, second: Tensor) -> float:
    if first.shape != second.shape:
        return 0.0
    x, y = in_double(first).flatten(), in_double(second).flatten()
    return float(x @ y / max(float(x.norm() * y.norm()), 1e-300))
