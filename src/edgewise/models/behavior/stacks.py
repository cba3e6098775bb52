"""Residual sums in chains, chains in blocks: where a stack lives, and whether it covers all that its blocks do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import nn

from edgewise.models.behavior.graph import ADD, CHOICE, SOFTMAX, SUBTRACT, Graph, Node
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.residuals import ResidualSum, read_from, way_up
from edgewise.models.behavior.trace import INPUT

SHORTEST = 2  # sums; fewer is a sum somewhere, not a stack
ONE_BLOCK = 3  # sums: attention, attention to another stack, MLP
ACTS = "weights act on its blocks outside the residual branches"
CHOOSES = "the input chooses which tokens its blocks attend to"
INNER = "its branches have residual streams of their own inside"
TWO_STREAMS = "its blocks keep several streams that feed each other, which are not read one by one"
REVERSIBLE = "its blocks keep two streams that feed each other (reversible blocks); they are taken as one"
MERGED = "matrices act on the stream between blocks, or merge it with an earlier one (long skips), which is left out"
SHIFTED = "what is added to the stream between blocks is left out"
RESAMPLED = "the number of tokens changes along it, as where they are pooled or merged"
WIDENED = "its stages differ in width"
PARTIAL = ("it covers ", "it is one of the ")  # its blocks are not all there
PLACING = ("scatter", "scatter_", "index_copy", "index_copy_", "index_put", "index_put_", "masked_scatter")
BACKWARD = {"__rsub__", "rsub", "lerp", "lerp_"}  # not x + c or x - c
LINK = 40  # operations between a sum and the next point: a norm written out has about ten


@dataclass
class Chain:
    """Consecutive residual sums along one stream."""

    sums: list[ResidualSum]
    plain: list[bool]  # whether nothing but a scalar acts on the stream before each sum
    name: str = ""
    indices: list[int] = field(default_factory=list)  # which block each sum belongs to
    modules: list[str] = field(default_factory=list)  # the modules that hold its blocks; empty if none does
    shared: bool = False  # some blocks use the same matrices
    language: bool = False
    ids_alone: bool = False  # nothing but token ids makes the stream that it starts from
    proven: bool = False  # which axes of its stream are tokens and features
    outlet: Operation | None = None  # where the stream after its last sum is read
    reasons: list[str] = field(default_factory=list)  # why its branches cannot be read
    merging: set[int] = field(default_factory=set)  # matrices that make its stream from several points of it
    remarks: list[str] = field(default_factory=list)  # what a description of it leaves out
    stages: set[int] = field(default_factory=set)  # the places where a stage begins, behind other matrices

    @property
    def blocks(self) -> list[list[int]]:
        """Places of the sums, block by block."""
        groups = groupby(range(len(self.sums)), key=lambda place: self.indices[place])
        return [list(group) for _, group in groups]


def chains(graph: Graph, sums: Sequence[ResidualSum]) -> list[Chain]:
    """The stacks of a pass in the order they start."""
    by_node = {residual.node: residual for residual in sums}
    open_chains: dict[int, Chain] = {}
    listed: list[Chain] = []
    entries = {node.shape[:1] for node in graph.nodes if node.function == INPUT}
    for residual in sums:
        before, plain = link(graph, graph[residual.point], by_node)
        if before is not None and _relaid(entries, graph[before].shape, graph[residual.point].shape):
            before = None
        merged = None if before is not None else _merged(graph, graph[residual.point], by_node)
        before = merged if before is None else before
        chain = open_chains.pop(before, None) if before is not None else None
        if chain is None:
            chain = Chain([], [])
            listed.append(chain)
        way = way_up(graph, graph[residual.point], by_node)
        doubled = {node for node, *_ in graph.doubled.values()}
        if way[-1].index in graph.mixes.keys() - doubled:
            chain.remarks.append(MERGED)
        if before is not None and added(way[-1]):
            chain.remarks.append(SHIFTED)
        if merged is not None:
            chain.merging.add(way[-1].index)
            chain.remarks.append(MERGED)
        chain.sums.append(residual)
        chain.plain.append(plain)
        open_chains[residual.node] = chain
    outer = _without_nested([chain for chain in listed if len(chain.sums) >= SHORTEST])
    if not outer:  # attention and MLP side by side, in one sum
        outer = [c for c in listed if {bool(part.softmax) for part in c.sums[0].parts} == {True, False}]
    outer = _continued(graph, _woven(graph, outer, by_node), by_node)
    for chain in outer:
        if any(_feed_each_other(chain, other) for other in outer if other is not chain):
            chain.reasons.append(TWO_STREAMS)
        _trim(graph, chain)
        _name(graph, chain)
        chain.language = _is_language(graph, chain)
        above = graph.above(chain.sums[0].point, set()) if chain.language else ()
        chain.ids_alone = not any(graph[i].function == INPUT and not graph[i].integer for i in above)
        chain.outlet = _outlet(graph, chain)
    return _staged(graph, outer, by_node)


def _staged(graph: Graph, listed: list[Chain], by_node: dict[int, ResidualSum]) -> list[Chain]:
    """Stages of different widths or numbers of tokens, with blocks that attend in the same way, as one chain."""
    for chain in listed:
        point = graph[chain.sums[0].point]
        matrices = _matrices_above(graph, point.index, by_node)
        ends = set[int]().union(*(_behind_a_matrix(graph, graph[m], by_node) for m in matrices))
        before = next((c for c in listed if c is not chain and c.sums[-1].node in ends), None)
        if before is None or graph[before.sums[-1].node].shape == point.shape:
            continue
        beside = (graph[index] for index in graph.above(point.index, {*by_node}))
        if any(
            node.function == "embedding" or (node.function == INPUT and not node.integer) for node in beside
        ):
            continue  # it also starts from the input: its own stack
        kinds = [{_kind(graph, c, block) for block in c.blocks} for c in (before, chain)]
        if kinds[0] != kinds[1] or not all(attention for kind in kinds[0] for attention, *_ in kind[:1]):
            continue
        own = max(before.indices) + 1
        joined = Chain(
            [*before.sums, *chain.sums],
            [*before.plain, False, *chain.plain[1:]],
            common_path([before.name.split("."), chain.name.split(".")]),
            [*before.indices, *(own + index for index in chain.indices)],
            [*before.modules, *chain.modules],
            before.shared or chain.shared,
            before.language,
            before.ids_alone,
            outlet=chain.outlet,
            reasons=list(dict.fromkeys((*before.reasons, *chain.reasons))),
            merging=before.merging | chain.merging | matrices,
            remarks=list(dict.fromkeys((*before.remarks, *chain.remarks))),
            stages=before.stages | {len(before.sums) + place for place in (0, *chain.stages)},
        )
        return _staged(graph, [joined if c is before else c for c in listed if c is not chain], by_node)
    return listed


def _kind(graph: Graph, chain: Chain, block: Sequence[int]) -> tuple[Any, ...]:
    """What the branches of a block compute, whatever their widths."""
    signatures = [_signature(graph, chain.sums[place]) for place in block]
    return tuple((attention, joins, len(widths)) for attention, joins, widths in signatures)


def _matrices_above(graph: Graph, tip: int, sums: dict[int, ResidualSum]) -> set[int]:
    """The matrices that a value is made from by nothing but operations without a weight."""
    found, visited, todo = set[int](), set[int](), [tip]
    while todo and len(visited) < LINK:
        index = todo.pop()
        if index not in visited and index not in sums:
            visited.add(index)
            if graph[index].weight:
                found.add(index)
            else:
                todo += graph[index].parents
    return found


def added(node: Node) -> bool:
    """Tell if a node is something constant added to its one parent."""
    return node.function in (ADD | SUBTRACT) - BACKWARD and node.operands is None and len(node.parents) == 1


def _feed_each_other(chain: Chain, other: Chain) -> bool:
    """Return whether branches of either chain read sums of the other, which continue as a stream of their own."""
    pairs = ((chain, other), (other, chain))
    return all(
        any(set(residual.inside) & {r.node for r in two.sums} for residual in one.sums) for one, two in pairs
    )


def _woven(graph: Graph, listed: list[Chain], by_node: dict[int, ResidualSum]) -> list[Chain]:
    """Two streams of which each reads the other's last sum, y = x + f(z), z = z + g(y), as one chain of f, g, f, g."""
    for one in listed:
        partners = [other for other in listed if other is not one and _feed_each_other(one, other)]
        if len(partners) != 1:
            continue
        other = partners[0]
        nodes = {r.node for r in (*one.sums, *other.sums)}
        chain = Chain([], [], remarks=[REVERSIBLE])
        pairs = [*zip(one.sums, one.plain, strict=True), *zip(other.sums, other.plain, strict=True)]
        for residual, plain in sorted(pairs, key=lambda pair: pair[0].node):
            if any(way_up(graph, graph[part.tip], by_node)[-1].index in nodes for part in residual.parts):
                continue  # both streams together, at their end
            source = max(nodes & {*residual.inside}, default=residual.source)
            chain.sums.append(read_from(graph, residual, source, by_node))
            chain.plain.append(plain or residual in (one.sums[0], other.sums[0]))
        if not any(nodes & {*residual.inside} for residual in chain.sums):
            return _woven(graph, [c for c in listed if c not in (one, other)] + [chain], by_node)
    return sorted(listed, key=lambda chain: chain.sums[0].node)


