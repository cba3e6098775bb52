"""Attention of blocks whose residual sums could not be followed: its heads and its mask, seen where it is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from edgewise.models.behavior.graph import CHOICE, FLEX, FUSED, MULTIHEAD, SOFTMAX, Graph
from edgewise.models.behavior.interventions import TRACE_ENTRIES, EditedPassError, Experiment
from edgewise.models.behavior.masks import open_keys
from edgewise.models.behavior.record import Block, Operation, Stack
from edgewise.models.behavior.visibility import Sight, sight
from edgewise.models.behavior.weight_calls import Edits

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
