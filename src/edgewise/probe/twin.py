"""Where the streams of a model from a config are, as a small twin of the same class shows them.

A reading names operations by module, call and count, which do not depend on widths: what is read in the twin holds in
the model itself. The twin has as many layers as it needs to have one of every kind; operations of the other layers
have the names of the first of their kind, in a module of another number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.read import read
from edgewise.models.behavior.record import Block, Branch, Operation, Reading, Stack
from edgewise.models.model_map import ModelMap
from edgewise.models.small.full_size import full_kinds
from edgewise.models.small.sizes import Scale
from edgewise.models.small.small_model import Blueprint, blueprint
from edgewise.nouns.architecture import Architecture


def read_twin(
    config: Any, model: nn.Module | ModelMap, tokens: int | None
) -> tuple[Reading, Stack, Architecture] | None:
    """The reading of a small twin, its stack at full depth, and the description by the config's family.

    None where the family is not listed, or the twin is not alike: then the model itself has to be read.
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
    """The one stack of a twin of this depth, with all blocks of the model; None where that is not certain."""
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
