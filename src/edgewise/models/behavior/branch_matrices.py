"""Which parameter each matrix of a branch is, and its role: query, key, value, output; gate, input, output of an MLP.

Roles follow from the graph: what meets at the product under a softmax, what the stream feeds, what comes last. A matrix
that is no parameter by itself (a weight norm, a cast, an expert) has no role here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from edgewise.models.behavior.graph import ADD, MULTIHEAD, SAME_NUMBERS, Constant, Graph
from edgewise.models.behavior.interventions import EditedPassError, Experiment, Site
from edgewise.models.behavior.mlp import feeders
from edgewise.models.behavior.operands import operands
from edgewise.models.behavior.record import AttentionCall, BranchMatrix, Operation, ProjectionCall
from edgewise.models.behavior.residual_sums import Score
from edgewise.models.behavior.weight_calls import Edits

Rows = tuple[int, int, int, int]  # groups, rows of a group, first and last + 1 of these in every group
KEEP_SCALE = (
    SAME_NUMBERS
    | ADD
    | {"masked_fill", "masked_fill_", "where", "sub", "__sub__", "__getitem__", "amax", "max"}
)
ON_THE_RIGHT = ("matmul", "__matmul__", "mm", "addmm")  # x @ W, stored (in, out)


def matrices_of(experiment: Experiment, site: Site, kind: str | None) -> tuple[BranchMatrix, ...]:
    """The matrices of an attention or an MLP by role; nothing if one of them is not certain."""
    roles = _of_attention(site) if kind == "attention" else _of_mlp(experiment, site) if kind == "mlp" else {}
    found = [_matrix(experiment, role, op, rows) for role, (op, rows) in roles.items()]
    return tuple(matrix for matrix in found if matrix is not None) if None not in found else ()


def attention_calls(experiment: Experiment, site: Site) -> tuple[AttentionCall, ...]:
    """Where an attention is computed, and what gives its queries, keys and values; one for each of its products."""
    axes = next(iter(site.traits.axes.values()), (None, None))
    calls = []
    for score in site.part.scores:
        made = {
            role: _projection_call(experiment, weights, site.traits.fused.get(role))
            for role, weights in (
                ("query", score.query_weights),
                ("key", score.key_weights),
                ("value", score.value_weights),
            )
        }
        scale = site.traits.scales.get(score.product, _scale(experiment.graph, score))
        if score.product.function == MULTIHEAD and site.traits.head_width:
            scale = site.traits.head_width**-0.5
        calls.append(
            AttentionCall(
                score.product,
                score.softmax,
                score.values,
                query_axes=axes[0],
                key_axes=axes[1],
                scale=scale,
                **made,
            )
        )
    return tuple(calls)


def _projection_call(
    experiment: Experiment, weights: Sequence[Operation], rows: Rows | None
) -> ProjectionCall | None:
    """Of the one matrix that makes them; its adapters' matrices are listed behind it."""
    if len(weights) != 1:
        return None
    graph, update = experiment.graph, experiment.graph.updates.get(weights[0])
    total = weights[0] if update is None else update.total
    node = next(node.index for node in graph.nodes if node.operation == total)
    module, call = next(iter(graph.outputs.get(node, ())), (None, 0))
    names = [_parameter(experiment, op) for op in (weights[0], *(() if update is None else update.weights))]
    known = tuple(name for name in names if name is not None)
    return ProjectionCall(total, module, call, known if len(known) == len(names) else (), rows)


def _parameter(experiment: Experiment, operation: Operation) -> str | None:
    constants = experiment.graph.constants.get(operation, ())
    matrix = next((c for c in constants if len(c.shape) > 1), None)
    return None if matrix is None else _name(experiment.parameters, matrix)


def _scale(graph: Graph, score: Score) -> float | None:
    """What multiplies the scores between the product and the softmax, if that is a number."""
    ends = [node.index for node in graph.nodes if node.operation in (score.product, score.softmax)]
    scale = 1.0
    for index in graph.between(ends[0], ends[-1])[:-1]:
        node = graph[index]
        if isinstance(node.scale, float):
            scale *= node.scale
        elif node.function not in KEEP_SCALE:
            return None
    return scale


def read_fused_rows(experiment: Experiment) -> None:
    """Which rows of a matrix that makes queries, keys and values are whose: those that a gradient reaches. One pass."""
    fused = {site.part.first[0]: site for site in experiment.sites if _fused(site)}
    inward: dict[Operation, Tensor] = {}
    meeting: dict[Operation, tuple[Tensor, Tensor]] = {}
    if not fused or not experiment.differentiable:
        return

    def enter(operation: Operation) -> Callable[[Tensor], Tensor]:
        def edit(value: Tensor) -> Tensor:
            inward[operation] = value.detach().requires_grad_()
            return inward[operation]

        return edit

    def look(site: Site, product: Operation) -> Callable[..., None]:
        def keep(args: Any, kwargs: Any) -> None:
            meeting[site.part.first[0]] = operands(product, args, kwargs)

        return keep

    products = {site.part.scores[0].product: site for site in fused.values()}
    calls = {product: look(site, product) for product, site in products.items()}
    try:
        experiment.run(1, Edits(first_outputs={op: enter(op) for op in fused}, calls=calls), gradients=True)
    except EditedPassError:
        return
    with torch.enable_grad():
        for operation, site in fused.items():
            if operation in meeting:
                site.traits.fused = _divided(inward[operation], meeting[operation])


