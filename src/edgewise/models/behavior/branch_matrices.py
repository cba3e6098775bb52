"""Which parameter each matrix of a branch is, and its role: query, key, value, output; gate, input, output of an MLP.

Roles follow from the graph: what meets at the product under a softmax, what the stream feeds, what comes last. A matrix
that is not a parameter by itself (a weight norm, a cast, an expert) has no role here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.models.behavior.experiment import EditedPassError, Experiment, Site
from edgewise.models.behavior.graph import ADD, FUSED, MULTIHEAD, SAME_NUMBERS, Constant, Graph
from edgewise.models.behavior.mlp import feeders
from edgewise.models.behavior.record import AttentionCall, BranchMatrix, Operation, ProjectionCall
from edgewise.models.behavior.residuals import Score
from edgewise.models.behavior.score_operands import operands
from edgewise.models.behavior.weight_calls import Edits

Rows = tuple[int, int, int, int]  # groups, rows of a group, first and last + 1 of these in every group
Role = tuple[str, Operation, Rows | None]
KEEP_SCALE = (
    SAME_NUMBERS
    | ADD
    | {"masked_fill", "masked_fill_", "where", "sub", "__sub__", "__getitem__", "amax", "max"}
)
POINTWISE = ("conv1d", "conv2d", "conv3d")
ON_THE_RIGHT = ("matmul", "__matmul__", "mm", "addmm")  # x @ W, stored (in, out)


def matrices_of(experiment: Experiment, site: Site, kind: str | None) -> tuple[BranchMatrix, ...]:
    """The matrices of an attention or an MLP by role; nothing if one of them is not certain."""
    scores = site.part.scores
    if kind == "attention" and len(scores) == 1 and scores[0].product.function == MULTIHEAD:
        return _of_torch(experiment, scores[0].product)
    roles = (
        _of_attention(experiment, site)
        if kind == "attention"
        else _of_mlp(experiment, site)
        if kind == "mlp"
        else []
    )
    found = [_matrix(experiment, *role) for role in roles]
    return tuple(matrix for matrix in found if matrix is not None) if None not in found else ()


def why_no_roles(experiment: Experiment, site: Site) -> str:
    """Say what keeps the matrices of a branch from having a certain role; for a branch without any."""
    part = site.part
    others = {op for other in experiment.sites if other is not site for op in other.part.weights}
    shared = [op for op in part.weights if op in others]
    if shared:
        name = _parameter(experiment, shared[0]) or shared[0].module
        return f"{name} is fused: it makes the inside of attention and of the MLP together, in parallel"
    if part.routed and site.traits.gated is None:
        return "a router chooses among its matrices (experts)"
    if any(None in _parameters(experiment, op) for op in part.weights):
        return "a matrix of it is computed from parameters, and is none by itself"
    if len(part.scores) > 1:
        return f"it takes several products of queries and keys ({len(part.scores)})"
    if part.scores and len(part.weights) > 4:
        return f"queries, keys and values pass through {len(part.weights)} matrices (latents, or norms with matrices)"
    if part.scores and _shared(site) and not site.traits.fused:
        return "the rows of the matrix that makes queries, keys and values could not be told apart"
    return (
        f"it has {len(part.weights)} matrices, {len(part.first)} at its start and {len(part.last)} at its end"
    )


def writers_of(experiment: Experiment, site: Site) -> tuple[BranchMatrix, ...]:
    """The matrices that end a branch; nothing if one of them is not a parameter."""
    found: list[BranchMatrix | None] = []
    for op in site.part.last:
        whole = op.function == MULTIHEAD  # torch's own attention, of which the last matrix counts
        found += (
            _of_torch(experiment, op)[-1:] or [None] if whole else [_matrix(experiment, "output", op, None)]
        )
    return tuple(m for m in found if m is not None) if None not in found else ()


def attention_calls(experiment: Experiment, site: Site) -> tuple[AttentionCall, ...]:
    """Find the calls of an attention and what gives its queries, keys and values; one for each of its products."""
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
                heads=site.traits.heads,
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
    node = graph.by_operation[total]
    module, call = next(iter(graph.outputs.get(node, ())), (None, 0))
    names = [_parameter(experiment, op) for op in (weights[0], *(() if update is None else update.weights))]
    known = tuple(name for name in names if name is not None)
    return ProjectionCall(total, module, call, known if len(known) == len(names) else (), rows)


def weights_of(
    experiment: Experiment, sites: Sequence[Site]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """(parameters that branches multiply the stream by, those of low-rank updates beside them)."""
    inner = experiment.graph.inner
    own = [op for site in sites for op in site.part.weights if op not in inner]
    names = [name for op in own for name in _parameters(experiment, op)]
    updates = [name for op in inner for name in _parameters(experiment, op) if name is not None]
    known = tuple(dict.fromkeys(name for name in names if name is not None))
    return (None if None in names or not known else known), tuple(dict.fromkeys(updates))


def _parameters(experiment: Experiment, operation: Operation) -> list[str | None]:
    """The matrices of one call, of torch's own attention several; None stands for one that is not a parameter."""
    constants = [c for c in experiment.graph.constants.get(operation, ()) if len(c.shape) > 1]
    return [
        _name(experiment.parameters, c) or _parametrized(experiment.model, operation.module, c.shape)
        for c in constants
    ] or [None]


