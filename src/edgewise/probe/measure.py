"""A module, a factory or a config to Trace: the numbers of the theory read from real weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import nn

from edgewise.arrays import check_tokens
from edgewise.errors import BadInput
from edgewise.interrupts import deferring
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Block, Branch, Operation, Reading, Stack
from edgewise.models.behavior.stacks import PARTIAL
from edgewise.models.inputs import default_batch
from edgewise.models.model_map import ModelMap
from edgewise.models.module_description import describe_read_module
from edgewise.models.names.model_sites import BlockSite
from edgewise.models.readable import refuse_infinite, words
from edgewise.models.small.full_size import full_kinds
from edgewise.models.small.sizes import Scale
from edgewise.models.small.small_model import Blueprint, blueprint
from edgewise.models.state import back_in_shards, is_sharded, random_streams
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import Trace
from edgewise.probe.geometry import READOUTS
from edgewise.probe.observation import NetworkObservation, Request, observe, trace_of
from edgewise.probe.streamed import measure_stream
from edgewise.probe.subjects import Measurable, seeded, subject


@deferring
def measure(
    source: object,
    batch: object = None,
    *,
    seeds: int = 1,
    readouts: Sequence[str] | None = READOUTS,
    attention: bool = True,
    pair: bool = True,
    gain: bool = False,
    stream: bool = False,
    tokens: int | None = None,
    stack: str | None = None,
) -> Trace:
    """The orbit through depth, read from a real model.

    source     any source (`edgewise.models.source` lists them); what has no weights yet is initialized for every seed
    batch      whatever the model accepts: keyword arguments, a tuple, a tensor; default: random ids or pixels
    seeds      new initializations of a factory or config; for a module, new readout and pair directions
    readouts   own: the model's loss; token: an independent gradient per token at the last block; pooled: a shared one;
               None: token or pooled, by how the model reads its own output, which `trace.readout` says
    attention  entropy, support, largest eigenvalue and condition of the softmax Jacobian, saturation, largest logit
    pair       `statistics["pair_growth"]`, the local growth of the angle between two nearby inputs
    gain       `statistics["softmax_gain"]` and the spread of the rows' gradients; one more backward pass
    stream     one block in memory at a time (configs of Hugging Face only)
    tokens     length of the random input; default: 64
    stack      which stack of a model with several (`edgewise.models.stacks` lists them); default: the language stack

    Padding is left out of every number, and so are tokens whose stream starts as zeros: `trace.notes` says which.
    Outputs, gradients, random streams, modes, flags and hooks are as before afterwards.

    >>> layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    >>> trace = measure(nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), tokens=8)
    >>> trace.depth, trace.readouts
    (3, ('token', 'pooled'))
    """
    _refuse(seeds, readouts, batch, tokens)
    target = subject(source.model if isinstance(source, ModelMap) else source)
    if gain and (stream or not attention or (readouts is not None and not readouts)):
        raise BadInput("gain needs a model in memory, attention=True and a readout to send backwards.")
    request = Request(None if readouts is None else tuple(readouts), attention, pair, range(seeds), gain=gain)
    if stream:
        return measure_stream(target, batch, request, tokens)
    with random_streams():
        if (module := target.module) is not None:
            back_in_shards(module)
            where = source if isinstance(source, ModelMap) else ModelMap(module)
            place = _find(where, batch, tokens, stack)
            observation = _observe(module, place, batch, request, tokens)
            return _trace(
                [observation], module, place, target.name, f"{seeds} readout directions, weights as given"
            )
        assert target.factory is not None
        observations = []
        for seed in range(seeds):
            network = seeded(target.factory, seed)
            single = replace(request, seeds=[seed], check=seed == 0)
            if seed == 0:  # every seed builds the same modules
                place, first = _find_and_observe(target, network, batch, single, tokens, stack)
                observations.append(first)
            else:
                observations.append(_observe(network, place, batch, single, tokens))
        return _trace(observations, network, place, target.name, f"{seeds} seeds, each a new initialization")


@dataclass(frozen=True)
class _Place:
    """What is measured: a stack of the model, and the roles of its matrices or why they are not known."""

    where: ModelMap
    reading: Reading
    stack: Stack
    blocks: tuple[BlockSite, ...]
    why_no_roles: str = ""
    described: Architecture | None = None  # by its family, if the model itself was not read

    @property
    def notes(self) -> list[str]:
        others = [stack.name for stack in self.reading.stacks if stack is not self.stack]
        notes = [f"stack {self.stack.name} (not {', '.join(others)})"] if others else []
        notes += (
            [f"gradients of single matrices not measured: {self.why_no_roles}"] if self.why_no_roles else []
        )
        notes += self.where.notes[:1]
        return notes


def _find(where: ModelMap, batch: object, tokens: int | None, name: str | None) -> _Place:
    """The stack to be measured, by behavior; the roles of its matrices, by name, if the names fit it."""
    model = where.model
    if not any(parameter.is_floating_point() for parameter in model.parameters()):
        raise BadInput(
            f"{type(model).__name__} has no floating-point parameters, so there is nothing to measure."
        )
    refuse_infinite(model, batch)
    reading = _read(where, batch, tokens, name)
    stack = reading.default
    if stack is None:
        raise BadInput(
            f"{reading.model} cannot be measured: {'; '.join(reading.not_read) or 'no stack was found'}."
        )
    partial = next((reason for reason in stack.not_read if name is None and reason.startswith(PARTIAL)), "")
    if partial:
        raise BadInput(
            f"{reading.model} cannot be measured as a whole: of its stack {stack.name}, {partial}. "
            f"stack={stack.name!r} measures the blocks that were followed."
        )
    if stack.layout is None:
        raise BadInput(
            f"the stream of {stack.name} cannot be measured: which of its axes are tokens and which are features was "
            f"not certain. {'; '.join(stack.not_read)}"
        )
    blocks, why = where.roles(stack)
    if any(is_sharded(module) for module in model.modules()):
        blocks, why = (), "its weights lie in shards (FSDP2), whose gradients only training brings together"
    return _Place(where, reading, stack, blocks, why)


def _find_and_observe(
    target: Measurable,
    network: nn.Module,
    batch: object,
    request: Request,
    tokens: int | None,
    stack: str | None,
) -> tuple[_Place, NetworkObservation]:
    """By a narrow twin if there is one; if the model takes another path than its twin, by reading it itself."""
    where = ModelMap(network)
    place = _find_in_twin(target.config, where, tokens) if batch is None and stack is None else None
    if place is not None:
        with suppress(BadInput):
            return place, _observe(network, place, batch, request, tokens)
    place = _find(where, batch, tokens, stack)
    return place, _observe(network, place, batch, request, tokens)


def _find_in_twin(config: object, where: ModelMap, tokens: int | None) -> _Place | None:
    """The stack of a model whose config is of a listed family; None if it has to be read itself."""
    found = None if config is None else read_twin(config, where, tokens)
    if found is None:
        return None
    refuse_infinite(where.model)
    reading, stack, described = found
    blocks, why = where.roles(stack)
    return _Place(where, reading, stack, blocks, why, described)


def _read(where: ModelMap, batch: object, tokens: int | None, name: str | None) -> Reading:
    """On the batch itself; if that is too short to tell its axes apart, on a made-up one."""
    reading = where.reading(_batch(where.model, batch, tokens, seed=0), name)
    if reading.default is not None and reading.default.layout is not None:
        return reading
    try:
        longer = where.reading(None, name, again=True)
    except BadInput:
        return reading
    return longer if longer.default is not None and longer.default.layout is not None else reading


def _batch(model: nn.Module, batch: object, tokens: int | None, seed: int) -> object:
    return default_batch(model, torch.Generator().manual_seed(seed), tokens) if batch is None else batch


def _observe(
    model: nn.Module, place: _Place, batch: object, request: Request, tokens: int | None
) -> NetworkObservation:
    batch = _batch(model, batch, tokens, request.seeds[0])
    try:
        return observe(model, batch, place.stack, place.blocks, request)
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{type(model).__name__} was read and could not be measured: {words(error)}. "
            "The exception that caused this one shows where."
        ) from error


def _refuse(seeds: int, readouts: Sequence[str] | None, batch: object, tokens: int | None) -> None:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise BadInput(f"seeds must be a whole number of at least 1, got {seeds!r}.")
    names = () if readouts is None else readouts
    unknown = [readout for readout in names if readout not in READOUTS]
    if unknown or isinstance(readouts, str) or len(set(names)) != len(names):
        raise BadInput(f"readouts must be different ones of {', '.join(READOUTS)}, got {readouts!r}.")
    if tokens is not None and batch is not None:
        raise BadInput("tokens is the length of a random input; with a batch, leave it out.")
    if tokens is not None:
        check_tokens(tokens)


def _trace(
    observations: Sequence[NetworkObservation], model: nn.Module, place: _Place, name: str, seeds: str
) -> Trace:
    first = observations[0]
    parts = [f"measured: {name}, {first.tokens} tokens, {seeds}", *place.notes]
    parts += [first.left_out] if first.left_out else []
    parts += dict.fromkeys(note for observation in observations for note in observation.notes)
    return trace_of(observations, _description(model, place, first.tokens), "; ".join(parts))


def _description(model: nn.Module, place: _Place, tokens: int) -> Architecture | str:
    """The description of the model, or why there is none: a measurement does not depend on it."""
    if place.described is not None:
        return place.described.replace(tokens=tokens)
    try:
        return describe_read_module(model, place.reading, tokens=tokens, where=place.where)
    except BadInput as error:
        return f"not described: {error}"


def read_twin(
    config: object, model: nn.Module | ModelMap, tokens: int | None
) -> tuple[Reading, Stack, Architecture] | None:
    """The reading of a small twin, its stack at full depth, and the description by the config's family.

    None if the family is not listed, or the twin is not alike: then the model itself has to be read.
    """
    where = ModelMap.of(model)
    model, described = where.model, where.described(tokens)
    if described is None:
        return None
    try:
        plan = blueprint(config, type(model))
        if not plan.narrow:  # a twin as wide as the model would cost as much
            return None
        found = next(
            filter(None, (_stack(plan, depth, model) for depth in (plan.depth, plan.full_depth))), None
        )
    except BadInput:
        return None
    if found is None or found[1].depth != described.depth:
        return None
    reading, stack = found
    return reading, replace(stack, width=described.width), described


def _stack(plan: Blueprint, depth: int, model: nn.Module) -> tuple[Reading, Stack] | None:
    """The one stack of a twin of this depth, with all blocks of the model; None if that is not certain."""
    scale = Scale(depth=depth)
    twin = plan.build(scale)
    reading = read(twin)
    stack = reading.default
    if stack is None or len(reading.stacks) > 1 or stack.not_read or stack.layout is None:
        return None
    names = {name for name, _ in twin.named_modules()}
    if depth < plan.full_depth:
        alike = _alike(stack, full_kinds(plan, scale, stack))
        if alike is None:
            return None
        names |= {
            moved for i, block in alike.items() for name in names if (moved := _moved(name, block, stack, i))
        }
        stack = replace(stack, blocks=(*stack.blocks, *_deeper(stack, alike)))
    return (reading, stack) if names == {name for name, _ in model.named_modules()} else None


def _alike(stack: Stack, kinds: tuple[int, ...] | None) -> dict[int, Block] | None:
    """For every block that the twin lacks, the first of its kind; None where a block is not a module with all of it."""
    if kinds is None or any(
        b.module != f"{stack.name}.{b.index}" or not _self_contained(b) for b in stack.blocks
    ):
        return None
    return {i: stack.blocks[kinds.index(kinds[i])] for i in range(stack.depth, len(kinds))}


def _self_contained(block: Block) -> bool:
    names = (
        name for b in block.branches for name in (b.module, b.total.module, (b.outlet or b.total).module)
    )
    return all(_inside(name, block) for name in names)


def _inside(name: str, block: Block) -> bool:
    return f"{name}.".startswith(f"{block.module}.")


def _moved(name: str, block: Block, stack: Stack, index: int) -> str | None:
    """The name of a module of the block in a block of another number."""
    return f"{stack.name}.{index}{name[len(block.module or '') :]}" if _inside(name, block) else None


def _deeper(stack: Stack, alike: dict[int, Block]) -> Iterator[Block]:
    last = stack.branches[-1]
    for index, block in alike.items():
        later = last.step + 1 - block.branches[0].step
        branches = tuple(
            replace(_branch(branch, block, stack, index, last), step=branch.step + later)
            for branch in block.branches
        )
        yield replace(block, index=index, module=f"{stack.name}.{index}", branches=branches)
        last = branches[-1]


def _branch(branch: Branch, block: Block, stack: Stack, index: int, before: Branch) -> Branch:
    """The branch in a block of another number; what it reads from outside the block is where the one before ends.

    Its attention is found by its module: calls and matrices keep the names of the block that was read.
    """

    def at(operation: Operation) -> Operation:
        moved = _moved(operation.module, block, stack, index)
        return operation._replace(module=moved) if moved else before.outlet or before.total

    module = _moved(branch.module, block, stack, index) or branch.module
    outlet = None if branch.outlet is None else at(branch.outlet)
    return replace(
        branch,
        module=module,
        point=at(branch.point),
        total=at(branch.total),
        outlet=outlet,
        matrices=(),
        calls=(),
    )