def _fused(site: Site) -> bool:
    """Queries and keys, or keys and values, out of one matrix: rows are shared."""
    part = site.part
    ways = {op for score in part.scores for op in (*score.query_weights, *score.key_weights)}
    plain = bool(part.scores) and all(score.product.function != MULTIHEAD for score in part.scores)
    return plain and len(ways) == 1 and len(part.first) == 1 and part.first[0] in ways


def _divided(inward: Tensor, meeting: tuple[Tensor, Tensor]) -> dict[str, Rows]:
    reached = []
    for operand in meeting:
        total = (operand * torch.randn_like(operand)).sum()
        gradient = torch.autograd.grad(total, inward, retain_graph=True, allow_unused=True)[0]
        reached.append(None if gradient is None else (gradient != 0).flatten(0, -2).any(0))
    if None in reached:
        return {}
    query, key = (mask for mask in reached if mask is not None)
    rows = {"query": _rows(query), "key": _rows(key), "value": _rows(~(query | key))}
    return (
        {}
        if bool((query & key).any())
        else {role: found for role, found in rows.items() if found is not None}
    )


def _rows(mask: Tensor) -> Rows | None:
    """The pattern of marked rows, if they are the same in groups of one size."""
    marked = mask.nonzero().flatten().tolist()
    if not marked:
        return None
    starts = [row for row in marked if row == 0 or not mask[row - 1]]
    groups, count = len(starts), len(mask)
    size, length = count // groups, len(marked) // groups
    same = [start + size * g + i for g in range(groups) for start in starts[:1] for i in range(length)]
    return (groups, size, starts[0], starts[0] + length) if same == marked and not count % groups else None


def _of_attention(site: Site) -> dict[str, tuple[Operation, Rows | None]]:
    part, fused = site.part, site.traits.fused
    if len(part.scores) != 1 or len(part.last) != 1 or part.last[0] in part.first:
        return {}
    score = part.scores[0]
    if fused:
        own: dict[str, tuple[Operation, Rows | None]] = {
            role: (part.first[0], rows) for role, rows in fused.items()
        }
        return own | {"output": (part.last[0], None)} if {"query", "key", "value"} <= own.keys() else {}
    values = [op for op in part.first if op not in (*score.query_weights, *score.key_weights)]
    ways = (score.query_weights, score.key_weights, values, part.last)
    if any(len(way) != 1 for way in ways) or not {score.query_weights[0], score.key_weights[0]} <= set(
        part.first
    ):
        return {}
    names = ("query", "key", "value", "output")
    return {role: (way[0], None) for role, way in zip(names, ways, strict=True)}


def _of_mlp(experiment: Experiment, site: Site) -> dict[str, tuple[Operation, Rows | None]]:
    pairs = list(feeders(experiment, site))
    if (
        len(pairs) != 1
        or len(pairs[0][1]) > 2
        or site.part.routed
        or len(site.part.weights) != 1 + len(pairs[0][1])
    ):
        return {}
    (last, firsts), gate = pairs[0], site.traits.gate
    ends: dict[str, tuple[Operation, Rows | None]] = {"output": (last, None)}
    if len(firsts) == 1 and not site.traits.gated:
        return {"input": (firsts[0], None)} | ends
    if gate is None:
        return {}
    if len(firsts) == 2:
        return {"gate": (firsts[gate], None), "input": (firsts[1 - gate], None)} | ends
    width = site.traits.hidden_width or 0
    halves = [(1, 2 * width, width * half, width * (half + 1)) for half in (gate, 1 - gate)]
    return {"gate": (firsts[0], halves[0]), "input": (firsts[0], halves[1])} | ends


def _matrix(
    experiment: Experiment, role: str, operation: Operation, rows: Rows | None
) -> BranchMatrix | None:
    """The parameter that a weight call multiplies by, and how it is stored."""
    constants = experiment.graph.constants.get(operation, ())
    matrix = next((c for c in constants if len(c.shape) == 2), None)
    if matrix is None or operation.function not in ("linear", *ON_THE_RIGHT):
        return None
    name = _name(experiment.parameters, matrix)
    if name is None:
        return None
    parameter = experiment.parameters[matrix.storage][name]
    turned = matrix.stride == tuple(parameter.stride())[::-1] != tuple(parameter.stride())
    if parameter.dim() != 2 or matrix.shape != (
        tuple(parameter.shape)[::-1] if turned else tuple(parameter.shape)
    ):
        return None  # a part of a parameter
    vector = next((c for c in constants if len(c.shape) == 1), None)
    bias = None if vector is None else _name(experiment.parameters, vector)
    return BranchMatrix(role, name, turned != (operation.function in ON_THE_RIGHT), rows, bias)


def _name(parameters: Mapping[int, Mapping[str, Tensor]], constant: Constant) -> str | None:
    fits: Sequence[str] = [
        name
        for name, p in parameters.get(constant.storage, {}).items()
        if p.storage_offset() <= constant.offset < p.storage_offset() + p.numel()
    ]
    return fits[0] if len(fits) == 1 else None