def _continued(graph: Graph, listed: list[Chain], by_node: dict[int, ResidualSum]) -> list[Chain]:
    """A block by itself whose sums are like those of a chain, with one matrix between them, is one more of its blocks.

    A prelude, the core that a loop repeats and a coda; two stacks of several blocks stay two.
    """
    for chain in listed:
        point = graph[chain.sums[0].point]
        ends = _behind_a_matrix(graph, point, by_node)
        before = next((c for c in listed if c is not chain and c.sums[-1].node in ends), None)
        if before is None or graph[before.sums[-1].node].shape != point.shape:
            continue
        short, other = sorted(([_signature(graph, r) for r in c.sums] for c in (before, chain)), key=len)
        if len(short) <= ONE_BLOCK and other[: len(short)] == short:
            chain.sums[:0], chain.plain[:] = before.sums, [*before.plain, False, *chain.plain[1:]]
            chain.merging |= before.merging | {way_up(graph, point, by_node)[-1].index}
            chain.remarks = [MERGED]
            return _continued(graph, [c for c in listed if c is not before], by_node)
    return listed


def _behind_a_matrix(graph: Graph, point: Node, sums: dict[int, ResidualSum]) -> set[int]:
    """Sums and points that a matrix makes this value from; none if other weights stand between."""
    node = way_up(graph, point, sums)[-1]
    points = {residual.point for residual in sums.values()}
    ends: set[int] = set()
    visited: set[int] = set()
    todo = list(node.parents) if node.weight else []
    while todo and len(visited) < LINK:
        index = todo.pop()
        if index in visited:
            continue
        visited.add(index)
        if index in sums or index in points:
            ends.add(index)
        elif graph[index].weight:
            return set()
        else:
            todo += graph[index].parents
    return set() if todo else ends