def _parameter(experiment: Experiment, operation: Operation) -> str | None:
    constants = experiment.graph.constants.get(operation, ())
    matrix = next((c for c in constants if len(c.shape) > 1), None)
    return None if matrix is None else _name(experiment.parameters, matrix)


def _scale(graph: Graph, score: Score) -> float | None:
    """Return what multiplies the scores between the product and the softmax, if that is a number."""
    ends = sorted({graph.by_operation[score.product], graph.by_operation[score.softmax]})
    scale = 1.0
    for index in graph.between(ends[0], ends[-1])[:-1]:
        node = graph[index]
        if isinstance(node.scale, float):
            scale *= node.scale
        elif node.function not in KEEP_SCALE:
            return None
    return scale


def read_fused_rows(experiment: Experiment) -> None:
    """Read which rows of a fused matrix give queries, keys and values: those that a gradient
    reaches. One pass."""
    fused = [site for site in experiment.sites if _shared(site)]
    inward: dict[Operation, Tensor] = {}
    meeting: dict[Operation, tuple[Tensor, ...]] = {}
    if not fused or not experiment.differentiable:
        return

    def enter(operation: Operation) -> Callable[[Tensor], Tensor]:
        def edit(value: Tensor) -> Tensor:
            inward[operation] = value.detach().requires_grad_()
            return inward[operation]

        return edit

    def look(product: Operation) -> Callable[..., None]:
        def keep(args: Any, kwargs: Any) -> None:
            third = [*args, *kwargs.values()][2:3] if product.function in FUSED else []
            meeting[product] = (*operands(product, args, kwargs), *third)

        return keep

    beside = {site: op for site in experiment.sites if (op := _beside(site, fused)) is not None}
    hidden: dict[Operation, Tensor] = {}

    def arrive(operation: Operation) -> Callable[[Tensor], Tensor]:
        return lambda value: hidden.setdefault(operation, value)

    scores = [site.part.scores[0] for site in fused]
    arrivals = {site.part.last[0]: arrive(site.part.last[0]) for site in beside}
    calls = {op: look(op) for s in scores for op in (s.product, s.values) if op is not None}
    leaves = {op: enter(op) for site in fused for op in _shared(site)}
    try:
        experiment.run(1, Edits(first_outputs=leaves, weight_inputs=arrivals, calls=calls), gradients=True)
    except EditedPassError:
        return
    with torch.enable_grad():
        for site, score in zip(fused, scores, strict=True):
            met = (
                meeting.get(score.product, ()),
                () if score.values is None else meeting.get(score.values, ()),
            )
            for operation in _shared(site) & inward.keys():
                site.traits.fused |= _divided(operation, inward[operation], score, *met)
        for site, operation in beside.items():
            if operation in inward and site.part.last[0] in hidden:
                site.traits.fused |= _of_the_mlp(site, inward[operation], hidden[site.part.last[0]])


def _beside(site: Site, fused: Sequence[Site]) -> Operation | None:
    """The one first matrix of an MLP that makes queries, keys and values too (PaLM, parallel blocks)."""
    firsts = [op for op in site.part.first if any(op in _shared(other) for other in fused)]
    alone = not site.part.scores and len(site.part.first) == 1 and len(site.part.last) == 1
    return firsts[0] if alone and firsts and site.part.last[0] not in firsts else None


def _of_the_mlp(site: Site, inward: Tensor, hidden: Tensor) -> dict[str, Rows]:
    """The rows that reach the last matrix; of a gated MLP their two halves."""
    mask = _reached(inward, hidden, -1)
    rows = None if mask is None else _rows(mask)
    if rows is None or rows[0] != 1:
        return {}
    _, size, start, stop = rows
    if not site.traits.gated:
        return {"input": rows}
    if site.traits.gate is None or (stop - start) % 2:
        return {}
    middle = (start + stop) // 2
    halves: list[Rows] = [(1, size, start, middle), (1, size, middle, stop)]
    return {"gate": halves[site.traits.gate], "input": halves[1 - site.traits.gate]}


