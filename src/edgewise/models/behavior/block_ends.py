"""A stack whose residual sums could not be followed, read where its blocks end: enough to measure, not to describe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from edgewise.models.behavior.dependence import open_keys
from edgewise.models.behavior.experiment import TRACE_ENTRIES, EditedPassError, Experiment
from edgewise.models.behavior.graph import CHOICE, FLEX, FUSED, MULTIHEAD, SOFTMAX, Graph, Node
from edgewise.models.behavior.layout import plain_layout
from edgewise.models.behavior.record import AttentionCall, Block, Branch, Operation, Stack
from edgewise.models.behavior.stacks import repetition
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
    """The blocks of a container as a stack, one branch for each; None where a block does not give one tensor a pass.

    Modules of several kinds that take turns (attention, feed-forward) make a block together.
    """
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
    branches = [
        _branch(module, operations[number], operations[number + 1], number)
        for number, module in enumerate(modules)
    ]
    turns = repetition([(_attends(graph, module), False, len(_own(graph, module))) for module in modules])
    groups = [
        [b for b, turn in zip(branches, turns, strict=True) if turn == one] for one in dict.fromkeys(turns)
    ]
    groups = groups if len(groups) > 1 else [[branch] for branch in branches]
    blocks = [
        Block(number, own[0].module if len(own) == 1 else None, tuple(own))
        for number, own in enumerate(groups)
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
    """The node that leaves a module, if it ran once."""
    nodes = graph.leaving.get(module, [])
    return (
        nodes[0]
        if len(nodes) == 1 and len(graph[nodes[0]].shape) > 1 and not graph[nodes[0]].integer
        else None
    )


def _start(graph: Graph, module: str) -> int | None:
    """Return what a module reads first from outside, of the shape that it gives, or of as many axes."""
    end = _end(graph, module)
    if end is None:
        return None
    inside = [n for n in _own(graph, module) if n.index <= end]
    own = {n.index for n in inside}
    read = [p for n in inside for p in graph.parents(n) if p.index not in own and not p.integer]
    same = [p.index for p in read if p.shape == graph[end].shape]
    alike = [p.index for p in read if len(p.shape) == len(graph[end].shape)]
    return next(iter(same or alike), None)


def _own(graph: Graph, module: str) -> list[Node]:
    """Return what ran inside a module."""
    return [node for node in graph.nodes if f"{node.operation.module}.".startswith(f"{module}.")]


def _attends(graph: Graph, module: str) -> bool:
    return any(node.function in SOFTMAX for node in _own(graph, module))


def _branch(module: str, point: Operation, end: Operation, step: int) -> Branch:
    """Of which nothing is known but where it starts and ends."""
    unknown = dict.fromkeys(field.name for field in fields(Branch))
    flags = dict.fromkeys(
        ("silent", "window_both_sides", "softmax", "memory", "other_layers", "experts", "output_gate"), False
    )
    known = {
        "module": module,
        "step": step,
        "point": point,
        "total": end,
        "outlet": end,
        "multiplier": 1.0,
        "products": 0,
    }
    return Branch(**unknown | flags | known | {"not_read": ()})  # type: ignore[arg-type]


Seen = dict[Operation, tuple[int, Sight | None]]  # heads, and what they see


def with_attention(experiment: Experiment, stack: Stack) -> Stack:
    """The stack with heads and sight of every branch that holds one attention of tokens to each other."""
    kernels = {id(b): _kernel(experiment.graph, b.module) for b in stack.branches if b.kind is None}
    seen: Seen = {}
    calls = {kernel: _look(kernel, seen) for kernel in kernels.values() if kernel is not None}
    if not calls:
        return stack
    try:
        experiment.run(TRACE_ENTRIES, Edits(calls=calls))
    except EditedPassError:
        return stack
    known = {
        branch: _known(b, kernel, *seen[kernel])
        for b in stack.branches
        if (kernel := kernels.get(branch := id(b))) is not None and kernel in seen
    }
    blocks = (replace(k, branches=tuple(known.get(id(b), b) for b in k.branches)) for k in stack.blocks)
    return replace(stack, blocks=tuple(blocks))


def _kernel(graph: Graph, module: str) -> Operation | None:
    """The one softmax of a module over more than its channels; None if the input chooses inside it before that."""
    own = _own(graph, module) if module else []
    plain = SOFTMAX - {MULTIHEAD, FLEX}
    kernels = [n for n in own if n.function == MULTIHEAD or (n.function in plain and len(n.shape) == 4)]
    chosen = [n.index for n in own if n.function in CHOICE]
    free = len(kernels) == 1 and not any(index < kernels[0].index for index in chosen)
    return kernels[0].operation if free else None


def _look(operation: Operation, seen: Seen) -> Callable[..., None]:
    def look(args: Any, kwargs: Any) -> None:
        if operation.function == MULTIHEAD:
            seen[operation] = int(args[4]), None
            return
        fused = operation.function in FUSED
        first: Tensor = args[0] if args else kwargs["query" if fused else "input"]
        if first.dim() != 4 or first.shape[0] != TRACE_ENTRIES:
            return
        length = first.shape[-2]
        keys = open_keys(args, kwargs, length, fused)
        rows = (
            []
            if keys is None
            else [(query, set(row.nonzero().flatten().tolist())) for query, row in enumerate(keys)]
        )
        pattern = sight(rows, length) if rows else None
        if pattern is not None:
            seen[operation] = int(first.shape[1]), pattern

    return look


def _known(branch: Branch, kernel: Operation, heads: int, pattern: Sight | None) -> Branch:
    unknown = dict.fromkeys(("values", "query", "key", "value", "query_axes", "key_axes", "scale"))
    return replace(
        branch,
        kind="attention",
        heads=heads,
        sees=None if pattern is None else pattern.sees,
        window=None if pattern is None else pattern.window,
        window_both_sides=pattern is not None and pattern.both_sides,
        window_uneven=pattern is not None and pattern.uneven,
        softmax=True,
        products=1,
        calls=(AttentionCall(kernel, kernel, **unknown),),
    )