def _merged(graph: Graph, point: Node, sums: dict[int, ResidualSum]) -> int | None:
    """The last sum before a matrix that makes the stream from it and an earlier point, as the long skips of a U do."""
    ends = _behind_a_matrix(graph, point, sums)
    same = len(ends) > 1 and all(graph[end].shape == point.shape for end in ends)
    joined = same and max(ends) in sums and bool(graph.between(min(ends), max(ends)))
    return max(ends) if joined else None


def _relaid(entries: set[tuple[int, ...]], before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Tell if entries were folded with tokens, of which some are left out: a tower over what another gives for each."""
    return math.prod(before) != math.prod(after) and before[:1] not in entries and after[:1] in entries


def link(graph: Graph, point: Node, sums: dict[int, ResidualSum]) -> tuple[int | None, bool]:
    """(the residual sum that a point of the stream comes from without a weight between, whether plainly)."""
    way = way_up(graph, point, sums)
    if way[-1].index in sums:
        return way[-1].index, True
    ends: set[int] = set()
    visited: set[int] = set()
    todo = [point.index]
    while todo and len(visited) < LINK:
        index = todo.pop()
        if index in visited:
            continue
        visited.add(index)
        node = graph[index]
        if index in sums:
            ends.add(index)
        elif index in graph.mixes:
            todo.append(graph.mixes[index])
        elif node.weight or node.function == "embedding" or (node.function == INPUT and not node.integer):
            return None, False
        elif node.function in PLACING and sum(not p.integer for p in graph.parents(node)) == 1:
            return None, False  # put among other tokens: what a decoder starts from
        elif not node.integer:
            todo += node.parents
    return (ends.pop(), False) if len(ends) == 1 and not todo else (None, False)


def _without_nested(listed: list[Chain]) -> list[Chain]:
    """Chains inside a branch of another are not stacks; a branch that holds one has a stream of its own inside."""
    outer = []
    for chain in listed:
        nodes = {residual.node for residual in chain.sums}
        around = [
            other
            for other in listed
            if other is not chain and any(nodes <= set(residual.inside) for residual in other.sums)
        ]
        for other in around:
            if INNER not in other.reasons:
                other.reasons.append(INNER)
        if not around:
            outer.append(chain)
    return outer


def weight_path(graph: Graph, residual: ResidualSum) -> tuple[str, int]:
    """(module path, call) of the last weight of a sum's branch."""
    last = [graph[index].operation for index in residual.inside if graph[index].weight][-1]
    return last.module, last.call


def _trim(graph: Graph, chain: Chain) -> None:
    """Leave out sums before and after the repeated container that holds most of the chain, unless they are like its."""
    paths = [weight_path(graph, residual)[0].split(".") for residual in chain.sums]
    containers = Counter(
        (tuple(path[:i]), len(path) > i) for path in paths for i, item in enumerate(path) if item.isdigit()
    )
    if not containers:
        return
    (container, _), most = max(containers.items(), key=lambda pair: (pair[1], -len(pair[0][0])))
    inside = [tuple(path[: len(container)]) == container for path in paths]
    first, last = inside.index(True), len(inside) - inside[::-1].index(True)
    alike = [_signature(graph, residual) for residual in chain.sums]
    if all(kind in alike[first:last] for kind in alike):
        return
    if most < len(paths) and 2 * most > len(paths) and all(inside[first:last]):
        chain.sums, chain.plain = chain.sums[first:last], chain.plain[first:last]


def _name(graph: Graph, chain: Chain) -> None:
    """The module path up to the first number that changes along the chain; calls if no number does."""
    places = [weight_path(graph, residual) for residual in chain.sums]
    paths = [path.split(".") for path, _ in places]
    for depth in range(max(map(len, paths))):
        column = [path[depth] if depth < len(path) else "" for path in paths]
        if len(set(column)) > 1 and all(item.isdigit() for item in column):
            prefixes = [".".join(path[:depth]) for path in paths]
            chain.name = Counter(prefixes).most_common(1)[0][0]
            children = [".".join(path[: depth + 1]) for path in paths]
            if _in_stages(graph, chain, children, prefixes):
                chain.name = common_path([prefix.split(".") for prefix in prefixes])
                chain.modules = list(dict.fromkeys(children))
                numbers = [chain.modules.index(child) for child in children]
            else:
                numbers = _indices(paths, prefixes, depth)
                chain.modules = [f"{chain.name}.{index}" for index in sorted(set(numbers))]
            chain.indices = _by_call(numbers, places)
            _split_stages(graph, chain)
            chain.shared = _repeats(graph, chain, places)
            return
    calls = [call for _, call in places]
    shared = common_path(paths).split(".")
    numbers = [i for i, item in enumerate(shared) if item.isdigit()]
    chain.name = ".".join(shared[: numbers[-1]] if numbers else shared)
    chain.indices = repetition([_signature(graph, residual) for residual in chain.sums])
    if len(chain.blocks) == 1 and len(set(calls)) > 1:
        chain.indices = calls
    chain.shared = _repeats(graph, chain, places)
    blocks = [common_path([paths[place] for place in block]) for block in chain.blocks]
    chain.modules = list(dict.fromkeys(blocks)) if "" not in blocks and chain.name not in blocks else []
    if chain.shared and len(set(blocks)) == 1:
        chain.modules = [chain.name]


def _in_stages(graph: Graph, chain: Chain, children: Sequence[str], prefixes: Sequence[str]) -> bool:
    """Return whether blocks of one kind, each with attention, stand in several lists one after the other."""
    kinds: dict[str, list[Any]] = {}
    for residual, child in zip(chain.sums, children, strict=True):
        kinds.setdefault(child, []).append(_signature(graph, residual))
    turns = [prefix for prefix, _ in groupby(prefixes)]
    same = all(kind == kinds[children[0]] for kind in kinds.values())
    return len(turns) == len(set(turns)) > 1 and same and any(kind[0] for kind in kinds[children[0]])


def _split_stages(graph: Graph, chain: Chain) -> None:
    """Where every number holds the same pattern of branches several times, with one attention each, it holds blocks."""
    signatures = [_signature(graph, residual) for residual in chain.sums]
    within = [repetition([signatures[place] for place in block], alike=True) for block in chain.blocks]
    own = zip(chain.blocks, within, strict=True)
    attends = {
        sum(signatures[place][0] for place, number in zip(block, numbers, strict=True) if number == one)
        for block, numbers in own
        for one in set(numbers)
    }
    if min(max(numbers) for numbers in within) > 0 and attends == {1} and len(set(map(len, within))) == 1:
        sizes = [max(numbers) + 1 for numbers in within]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        chain.indices = [start + n for start, numbers in zip(starts, within, strict=True) for n in numbers]


def _by_call(numbers: Sequence[int], places: Sequence[tuple[str, int]]) -> list[int]:
    """One block for each call: a new one begins with another number, or when a matrix of the block is used again."""
    indices: list[int] = []
    used: set[str] = set()
    for place, number in enumerate(numbers):
        again = places[place][0] in used and places[place][1] > 0
        if place == 0 or number != numbers[place - 1] or again:
            indices.append(indices[-1] + 1 if indices else 0)
            used = set()
        else:
            indices.append(indices[-1])
        used.add(places[place][0])
    return indices


def _repeats(graph: Graph, chain: Chain, places: Sequence[tuple[str, int]]) -> bool:
    """Whether the last matrix of a branch acts in several blocks: its module is called again, or its numbers are."""
    used: dict[Any, int] = {}
    for residual, (path, call), block in zip(chain.sums, places, chain.indices, strict=True):
        last = [graph[index].operation for index in residual.inside if graph[index].weight][-1]
        keys = [("numbers", graph.constants.get(last)), *([("module", path)] if call else [])]
        if any(used.setdefault(key, block) != block for key in keys if key[1]):
            return True
        used.setdefault(("module", path), block)
    return False


def _signature(graph: Graph, residual: ResidualSum) -> tuple[Any, ...]:
    """Return what a branch computes, without names: (whether it has a softmax, the widths that its matrices give)."""
    widths = sorted(graph[index].shape[-1] for index in residual.inside if graph[index].weight)
    return any(part.softmax for part in residual.parts), residual.joins, tuple(widths)


def repetition(signatures: Sequence[tuple[Any, ...]], alike: bool = False) -> list[int]:
    """Assign each sum to a block if no module says it: the shortest pattern that repeats along the chain.

    Unless blocks must be alike, a pattern that has attention several times and begins with it (layers of two kinds in
    turn) is as many blocks, and so is a chain in which nothing repeats (layers whose widths differ), if each has as
    many sums.
    """
    number = len(signatures)
    period = next(
        (p for p in range(1, number) if number % p == 0 and list(signatures[p:]) == list(signatures[:-p])),
        number,
    )
    starts = [place for place in range(period) if signatures[place][0] and not signatures[place][1]]
    sizes = {end - start for start, end in zip(starts, [*starts[1:], period], strict=False)}
    if len(starts) > 1 and starts[0] == 0 and len(sizes) == 1 and not alike:
        period = sizes.pop()
    return [place // period for place in range(number)]


def _indices(paths: Sequence[Sequence[str]], prefixes: Sequence[str], depth: int) -> list[int]:
    """Return which block each path belongs to; a list of lists of blocks (layers.2.0) counts through.

    Where a second, shorter list stands between the blocks (cross-attention now and then), what is in it belongs to
    the block that follows.
    """
    entries = set(zip(prefixes, (path[depth] for path in paths), strict=True))
    if len(set(Counter(prefix for prefix, _ in entries).values())) > 1:
        main, index = Counter(prefixes).most_common(1)[0][0], -1
        own = [
            int(path[depth]) if prefix == main else None for path, prefix in zip(paths, prefixes, strict=True)
        ]
        indices = []
        for number in reversed(own):
            index = number if number is not None else index
            indices.append(index)
        return indices[::-1]
    pairs = [tuple(path[depth : depth + 2]) for path in paths]
    nested = all(len(pair) == 2 and pair[1].isdigit() for pair in pairs)
    if nested and min(len(list(group)) for _, group in groupby(pairs)) > 1:
        order = list(dict.fromkeys(pairs))
        return [order.index(pair) for pair in pairs]
    return [int(path[depth]) for path in paths]


def common_path(paths: Sequence[Sequence[str]]) -> str:
    """The path of the innermost module around all of these."""
    shared = []
    for items in zip(*paths, strict=False):
        if len(set(items)) > 1:
            break
        shared.append(items[0])
    return ".".join(shared)


def unaccounted(graph: Graph, chain: Chain, listed: Sequence[Chain]) -> list[str]:
    """Weights inside the stack's blocks that none of its branches depends on, by module path."""
    stream = {index for other in listed for r in other.sums for index in (r.node, r.point, r.source)}
    branches: set[int] = set()
    for residual in (
        r for other in listed if other.name == chain.name for r in other.sums
    ):  # blocks may run twice
        operands = graph[residual.node].operands
        assert operands is not None
        branches |= graph.above(operands[1 - residual.skip_side], stream)
    children = [f"{module}." for module in chain.modules]
    branches |= chain.merging
    names = [
        n.operation.module
        for n in graph.nodes
        if n.weight and n.index not in branches and not _counted_only(graph, n)
    ]
    return sorted({name for name in names if f"{name}.".startswith(tuple(children))})


def _counted_only(graph: Graph, node: Node) -> bool:
    """Return whether nothing comes of a value but means over all tokens, which nothing uses (the load of a router)."""
    below = graph.below(node.index, len(graph.nodes))
    followed = {parent for index in below for parent in graph[index].parents}
    ends = below - followed - {graph.nodes[-1].index}
    return ends == below - followed and all(len(graph[index].shape) < 2 for index in ends)


def repeated_containers(model: nn.Module, graph: Graph) -> list[tuple[str, list[str]]]:
    """(path, children that ran one after the other) of repeated containers."""
    weights = [node for node in graph.nodes if node.weight]
    around = _around(node.operation.module for node in weights)
    reports = []
    for path, children in _containers(model):
        ran = [child for child in children if child in around]
        if len(ran) >= 2 and _in_sequence(graph, weights, ran[0], ran[1]):
            reports.append((path, ran))
    return reports


def attends(graph: Graph, path: str) -> bool:
    """Tell if a softmax ran inside a container."""
    return any(node.function in SOFTMAX and _within(node.operation.module, path) for node in graph.nodes)


def reads_ids(graph: Graph, path: str) -> bool:
    """Tell if weights of a container depend on token ids that were looked up."""
    weights = [node for node in graph.nodes if node.weight and _within(node.operation.module, path)]
    return any(graph[index].function == "embedding" for index in graph.above(weights[0].index, set()))


def idle_containers(model: nn.Module, graph: Graph) -> list[str]:
    """Repeated containers no weight of which acts in this pass: towers that need another input."""
    ran = _around(node.operation.module for node in graph.nodes if node.weight)
    return [path for path, _ in _containers(model) if path not in ran]


def covered_blocks(graph: Graph, chain: Chain, children: Sequence[str]) -> list[str]:
    """Those modules whose weights are in branches of a chain."""
    around = _around(graph[i].operation.module for r in chain.sums for i in r.inside if graph[i].weight)
    return [child for child in children if child in around]


def judge_cover(model: nn.Module, graph: Graph, chain: Chain, listed: Sequence[Chain]) -> bool:
    """Note what a chain leaves out of its blocks; False if it leaves out most."""
    outside = unaccounted(graph, chain, listed)
    if outside:
        names = ", ".join(outside[:3]) + (" ..." if len(outside) > 3 else "")
        what = f"{CHOOSES}, or which weights they use, through" if _choose(graph, outside) else f"{ACTS}:"
        chain.reasons.append(f"{what} {names}")
    children, ran = blocks_that_ran(model, graph, chain.name)
    own = covered_blocks(graph, chain, ran)
    kinds = {type(model.get_submodule(child)) for child in own}  # a stem in the same list is not a block
    children, ran = ([c for c in names if type(model.get_submodule(c)) in kinds] for names in (children, ran))
    name = chain.name or "the model"
    if len(own) < len(ran):
        left = [child for child in ran if child not in own]
        which = "the last of them" if left == ran[-1:] else ", ".join(left[:3])
        chain.reasons.append(f"it covers {len(own)} of the {len(ran)} blocks of {name}, not {which}")
    idle = [child for child in children if child not in ran]
    if idle and ran:
        chain.remarks.append(
            f"{len(idle)} of {len(children)} blocks of {name} did not run on this batch: {idle[0]}"
        )
    return 2 * len(own) > len(ran) or not ran


def judge_single_blocks(model: nn.Module, graph: Graph, listed: Sequence[Chain]) -> None:
    """Note of a chain of one block that others, which no chain or another one covers, stand beside it in a list."""
    for path, ran in repeated_containers(model, graph):
        covered = [covered_blocks(graph, chain, ran) for chain in listed]
        apart = (
            len({child for own in covered for child in own}) < len(ran)
            or max(map(len, covered), default=0) > 1
        )
        for chain, own in zip(listed, covered, strict=True):
            if len(own) == 1 and len(chain.sums) <= ONE_BLOCK and apart:
                chain.reasons.append(
                    f"it is one of the {len(ran)} blocks of {path}, which no residual sums join"
                )


def _choose(graph: Graph, modules: Sequence[str]) -> bool:
    """Return whether all that these weights give is chosen from: an indexer of sparse attention."""
    inside = {node.index for node in graph.nodes if node.weight and node.operation.module in modules}
    chosen: set[int] = set()
    for node in graph.nodes:
        if node.function in CHOICE:
            chosen |= graph.above(node.index, set())
    return inside <= chosen


def blocks_that_ran(model: nn.Module, graph: Graph, path: str) -> tuple[list[str], list[str]]:
    """Children of a list of modules that have matrices, and those whose weights act in this pass."""
    try:
        module = model.get_submodule(path)
    except AttributeError:
        return [], []
    if not isinstance(module, (nn.ModuleList, nn.Sequential)):
        return [], []
    ran = _around(node.operation.module for node in graph.nodes if node.weight)
    children = [
        f"{path}.{name}" if path else name
        for name, child in module.named_children()
        if any(p.dim() >= 2 for p in child.parameters())
    ]
    return children, [child for child in children if child in ran]


def _containers(model: nn.Module) -> list[tuple[str, list[str]]]:
    """Outermost lists of at least three modules of one class."""
    containers: list[tuple[str, list[str]]] = []
    for path, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or len(module) < 3:
            continue
        if any(_within(path, outer) for outer, _ in containers):
            continue
        kinds = [type(child) for child in module]
        if max(kinds.count(kind) for kind in kinds) >= 3 and any(p.dim() >= 2 for p in module.parameters()):
            containers.append((path, [f"{path}.{name}" if path else name for name in module._modules]))
    return containers


def _in_sequence(graph: Graph, weights: Sequence[Node], one: str, other: str) -> bool:
    starts = [w.index for w in weights if _within(w.operation.module, one)]
    ends = [w.index for w in weights if _within(w.operation.module, other)]
    return bool(graph.between(starts[0], ends[-1]))


def _around(modules: Iterable[str]) -> set[str]:
    """These modules and all around them, by path."""
    around = {""}
    for module in set(modules):
        while module not in around:
            around.add(module)
            module = module.rpartition(".")[0]
    return around


def _within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _is_language(graph: Graph, chain: Chain) -> bool:
    """Return whether the stream starts from an embedding of integers, with no weight between."""
    todo, visited = [chain.sums[0].point], set()
    while todo:
        index = todo.pop()
        node = graph[index]
        if index in visited or node.weight:
            continue
        visited.add(index)
        if node.function == "embedding" and all(parent.integer for parent in graph.parents(node)):
            return True
        todo += node.parents
    return False


def block_module(graph: Graph, chain: Chain, place: int) -> tuple[str, int] | None:
    """(module, node) whose output is the stream after a sum, or what a norm on the sum makes of it."""
    by_node = {residual.node: residual for residual in chain.sums}
    target = chain.sums[place].node
    path = weight_path(graph, chain.sums[place])[0]
    options = [
        (node, module)
        for module in _around([path])
        if module and not _within(chain.name, module)
        for node in graph.leaving.get(module, ())
        if node >= target
    ]
    for node, module in sorted(options, key=lambda option: (option[0], len(option[1]))):
        if link(graph, graph[node], by_node)[0] == target:
            return module, node
    return None


def _outlet(graph: Graph, chain: Chain) -> Operation | None:
    last = block_module(graph, chain, len(chain.sums) - 1)
    return None if last is None else graph[last[1]].operation
