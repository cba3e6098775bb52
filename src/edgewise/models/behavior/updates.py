"""Low-rank updates beside a matrix: W x + s B A x is one linear map, and counts as one [Hu 2021]."""

from __future__ import annotations

from edgewise.models.behavior.graph import Graph, Node, Update


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