def _shared(site: Site) -> set[Operation]:
    """Matrices that make more than one of the queries, keys and values of a plain attention."""
    if len(site.part.scores) != 1 or site.part.scores[0].product.function == MULTIHEAD:
        return set()
    score = site.part.scores[0]
    ways = [op for way in (score.query_weights, score.key_weights, score.value_weights) for op in set(way)]
    return {op for op in ways if ways.count(op) > 1}


def _divided(
    operation: Operation,
    inward: Tensor,
    score: Score,
    product: tuple[Tensor, ...],
    values: tuple[Tensor, ...],
) -> dict[str, Rows]:
    """Rows by role. What the weights of attention are multiplied by is the operand that queries do not reach."""
    if len(product) < 2:
        return {}
    features = 1 if operation.function in POINTWISE else -1
    query, key = (_reached(inward, operand, features) for operand in product[:2])
    others = [_reached(inward, operand, features) for operand in (*product[2:], *values)]
    value = next((mask for mask in others if mask is not None and not _meet(mask, query)), None)
    made = {
        "query": (query, score.query_weights),
        "key": (key, score.key_weights),
        "value": (value, score.value_weights),
    }
    found = {role: mask for role, (mask, ways) in made.items() if operation in ways and mask is not None}
    pairs = [(one, other) for one in found.values() for other in found.values() if one is not other]
    if any(_meet(one, other) and not torch.equal(one, other) for one, other in pairs):
        return {}
    rows = {role: _rows(mask) for role, mask in found.items()}
    return {role: some for role, some in rows.items() if some is not None}


def _reached(inward: Tensor, operand: Tensor, features: int) -> Tensor | None:
    """Return which features of what a matrix gives an operand depends on."""
    if not operand.requires_grad:
        return None
    total = (operand * torch.randn_like(operand)).sum()
    gradient = torch.autograd.grad(total, inward, retain_graph=True, allow_unused=True)[0]
    return None if gradient is None else (gradient != 0).movedim(features, -1).flatten(0, -2).any(0)


