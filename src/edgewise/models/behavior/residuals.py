"""Which additions of a forward pass are residual: `stream + branch(stream)`.

A sum of equal shapes is residual if, walking up from one operand through calls that hand it on, a point is met from
which the other operand is reached through at least one weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from edgewise.models.behavior.graph import (
    CHOICE,
    CUTTING,
    FUSED,
    MULTIHEAD,
    MULTIPLY,
    SOFTMAX,
    Graph,
    Node,
    Update,
)
from edgewise.models.behavior.record import Operation

PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")
EARLIER = 3  # sums that one step may be written as: x + attention(x) + mlp(x) reads x from before the first


@dataclass(frozen=True)
class Score:
    """A softmax, the product of queries and keys under it, and the weights that make each of them from the stream."""

    softmax: Operation
    product: Operation
    query_weights: tuple[Operation, ...]
    key_weights: tuple[Operation, ...]
    values: Operation | None = None  # the product of the weights with the values, if it is a call of its own
    value_weights: tuple[Operation, ...] = ()
    mixed: bool = False  # a matrix acts on the scores before the softmax (talking heads)


@dataclass
class Part:
    """One operand of a sum that comes from the stream through weights of its own."""

    total: Operation  # the addition it is an operand of: the residual one, or one inside its branch
    side: int  # which operand
    tip: int  # its node
    inside: list[int]  # nodes from the source to the tip
    first: list[Operation] = field(default_factory=list)  # weights that nothing but the stream feeds
    last: list[Operation] = field(default_factory=list)  # weights with no other weight after them
    weights: list[Operation] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)
    crosses: bool = False  # queries meet keys that are not made from the same point of the stream
    softmax: bool = False
    routers: list[Operation] = field(default_factory=list)  # weights whose result is only chosen from
    behind: list[Operation] = field(
        default_factory=list
    )  # weights behind the last of a branch: x + adapter(x)
    gate: tuple[Operation, int] | None = (
        None  # the product with a gate that is made without the stream, and its side
    )
    composed: bool = False  # weights of one softmax multiply what another gives: attention through landmarks

    @property
    def routed(self) -> bool:
        return bool(self.routers)

    @property
    def mixture(self) -> bool:
        """Return whether a router chooses among matrices, or a gate weighs what several give."""
        return self.routed or (len(self.ends[1]) > 1 and bool({*self.first} & {*self.last}))

    @property
    def beside(self) -> set[Operation]:
        """Routers, gates on the end (first and last at once) and what is behind the last: weights without a role."""
        gates = {*self.first} & {*self.last}
        return {*self.routers, *self.behind, *(gates if gates < {*self.first} else ())}

    @property
    def ends(self) -> tuple[list[Operation], list[Operation]]:
        """First and last weights with a role."""
        first, last = ([op for op in each if op not in self.beside] for each in (self.first, self.last))
        return (first, last) if first and last else (self.first, self.last)

    @property
    def score_weights(self) -> tuple[Operation, ...]:
        """Weights that make queries and keys."""
        return tuple(op for score in self.scores for op in (*score.query_weights, *score.key_weights))


@dataclass
class ResidualSum:
    """A residual addition: the point of the stream that is its skip, the source of its branch, and the parts."""

    node: int
    point: int
    source: int
    skip_side: int
    inside: list[int]
    parts: list[Part]
    made: bool = False  # matrices that the model computes act on the point itself: no weight does

    @property
    def joins(self) -> bool:
        """Reads the stream from before an earlier sum: a parallel branch written as a sum of its own."""
        return self.source < self.point


def residual_sums(graph: Graph) -> list[ResidualSum]:
    """All residual additions in the order they ran."""
    find_updates(graph)
    sums: dict[int, ResidualSum] = {}
    scores = _scores(graph)
    for node in graph.nodes:
        if node.operands is not None and node.operands[0] != node.operands[1] and node.index not in scores:
            residual = _residual(graph, node, sums)
            if residual is not None:
                sums[node.index] = residual
            elif len({way_up(graph, graph[operand], sums)[-1].index for operand in node.operands}) == 1:
                graph.mixes[node.index] = node.operands[0]  # a x + b x
    for residual in sums.values():
        _sort_parts(graph, residual)
    return list(sums.values())


def _scores(graph: Graph) -> set[int]:
    """What stands between a product and the softmax over it: scores to which those of a layer before are added."""
    everything, found = {*range(len(graph.nodes))}, set[int]()
    for node in graph.nodes:
        product = (
            _product_above(graph, node.index, everything)
            if node.function in SOFTMAX - {MULTIHEAD, *FUSED}
            else None
        )
        todo = [] if product is None else [*node.parents]
        while todo:
            above = graph[todo.pop()]
            if above.index not in found and not above.weight and above.function not in PRODUCTS:
                found.add(above.index)
                todo += above.parents if above.shape == node.shape else ()
    return found


def _sort_parts(graph: Graph, residual: ResidualSum) -> None:
    for part in residual.parts:
        _sort_weights(graph, part)
        _sort_scores(graph, part, residual.source)
        part.gate = _gate(graph, part)
        part.softmax = any(graph[index].function in SOFTMAX for index in part.inside)


def read_from(graph: Graph, residual: ResidualSum, source: int, sums: dict[int, ResidualSum]) -> ResidualSum:
    """The same sum with a branch that reads another stream at this source; as it is if no weight stands between."""
    node, side = graph[residual.node], 1 - residual.skip_side
    assert node.operands is not None
    inside = graph.between(source, node.operands[side])
    if not any(graph[index].weight for index in inside):
        return residual
    parts = _parts(graph, source, node, side, inside, sums)
    other = ResidualSum(residual.node, residual.point, source, residual.skip_side, inside, parts)
    _sort_parts(graph, other)
    return other


def way_up(graph: Graph, node: Node, sums: dict[int, ResidualSum]) -> list[Node]:
    """The node and those it hands on, up to the first that does something or is a residual sum."""
    way = [node]
    while graph.transparent(way[-1]) and way[-1].index not in sums:
        way.append(graph[way[-1].parents[0]])
    return way


def _residual(graph: Graph, node: Node, sums: dict[int, ResidualSum]) -> ResidualSum | None:
    assert node.operands is not None
    for side in (1, 0):  # which operand is the branch
        skip, branch = graph[node.operands[1 - side]], node.operands[side]
        way = way_up(graph, skip, sums)
        stream = _weighed(graph, way[-1], graph[branch])
        if stream is not None:
            way = [*way, *way_up(graph, stream, sums)]
        whole = (
            [*graph.parents(way[-1])] if way[-1].function in CUTTING else []
        )  # of which the stream is a part
        made = False
        for source in [*way, *_earlier(graph, way[-1], sums), *whole]:
            inside = graph.between(source.index, branch)
            made |= source in way and any(graph[index].function in PRODUCTS for index in inside)
            if any(graph[index].weight for index in inside):
                if _same_stream(graph, branch, source.index, sums):
                    graph.mixes[node.index] = branch
                    _join_skips(graph, node, side, sums)
                    return None
                point = source if source in way else way[-1]
                node.mixed |= stream is not None
                parts = _parts(graph, source.index, node, side, inside, sums)
                made &= source not in way
                return ResidualSum(node.index, point.index, source.index, 1 - side, inside, parts, made)
    return None


def _join_skips(graph: Graph, node: Node, side: int, sums: dict[int, ResidualSum]) -> None:
    """Note the skip that is added again to a sum times a number, x + (x + f(x)) or x + a (f(x) - x)."""
    assert node.operands is not None
    *way, last = way_up(graph, graph[node.operands[side]], sums)
    end = sums.get(last.index)
    if end is None or _plainly(graph, node.operands[1 - side], sums) != _plainly(graph, end.point, sums):
        return
    scales = [each.scale for each in way if each.scale is not None]
    last.mixed |= any(isinstance(scale, Tensor) for scale in scales)
    scale = math.prod(scale for scale in scales if not isinstance(scale, Tensor))
    graph.doubled[end.node] = node.index, node.weights[side] * scale, node.weights[1 - side]


def _plainly(graph: Graph, index: int, sums: dict[int, ResidualSum]) -> int:
    """The first value on the way up that is more than a view of another."""
    return next(
        n.index
        for n in way_up(graph, graph[index], sums)
        if n.scale is not None or not graph.transparent(n) or n.index in sums
    )


def _weighed(graph: Graph, skip: Node, branch: Node) -> Node | None:
    """The stream x of (1 - g) x + g f(x), a gate on the stream as highway and recurrent cells have it."""
    while graph.transparent(branch):
        branch = graph[branch.parents[0]]
    if not all(node.function in MULTIPLY and len(node.parents) == 2 for node in (skip, branch)):
        return None
    for side, factor in enumerate(skip.parents):
        if any(factor in graph[gate].parents or gate in graph[factor].parents for gate in branch.parents):
            return graph[skip.parents[1 - side]]
    return None


def _same_stream(graph: Graph, later: int, earlier: int, sums: dict[int, ResidualSum]) -> bool:
    """Return whether a value is the stream itself, further down than an earlier point of it: no branch is added then.

    Also if it had fewer tokens in between (an hourglass).
    """
    node = _resampled(graph, graph[later], sums) or way_up(graph, graph[later], sums)[-1]
    while node.index in sums or node.index in graph.mixes:
        before = graph.mixes[node.index] if node.index in graph.mixes else sums[node.index].point
        way = way_up(graph, graph[before], sums)
        longer = _resampled(graph, way[-1], sums)
        way += [] if longer is None else way_up(graph, longer, sums)
        if any(each.index == earlier for each in way):
            return True
        node = way[-1]
    return False


def _resampled(graph: Graph, node: Node, sums: dict[int, ResidualSum]) -> Node | None:
    """The sum that a value of another number of tokens was made from by fixed operations (pooled, repeated)."""
    way = [node]
    while (
        way[-1].index not in sums
        and len(way[-1].parents) == 1
        and not way[-1].weight
        and len(way) < EARLIER**2
    ):
        way.append(graph[way[-1].parents[0]])
    end = way[-1]
    other = end.index in sums and len(end.shape) == len(node.shape) and end.shape != node.shape
    return end if other and end.shape[-1] == node.shape[-1] else None


def _earlier(graph: Graph, node: Node, sums: dict[int, ResidualSum]) -> list[Node]:
    points: list[Node] = []
    while node.index in sums and len(points) < EARLIER:
        node = graph[sums[node.index].point]
        points.append(node)
    return points


def _parts(
    graph: Graph, source: int, node: Node, side: int, inside: list[int], sums: dict[int, ResidualSum]
) -> list[Part]:
    """A branch that is itself a sum of two that share no weight is two branches side by side."""
    assert node.operands is not None
    tip = graph[node.operands[side]]
    inner = tip
    while inner.operands is None and graph.transparent(inner):
        inner = graph[inner.parents[0]]
    if inner.operands is not None and inner.index not in sums and inner.index != node.index:
        halves = [graph.between(source, operand) for operand in inner.operands]
        weights = [{i for i in half if graph[i].weight} for half in halves]
        apart = all(weights) and not weights[0] & weights[1] and not _ranks(graph, halves, weights)
        if apart or (all(weights) and _fused(graph, halves, weights)):
            return [p for i in (0, 1) for p in _parts(graph, source, inner, i, halves[i], sums)]
    return [Part(node.operation, side, tip.index, inside)]


def _ranks(graph: Graph, halves: list[list[int]], weights: list[set[int]]) -> bool:
    """Return whether both are attention to the same input, with some of the heads each."""
    attends = all(any(graph[index].function in SOFTMAX for index in half) for half in halves)
    return attends and graph[min(weights[0])].parents == graph[min(weights[1])].parents


def _fused(graph: Graph, halves: list[list[int]], weights: list[set[int]]) -> bool:
    """Whether attention and an MLP side by side share their first matrix alone, each with a last one of its own."""
    attends = [any(graph[index].function in SOFTMAX for index in half) for half in halves]
    shared = weights[0] & weights[1]
    return attends[0] != attends[1] and all(own - shared for own in weights) and len(shared) == 1


def _gate(graph: Graph, part: Part) -> tuple[Operation, int] | None:
    """The product that a branch ends with and the side of its gate, if that does not come from the stream."""
    node, inside = graph[part.tip], set(part.inside)
    while graph.transparent(node) and node.index in inside:
        node = graph[node.parents[0]]
    if node.function not in MULTIPLY or len(node.parents) != 2 or node.index not in inside:
        return None
    others = [side for side, parent in enumerate(node.parents) if parent not in inside]
    known = len(others) == 1 and not graph[node.parents[others[0]]].integer
    return (node.operation, others[0]) if known else None


def _sort_weights(graph: Graph, part: Part) -> None:
    """First and last weights of a branch; routers, whose result is only chosen from, and updates are neither."""
    inside = set(part.inside)
    routers = _routers(graph, part, inside)
    inner = graph.inner
    fed: dict[int, bool] = {}
    for index in part.inside:
        fed[index] = any(
            parent in inside and (fed[parent] or (graph[parent].weight and parent not in routers))
            for parent in graph[index].parents
        )
    open_ended = {part.tip}
    for index in reversed(part.inside):
        if index in open_ended and not graph[index].weight:
            open_ended |= set(graph[index].parents) & inside
    weights = [i for i in part.inside if graph[i].weight]
    part.weights = [graph[i].operation for i in weights]
    ends = [i for i in weights if i not in routers and graph[i].operation not in inner]
    part.first = [graph[i].operation for i in ends if not fed[i]]
    part.last = [graph[i].operation for i in ends if i in open_ended]
    part.routers = [graph[i].operation for i in weights if i in routers]
    after: set[int] = set()  # of a last weight
    for index in part.inside:
        if not after.isdisjoint(graph[index].parents) or (index in open_ended and graph[index].weight):
            after.add(index)
    part.behind = [graph[i].operation for i in weights if not after.isdisjoint(graph[i].parents)]


def _routers(graph: Graph, part: Part, inside: set[int]) -> set[int]:
    """Weights of the branch whose result reaches a choice before another weight."""
    routers: set[int] = set()
    visited: set[int] = set()
    todo = [node.index for node in graph.nodes[part.inside[0] : part.tip] if node.function in CHOICE]
    while todo:
        index = todo.pop()
        if index in visited or index < part.inside[0]:
            continue
        visited.add(index)
        if graph[index].weight:
            routers |= {index} & inside
        else:
            todo += graph[index].parents
    return routers


def _sort_scores(graph: Graph, part: Part, source: int) -> None:
    """Softmax, the product of queries and keys under it, and the weights that make these, for every head."""
    inside = set(part.inside)
    for index in part.inside:
        function, mixed = graph[index].function, False
        if function in (*FUSED, MULTIHEAD):
            product: int | None = index
        elif function in ("softmax", "_softmax", "softmax_", "exp"):
            product = _product_above(graph, index, inside)
            mixed = product is None and function != "exp"
            if function == "exp" and product is not None and graph[product].shape != graph[index].shape:
                continue  # of what is added to the sum beside the keys
            product = _product_above(graph, index, inside, through_weights=True) if mixed else product
        else:
            continue
        if product is not None:
            operands = graph.score_operands.get(graph[product].operation, graph[product].parents)
            part.crosses |= any(operand not in inside and operand != source for operand in operands[:2])
            query, key = (
                tuple(_weights_above(graph, product, operand, inside)) for operand in (operands * 2)[:2]
            )
            values = _values_below(graph, index, part) if product != index else None
            made = operands[2:3] if product == index else _value_operands(graph, index, values)
            value = tuple(dict.fromkeys(w for o in made for w in _weights_above(graph, product, o, inside)))
            softmax, scores = graph[index].operation, graph[product].operation
            weighed = None if values is None else values.operation
            part.scores.append(Score(softmax, scores, query, key, weighed, value, mixed))
            part.composed |= values is not None and _composed(graph, index, values, inside)


def _composed(graph: Graph, softmax: int, values: Node, inside: set[int]) -> bool:
    """Return whether the values that a softmax weighs come from another softmax, which weighs keys of its own."""
    own = graph.below(softmax, values.index)
    others = [parent for parent in values.parents if parent not in own]
    todo, visited = [parent for parent in others if parent in inside], set(own)
    while todo:
        index = todo.pop()
        if index not in visited:
            visited.add(index)
            if graph[index].function in SOFTMAX:
                return True
            todo += [parent for parent in graph[index].parents if parent in inside]
    return False


def _product_above(graph: Graph, index: int, inside: set[int], through_weights: bool = False) -> int | None:
    """The nearest matrix product of two things that depend on the stream."""
    todo, visited = set(graph[index].parents), set()
    while todo:
        index = max(todo)
        todo.remove(index)
        node = graph[index]
        if index in visited or index not in inside or (node.weight and not through_weights):
            continue
        if isinstance(node.scale, float) and node.scale == 0:  # what is made here is dropped
            continue
        visited.add(index)
        if node.function in PRODUCTS and not node.weight:
            return index
        todo |= set(node.parents)
    return None


def _value_operands(graph: Graph, softmax: int, values: Node | None) -> tuple[int, ...]:
    """Return what the weights of attention are multiplied by."""
    parents = () if values is None else values.parents
    return tuple(parent for parent in parents if parent != softmax and not graph.between(softmax, parent))


def _values_below(graph: Graph, softmax: int, part: Part) -> Node | None:
    """The first product after a softmax that is with something that depends on the stream."""
    reached = {softmax}
    for index in part.inside:
        node = graph[index]
        if reached.isdisjoint(node.parents):
            continue
        if node.function in PRODUCTS and (not node.weight or len(node.parents) > 1):
            return node
        reached.add(index)
    return None


def _weights_above(graph: Graph, product: int, operand: int, inside: set[int]) -> list[Operation]:
    """The nearest weights above queries or keys; torch's own attention holds them itself."""
    node = graph[product]
    if node.function == MULTIHEAD:
        return [node.operation]
    todo, visited, weights, inner = [operand], set(), [], graph.inner
    while todo:
        index = todo.pop()
        if index in visited or index not in inside or graph[index].operation in inner:
            continue
        visited.add(index)
        if graph[index].weight:
            weights.append(graph[index].operation)
        else:
            todo += graph[index].parents
    return weights


