"""Skip, multipliers and strength of every branch, from one plain pass and the graph."""

from __future__ import annotations

import torch
from torch import Tensor

from edgewise.models.behavior.compare import size, wide
from edgewise.models.behavior.experiment import Experiment, Site
from edgewise.models.behavior.graph import Graph

EXACT = {torch.float64: 1e-8, torch.float32: 1e-4}  # |skip - m stream| / |stream|
ROUGH = 2e-2  # in half precision


def read_shares(experiment: Experiment) -> None:
    """skip = <a, s>/<s, s> where that is all of a; share = |b| / |a|."""
    skips: dict[int, float] = {}
    sizes: dict[Site, float] = {}

    def see_skip(site: Site, skip: Tensor, stream: Tensor | None) -> None:
        skips[site.residual.node] = size(skip)
        site.traits.skip = _skip(experiment, site, skip, stream)

    def see_branch(site: Site, branch: Tensor) -> None:
        sizes[site] = size(branch)

    experiment.values(see_skip, see_branch)
    for site in experiment.sites:
        if site not in sizes or site.residual.node not in skips:
            site.traits.reasons.append("the model takes another path when the size of the batch changes")
            continue
        factor = abs(branch_scale(experiment.graph, site)[0])
        outer = factor if site.part.total != site.total else abs(_weights(experiment.graph, site)[1])
        whole = skips[site.residual.node] * abs(_weights(experiment.graph, site)[0])
        site.traits.share = outer * sizes[site] / whole if whole else float("inf")
        site.traits.silent = sizes[site] == 0


def _weights(graph: Graph, site: Site) -> tuple[float, float]:
    """What the sum itself multiplies skip and branch by (alpha of torch.add, weight of lerp)."""
    weights = graph[site.residual.node].weights
    return weights[site.residual.skip_side], weights[1 - site.residual.skip_side]


def _skip(experiment: Experiment, site: Site, skip: Tensor, stream: Tensor | None) -> float | None:
    if experiment.graph[site.residual.node].mixed:
        site.traits.reasons.append("its sum weighs stream and branch by a vector or by the input")
        return None
    if stream is None:
        site.traits.reasons.append("the model overwrites a part of its stream")
        return None
    if skip.numel() != stream.numel():
        site.traits.reasons.append("its skip is not the stream")
        return None
    exact = EXACT.get(skip.dtype, ROUGH)
    skip, stream = wide(skip).flatten(), wide(stream).flatten()
    square = float(stream.dot(stream))
    factor = float(skip.dot(stream)) / square if square else 1.0
    if float((skip - factor * stream).norm()) > exact * square**0.5:
        site.traits.reasons.append("its skip is not the stream times a number")
        return None
    return round(factor, 6) * _weights(experiment.graph, site)[0]


def branch_scale(graph: Graph, site: Site) -> tuple[float, float | None]:
    """(scalar, root mean square of a vector) that multiply a branch just before the sum."""
    operands = graph[site.residual.node].operands
    assert operands is not None
    scale, vector = _down_to(graph, operands[1 - site.residual.skip_side], site.part.tip) or (1.0, None)
    own, own_vector = _scales(graph, site.part.tip)
    sizes = [v for v in (vector, own_vector) if v is not None]
    return scale * own * _weights(graph, site)[1], sizes[0] if sizes else None


def _scales(graph: Graph, index: int) -> tuple[float, float | None]:
    scale, vector = 1.0, None
    while graph.transparent(graph[index]) and graph[index].operands is None:
        value = graph[index].scale
        if isinstance(value, Tensor):
            vector = (1.0 if vector is None else vector) * float(value.float().pow(2).mean().sqrt())
        elif value is not None:
            scale *= value
        index = graph[index].parents[0]
    return scale, vector


def _down_to(graph: Graph, index: int, tip: int) -> tuple[float, float | None] | None:
    """What multiplies the tip on its way through sums of parallel branches; None where it is not there."""
    if index == tip:
        return 1.0, None
    node = graph[index]
    if node.operands is not None:
        for side, operand in enumerate(node.operands):
            below = _down_to(graph, operand, tip)
            if below is not None:
                return below[0] * node.weights[side], below[1]
        return None
    if not graph.transparent(node):
        return None
    below = _down_to(graph, node.parents[0], tip)
    if below is None or node.scale is None:
        return below
    if isinstance(node.scale, Tensor):
        return below[0], (below[1] or 1.0) * float(node.scale.float().pow(2).mean().sqrt())
    return below[0] * node.scale, below[1]


def rescale(graph: Graph, site: Site) -> float | None:
    """What multiplies the stream between this sum and the next; None where a norm or a vector does."""
    chain, after = site.chain, site.place + 1
    if after == len(chain.sums):
        return _rescaled_last(graph, site)
    if not chain.plain[after]:
        return None
    return _scale_between(graph, chain.sums[after].point, site.residual.node)


def _rescaled_last(graph: Graph, site: Site) -> float | None:
    """What multiplies the last sum before its block gives it on; None where a norm or another function acts on it.

    Where no module's output is the end of the block, what acts on the sums before acts on the last one too.
    """
    if site.chain.outlet is None:
        return 1.0 if all(site.chain.plain[1:]) else None
    outlet = graph.by_operation.get(site.chain.outlet, site.residual.node)
    index = outlet
    while index != site.residual.node and graph.transparent(graph[index]):
        index = graph[index].parents[0]
    return _scale_between(graph, outlet, site.residual.node) if index == site.residual.node else None


def _scale_between(graph: Graph, index: int, end: int) -> float | None:
    """The product of the scalars on the way up; None where a vector is among them."""
    scale = 1.0
    while index != end and graph.transparent(graph[index]):
        value = graph[index].scale
        if isinstance(value, Tensor):
            return None
        scale *= 1.0 if value is None else value
        index = graph[index].parents[0]
    return scale