def _meet(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and bool((one & other).any())


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


def _of_attention(experiment: Experiment, site: Site) -> list[Role]:
    """One matrix of each role, or one for every head."""
    part, fused, shared = site.part, site.traits.fused, _shared(site)
    first, last = part.ends
    if len(last) != 1 or last[0] in first:
        return []
    found: list[Role] = []
    for score in part.scores:
        ways = {"query": score.query_weights, "key": score.key_weights, "value": score.value_weights}
        if any(
            len(way) != 1 or (way[0] not in first and way[0].function != "linear") for way in ways.values()
        ):
            return []
        if any(way[0] in shared and role not in fused for role, way in ways.items()):
            return []
        found += [(role, way[0], fused.get(role) if way[0] in shared else None) for role, way in ways.items()]
    alone = len(part.scores) == 1 or len({op for _, op, _ in found}) == len(found)
    found.append(("output", last[0], None))
    known = {op for _, op, _ in found} | part.beside | experiment.graph.inner
    found += [(f"latent {i}", op, None) for i, op in enumerate(op for op in part.weights if op not in known)]
    return found if part.scores and alone else []


def _of_torch(experiment: Experiment, call: Operation) -> tuple[BranchMatrix, ...]:
    """Torch's own attention, whose one call does everything."""
    module = experiment.model.get_submodule(call.module)
    if not isinstance(module, nn.MultiheadAttention):
        return ()
    prefix, width = f"{call.module}.".lstrip("."), module.embed_dim
    bias = None if module.in_proj_bias is None else f"{prefix}in_proj_bias"
    roles = ("query", "key", "value")
    if module.in_proj_weight is not None:
        made = [
            BranchMatrix(
                r, f"{prefix}in_proj_weight", False, (1, 3 * width, i * width, (i + 1) * width), bias
            )
            for i, r in enumerate(roles)
        ]
    else:
        made = [BranchMatrix(role, f"{prefix}{role[0]}_proj_weight", False) for role in roles]
    out = None if module.out_proj.bias is None else f"{prefix}out_proj.bias"
    return (*made, BranchMatrix("output", f"{prefix}out_proj.weight", False, None, out))


def _of_mlp(experiment: Experiment, site: Site) -> list[Role]:
    """Of an MLP, or of every expert behind a router."""
    pairs, part = list(feeders(experiment, site)), site.part
    firsts, gate = [op for _, own in pairs for op in own], site.traits.gate
    ends = [op for op in part.weights if op not in part.beside]
    number = len(pairs[0][1]) if pairs else 0
    if (
        number not in (1, 2)
        or any(len(own) != number for _, own in pairs)
        or (len(pairs) > 1 and not part.mixture)
    ):
        return []
    if {*ends} != {*firsts, *(last for last, _ in pairs)} or len({*firsts}) < len(firsts):
        return []
    outputs: list[Role] = [("output", last, None) for last, _ in pairs]
    if "input" in site.traits.fused:
        return [(role, firsts[0], rows) for role, rows in site.traits.fused.items()] + outputs
    if number == 1 and not site.traits.gated:
        return [("input", op, None) for op in firsts] + outputs
    if gate is None:
        return []
    if number == 2:
        sides = ("gate", "input") if gate == 0 else ("input", "gate")
        return [pair for _, own in pairs for pair in zip(sides, own, (None, None), strict=True)] + outputs
    width = site.traits.hidden_width or 0
    halves = [(1, 2 * width, width * half, width * (half + 1)) for half in (gate, 1 - gate)]
    own = [(role, op, rows) for op in firsts for role, rows in zip(("gate", "input"), halves, strict=True)]
    return own + outputs


def _matrix(
    experiment: Experiment, role: str, operation: Operation, rows: Rows | None
) -> BranchMatrix | None:
    """The parameter that a weight call multiplies by, and how it is stored."""
    constants = experiment.graph.constants.get(operation, ())
    matrix = next((c for c in constants if len(c.shape) >= 2), None)
    turned = None if matrix is None else _turned(experiment, operation, matrix)
    if matrix is None or turned is None:
        return None
    vector = next((c for c in constants if len(c.shape) == 1), None)
    bias = None if vector is None else _name(experiment.parameters, vector)
    name, transposed, split = _name(experiment.parameters, matrix), *turned
    if name is None:
        name = _parametrized(experiment.model, operation.module, matrix.shape)
        return None if name is None else BranchMatrix(role, name, transposed, rows, bias, None, split, True)
    parameter = experiment.parameters[matrix.storage][name]
    index = None
    if parameter.dim() == len(matrix.shape) + 1:  # all layers in one parameter
        index = (matrix.offset - parameter.storage_offset()) // max(parameter.stride(0), 1)
        parameter = parameter[index]
    shape, stride = tuple(parameter.shape), tuple(parameter.stride())
    if (matrix.shape, matrix.stride) == (shape[::-1], stride[::-1]) != (shape, stride) and len(shape) == 2:
        return BranchMatrix(role, name, not transposed, rows, bias, index)
    if (matrix.shape, matrix.stride) != (shape, stride) or matrix.offset != parameter.storage_offset():
        return None  # a part of a parameter
    return BranchMatrix(role, name, transposed, rows, bias, index, split)


def _turned(experiment: Experiment, operation: Operation, matrix: Constant) -> tuple[bool, int] | None:
    """(stored (in, out), axes that make the first one) of a constant that multiplies the stream; None if unusual."""
    function, dimensions = operation.function, len(matrix.shape)
    if function in ("linear", *ON_THE_RIGHT):
        return (function != "linear", 1) if dimensions == 2 else None
    if function in POINTWISE:
        return (False, 1) if set(matrix.shape[2:]) <= {1} else None
    if operation not in experiment.graph.equations:
        return None
    text, place = experiment.graph.equations[operation]
    inputs, _, result = text.replace(" ", "").partition("->")
    own = inputs.split(",")[place]
    summed = [letter not in result for letter in own]
    count = sum(summed)
    if not result or "." in own or len(own) != dimensions or not 0 < count < dimensions:
        return None
    if all(summed[:count]):
        return True, count
    return (False, dimensions - count) if all(summed[-count:]) else None


def _parametrized(model: nn.Module, path: str, shape: tuple[int, ...]) -> str | None:
    """The parameter of this shape from which a weight norm or spectral norm computes the matrix of a module."""
    own = [
        f"{path}.{name}".lstrip(".")
        for name, p in model.get_submodule(path).named_parameters()
        if tuple(p.shape) == shape and ("parametrizations" in name or name in ("weight_v", "weight_orig"))
    ]
    return own[0] if len(own) == 1 else None


def _name(parameters: Mapping[int, Mapping[str, Tensor]], constant: Constant) -> str | None:
    fits: Sequence[str] = [
        name
        for name, p in parameters.get(constant.storage, {}).items()
        if p.storage_offset() <= constant.offset < p.storage_offset() + p.numel()
    ]
    return fits[0] if len(fits) == 1 else None
