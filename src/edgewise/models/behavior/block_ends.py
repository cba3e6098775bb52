"""A stack whose residual sums could not be followed, read where its blocks end: enough to measure, not to describe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from edgewise.models.behavior.dependence import open_keys
from edgewise.models.behavior.experiment import TRACE_ENTRIES, EditedPassError, Experiment
from edgewise.models.behavior.graph import CHOICE, FLEX, FUSED, MULTIHEAD, SOFTMAX, Graph
from edgewise.models.behavior.layout import plain_layout
from edgewise.models.behavior.record import Block, Branch, Operation, Stack
from edgewise.models.behavior.visibility import Sight, sight
from edgewise.models.behavior.weight_calls import Edits

NOTE = "read at the outputs of its blocks"


def stack_of_blocks(
    graph: Graph,
    name: str,
    modules: Sequence[str],
    reasons: Sequence[str],
    *,
    entries: int,
    tokens: int | None,
) -> Stack | None:
    """The blocks of a container as a stack, one branch for each; None where a block does not give one tensor a pass."""
    ends = [_end(graph, module) for module in modules]
    start = _start(graph, modules[0])
    if start is None or None in ends:
        return None
    shapes = [graph[index].shape for index in (*ends, start) if index is not None]
    weights = [n.index for n in graph.nodes if n.weight and f"{n.operation.module}.".startswith(f"{name}.")]
    layout = plain_layout(graph, shapes, weights, entries, tokens)
    axes = [] if layout is None else layout.split()
    width = math.prod(size for size, axis in zip(shapes[0], axes, strict=False) if axis == "feature")
    operations = [graph[index].operation for index in (start, *ends) if index is not None]
    blocks = [
        Block(number, module, (_branch(module, operations[number], operations[number + 1]),))
        for number, module in enumerate(modules)
    ]
    return Stack(
        name=name,
        default=True,
        language=tokens is not None,
        width=width,
        tokens=0,
        horizon=0,
        layout=layout,
        start=operations[0],
        start_norm=math.nan,
        absolute=None,
        blocks=tuple(blocks),
        copies=None,
        shared=False,
        notes=(NOTE,),
        not_read=tuple(reasons),
    )


def _end(graph: Graph, module: str) -> int | None:
    """The node that leaves a module, where it ran once."""
    nodes = graph.leaving.get(module, [])
    return (
        nodes[0]
        if len(nodes) == 1 and len(graph[nodes[0]].shape) > 1 and not graph[nodes[0]].integer
        else None
    )


def _start(graph: Graph, module: str) -> int | None:
    """What a module reads first from outside, of the shape that it gives, or of as many axes."""
    end = _end(graph, module)
    if end is None:
        return None
    inside = [n for n in graph.nodes if f"{n.operation.module}.".startswith(f"{module}.") and n.index <= end]
    own = {n.index for n in inside}
    read = [p for n in inside for p in graph.parents(n) if p.index not in own and not p.integer]
    same = [p.index for p in read if p.shape == graph[end].shape]
    alike = [p.index for p in read if len(p.shape) == len(graph[end].shape)]
    return next(iter(same or alike), None)


def _branch(module: str, point: Operation, end: Operation) -> Branch:
    """Of which nothing is known but where it starts and ends."""
    unknown = dict.fromkeys(field.name for field in fields(Branch))
    flags = dict.fromkeys(
        ("silent", "window_both_sides", "softmax", "memory", "other_layers", "experts", "output_gate"), False
    )
    known = {
        "module": module,
        "step": 0,
        "point": point,
        "total": end,
        "outlet": end,
        "multiplier": 1.0,
        "products": 0,
    }
    return Branch(**unknown | flags | known | {"not_read": ()})  # type: ignore[arg-type]


Seen = dict[Operation, tuple[int, Sight]]


def with_attention(experiment: Experiment, stack: Stack) -> Stack:
    """The stack with heads and sight of the one attention of every block; as it is where a block has none or several,
    or where its keys are not the tokens that were given."""
    graph, length = experiment.graph, experiment.feed.tokens
    kernels = [_kernels(graph, block) for block in stack.blocks]
    if length is None or any(len(found) != 1 for found in kernels):
        return stack
    seen: Seen = {}
    try:
        calls = {found[0]: _look(found[0], length, seen) for found in kernels}
        experiment.run(TRACE_ENTRIES, Edits(calls=calls))
    except EditedPassError:
        return stack
    if any(found[0] not in seen for found in kernels):
        return stack
    blocks = [_known(block, *seen[found[0]]) for block, found in zip(stack.blocks, kernels, strict=True)]
    return replace(stack, blocks=tuple(blocks))


def _kernels(graph: Graph, block: Block) -> list[Operation]:
    """The softmaxes of a block over more than its channels; none where the input chooses inside it before them."""
    own = [node for node in graph.nodes if f"{node.operation.module}.".startswith(f"{block.module}.")]
    kernels = [
        n for n in own if n.function in SOFTMAX and n.function not in (MULTIHEAD, FLEX) and len(n.shape) == 4
    ]
    chosen = [n.index for n in own if n.function in CHOICE]
    return [n.operation for n in kernels if not any(index < n.index for index in chosen)]


def _look(operation: Operation, length: int, seen: Seen) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        fused = operation.function in FUSED
        first: Tensor = args[0] if args else kwargs["query" if fused else "input"]
        keys = open_keys(args, kwargs, length, fused)
        if keys is None or first.dim() != 4 or first.shape[0] != TRACE_ENTRIES or first.shape[-2] != length:
            return
        rows = [(query, set(row.nonzero().flatten().tolist())) for query, row in enumerate(keys)]
        pattern = sight(rows, length)
        if pattern is not None:
            seen[operation] = int(first.shape[1]), pattern

    return look


def _known(block: Block, heads: int, pattern: Sight) -> Block:
    branch = replace(
        block.branches[0],
        kind="attention",
        heads=heads,
        sees=pattern.sees,
        window=pattern.window,
        window_both_sides=pattern.both_sides,
        window_uneven=pattern.uneven,
        softmax=True,
        products=1,
    )
    return replace(block, branches=(branch,))