def find_updates(graph: Graph) -> None:
    """Note every matrix with updates beside it in `graph.updates`; several updates of one matrix are joined."""
    totals: dict[int, int] = {}  # from the sum with an update to the matrix
    for node in graph.nodes:
        if node.operands is None:
            continue
        ends = [_weight(graph, graph[operand], totals) for operand in node.operands]
        for base, outer in (ends, ends[::-1]):
            inner = None if base is None or outer is None else _beside(graph, base, outer)
            if base is not None and outer is not None and inner is not None:
                totals[node.index] = base.index
                before = graph.updates.get(base.operation, Update(node.operation, (), ()))
                own = (inner.operation, outer.operation)
                graph.updates[base.operation] = Update(
                    node.operation, (*before.first, inner.operation), (*before.weights, *own)
                )
                break


def _weight(graph: Graph, node: Node, totals: dict[int, int]) -> Node | None:
    """The matrix whose result, or whose sum with earlier updates, a node hands on."""
    node = _source(graph, node)
    return graph[totals[node.index]] if node.index in totals else node if node.weight else None


def _source(graph: Graph, node: Node) -> Node:
    while graph.transparent(node):
        node = graph[node.parents[0]]
    return node


def _beside(graph: Graph, base: Node, outer: Node) -> Node | None:
    """The first matrix of an update that ends in `outer`: narrower than `base`, and reading what `base` reads."""
    inner = _input(graph, outer)
    if inner is None or not inner.weight or inner.shape[-1] >= base.shape[-1]:
        return None
    given = _input(graph, base)
    same = given is not None and given is _input(graph, inner) and inner.shape[-1] < given.shape[-1]
    return inner if same else None


def _input(graph: Graph, weight: Node) -> Node | None:
    return _source(graph, graph[weight.parents[0]]) if len(weight.parents) == 1 else None
