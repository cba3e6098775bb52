"""What multiplies a branch and the stream, and where norms stand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from edgewise.models.behavior.compare import growth, relative, sample, size, wide
from edgewise.models.behavior.dependence import real_tokens
from edgewise.models.behavior.experiment import Experiment, Site, unit
from edgewise.models.behavior.graph import CHOICE, SOFTMAX, Graph
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.score_operands import EXCHANGED
from edgewise.models.behavior.stacks import REVERSIBLE, added

EXACT = {torch.float64: 1e-8, torch.float32: 1e-4}  # |skip - m stream| / |stream|
ROUGH = 2e-2  # in half precision


def read_shares(experiment: Experiment) -> None:
    """skip = <a, s>/<s, s> if that is all of a; share = |b| / |a|."""
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
        later, again = _again(experiment.graph, site)
        if site.traits.skip and again:  # the skip is there twice
            whole *= abs(site.traits.skip / (site.traits.skip - again) * later)
        site.traits.share = outer * sizes[site] / whole if whole else float("inf")
        site.traits.silent = sizes[site] == 0


def _weights(graph: Graph, site: Site) -> tuple[float, float]:
    """Return what the sum itself multiplies skip and branch by (alpha of torch.add, weight of lerp)."""
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
    exact, (later, again) = EXACT.get(skip.dtype, ROUGH), _again(experiment.graph, site)
    skip, stream = wide(skip).flatten(), wide(stream).flatten()
    square = float(stream.dot(stream))
    factor = float(skip.dot(stream)) / square if square else 1.0
    if float((skip - factor * stream).norm()) > exact * square**0.5:
        site.traits.reasons.append("its skip is not the stream times a number")
        return None
    return round(factor, 6) * _weights(experiment.graph, site)[0] * later + again


def branch_scale(graph: Graph, site: Site) -> tuple[float, float | None]:
    """(scalar, root mean square of a vector) that multiply a branch just before the sum."""
    operands = graph[site.residual.node].operands
    assert operands is not None
    scale, vector = _down_to(graph, operands[1 - site.residual.skip_side], site.part.tip) or (1.0, None)
    own, own_vector = _scales(graph, site.part.tip)
    sizes = [v for v in (vector, own_vector) if v is not None]
    return scale * own * _weights(graph, site)[1] * _again(graph, site)[0], sizes[0] if sizes else None


def _again(graph: Graph, site: Site) -> tuple[float, float]:
    """Return what multiplies the sum, and its skip beside it, where that is added again: x + (x + f(x))."""
    return graph.doubled.get(site.residual.node, (0, 1.0, 0.0))[1:]


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
    """Return what multiplies the tip on its way through sums of parallel branches; None if it is not there."""
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
    """Return what multiplies the stream between this sum and the next; None if a norm or a vector does."""
    chain, step = site.chain, 2 if REVERSIBLE in site.chain.remarks else 1  # two streams take turns
    place = site.place if site.place + step < len(chain.sums) or step == 1 else site.place - step
    after = place + step
    if after >= len(chain.sums) or place < 0:
        return _rescaled_last(graph, site) if step == 1 else 1.0
    if after in chain.stages:  # what acts between stages belongs to no branch
        return 1.0
    return _scale_between(graph, chain.sums[after].point, chain.sums[place].node, chain.merging)


def _rescaled_last(graph: Graph, site: Site) -> float | None:
    """What multiplies the last sum before its block gives it on; None where a norm or another function acts on it.

    If no module's output is the end of the block, what acts on the sums before acts on the last one too.
    """
    if site.chain.outlet is None:
        chain = site.chain  # what acts between stages belongs to no branch
        gaps = [i for i in range(1, len(chain.sums)) if not chain.plain[i] and i not in chain.stages]
        ends = [(chain.sums[i].point, chain.sums[i - 1].node) for i in gaps]
        return 1.0 if all(_scale_between(graph, *end, chain.merging) == 1.0 for end in ends) else None
    outlet = graph.by_operation.get(site.chain.outlet, site.residual.node)
    index = outlet
    doubled = graph.doubled.get(site.residual.node, (None,))[0]
    while index != site.residual.node and (index == doubled or graph.transparent(graph[index])):
        index = graph.mixes.get(index, graph[index].parents[0])
    return _scale_between(graph, outlet, site.residual.node, set()) if index == site.residual.node else None


def _scale_between(graph: Graph, index: int, end: int, merging: set[int]) -> float | None:
    """The product of the scalars on the way up; None where a vector or a function is among them.

    What is added does not scale, and what makes the stream from several points of it belongs to no branch.
    """
    scale = 1.0
    while index != end and index not in merging:
        node = graph[index]
        if index in graph.mixes:
            return 1.0
        if isinstance(node.scale, Tensor) or not (added(node) or graph.transparent(node)):
            return None
        scale *= 1.0 if node.scale is None else node.scale
        index = node.parents[0]
    return scale


LOUD, LOUDER, SHIFT = 100.0, 1e4, 3.0
NORMED = 0.3  # growth exponent: 0 behind a norm, 1 if there is none
ALONG = 0.98  # cosine; a saturated tanh turns a random token to 0.8, the eps of a norm does not turn it
BATCH, ELEMENTWISE = "batch", "elementwise"
STRAIGHT = 0.9  # of the way to where a function saturates; beyond it its inverse is lost in rounding
CURVED = 1e-2  # of the slope: tanh and erf part by more
SAME = 1e-3  # a norm gives the same numbers for a scaled stream; LayerNorm also for a shifted one


def read_norms(experiment: Experiment, *others: dict[str, Any]) -> None:
    """Norms of inputs, sums and outputs; and outputs at the base input and with two tokens exchanged.

    What others want to inspect is read in the first of these passes.
    """
    swapped = exchanged(experiment)
    plain, loud, shifted = (_Inputs(experiment) for _ in range(3))
    experiment.forced(2, swapped, _keep_base(experiment), **merged(plain.edits(_noise), *others))
    experiment.forced(2, lambda s: LOUD * swapped(s), None, **loud.edits(lambda v: LOUD * _noise(v)))
    experiment.forced(2, lambda s: swapped(s) + SHIFT, None, **shifted.edits(lambda v: _noise(v) + SHIFT))
    for site in experiment.sites:
        _conclude(experiment.graph, site, plain, loud, shifted)
        if site.traits.norm_kind == ELEMENTWISE:
            _name_function(experiment, site, plain, loud, swapped)
    _read_outputs(experiment)
    for site in experiment.sites:
        if site.residual.made:
            site.traits.input_growth = site.traits.output_growth = None
            site.traits.reasons.append("matrices that the model makes from an input act on the stream in it")
        elif site.traits.output_growth is not None and _chosen_last(experiment.graph, site):
            site.traits.output_growth = None
            site.traits.reasons.append(
                "its last matrices give the weights of a softmax or a choice, not what is added"
            )
    for site in experiment.sites:
        last = [experiment.graph.by_operation[op] for op in site.part.last]
        if last and all(_batch_normed(experiment.graph, index, [site.part.tip]) for index in last):
            site.traits.output_growth, site.traits.norm_kind = 0.0, BATCH


class _Inputs:
    """What arrives at first weights and, behind norms on the sums, at points of the stream in one pass."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.weights: dict[Operation, Tensor] = {}
        self.points: dict[tuple[int, int], Tensor] = {}

    def edits(self, sums: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        first = self.experiment.weights("first")
        outlets = {chain.outlet: (i, len(chain.sums)) for i, chain in enumerate(self.experiment.chains)}
        return {
            "arriving": lambda site, value: self._point((site.stack, site.place), value),
            "sums": sums,
            "weight_inputs": {op: self._weight(op) for op in first},
            "observed": {
                op: lambda v, k=key: self._point(k, v) for op, key in outlets.items() if op is not None
            },
        }

    def _point(self, key: tuple[int, int], value: Tensor) -> None:
        self.points[key] = sample(value)

    def _weight(self, operation: Operation) -> Callable[[Tensor], Tensor]:
        def look(value: Tensor) -> Tensor:
            self.weights[operation] = sample(value)
            return value

        return look


def _noise(value: Tensor) -> Tensor:
    """The same random numbers of mean square one in place of a sum, whatever it was."""
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel()))
    return unit(noise.to(value))


def merged(*edits: dict[str, Any]) -> dict[str, Any]:
    """Edits of one pass from several; where two edit the same operation, the later acts on what the earlier gives."""
    whole: dict[str, Any] = {}
    for more in edits:
        for name, value in more.items():
            if isinstance(value, dict):
                join = _both if name == "calls" else _after
                both = {op: join(whole.get(name, {}).get(op), edit) for op, edit in value.items()}
                whole[name] = whole.get(name, {}) | both
            else:
                whole[name] = value
    return whole


def _after(first: Any, second: Any) -> Any:
    return second if first is None else lambda value: second(first(value))


def _both(first: Any, second: Any) -> Any:
    def look(args: Any, kwargs: Any) -> None:
        first(args, kwargs)
        second(args, kwargs)

    return second if first is None else look


def exchanged(experiment: Experiment) -> Callable[[Any], Tensor]:
    """Two entries: the base, and the same with two of the last tokens exchanged."""

    def make(stream: Any) -> Tensor:
        length, tokens = real_tokens(experiment, stream), stream.base.repeat(2, 1, 1)
        if length >= 4:
            one, other = (length - place for place in EXCHANGED)
            tokens[1, [other, one]] = tokens[1, [one, other]]
        return tokens

    return make


def _keep_base(experiment: Experiment) -> Callable[[Site, Tensor], None]:
    def see(site: Site, tokens: Tensor) -> None:
        last = real_tokens(experiment, experiment.streams[site.source]) - 1
        site.traits.base = tokens[0].clone()
        site.traits.order = relative(tokens[1, last], tokens[0, last])

    return see


def _conclude(graph: Graph, site: Site, plain: _Inputs, loud: _Inputs, shifted: _Inputs) -> None:
    """Behind a norm at the input, numbers stay; the least normed of the first weights decides.

    A batch norm in evaluation mode is a fixed map; in training it is a norm, and counts as one.
    """
    traits = site.traits
    growths = []
    asked = site.part.ends[0]
    total = graph[site.residual.node]
    if total.mixed and (len(total.parents) > 2 or not total.function.startswith("lerp")):
        # gates made from the stream read it past the norm; a learned share does not
        asked = [op for op in asked if op in site.part.score_weights]
    for operation in asked:
        if operation in plain.weights and operation in loud.weights:
            value = growth(loud.weights[operation], plain.weights[operation], LOUD)
            if value is not None:
                growths.append((value, operation))
    if growths:
        traits.input_growth, operation = max(growths)
        if _batch_normed(graph, site.residual.source, [graph.by_operation[op] for op in site.part.first]):
            traits.input_growth, traits.norm_kind = 0.0, BATCH
        if traits.input_growth < NORMED and traits.norm_kind is None and operation in shifted.weights:
            traits.norm_kind = kind_of(*(p.weights[operation] for p in (plain, loud, shifted)))
    after = (site.stack, site.place + 1)  # the point after this sum
    last = site.place + 1 == len(site.chain.sums)
    if site.place + 1 in site.chain.stages:  # between stages other matrices act too
        return
    if all(after in p.points for p in (plain, loud, shifted)) and (
        last or not site.chain.plain[site.place + 1]
    ):
        traits.outside_growth = growth(loud.points[after], plain.points[after], LOUD)
        if traits.outside_growth is not None and traits.outside_growth < NORMED:
            traits.norm_kind = kind_of(*(p.points[after] for p in (plain, loud, shifted)))
    elif site.chain.outlet == site.total if last else site.chain.plain[site.place + 1]:
        traits.outside_growth = 1.0
    outlet = graph.by_operation.get(site.chain.outlet) if last and site.chain.outlet is not None else None
    end = outlet if last else site.chain.sums[site.place + 1].point
    if end is not None and _batch_normed(graph, site.residual.node, [end]):
        traits.outside_growth, traits.norm_kind = 0.0, BATCH


def _batch_normed(graph: Graph, start: int, ends: list[int]) -> bool:
    """Return whether a batch norm acts between a node and all of these."""
    ways = [graph.between(start, end) for end in ends]
    return bool(ways) and all(any(graph[index].function == "batch_norm" for index in way) for way in ways)


def kind_of(plain: Tensor, loud: Tensor, shifted: Tensor) -> str | None:
    """layer, rms, or elementwise (bounded, but not the same for a scaled stream)."""
    if plain.shape != loud.shape or plain.shape != shifted.shape:
        return None
    if relative(loud, plain) > SAME:
        return ELEMENTWISE
    return "layer" if relative(shifted, plain) < SAME else "rms"


def _name_function(
    experiment: Experiment, site: Site, plain: _Inputs, loud: _Inputs, given: Callable[[Any], Tensor]
) -> None:
    """tanh or erf, and its slope, if that is what stands in the place of a norm at the input."""
    stream, operation = experiment.streams.get(site.source), site.part.first[0]
    if stream is None or (stream.layout.batch, stream.layout.features, stream.layout.rank) != (0, 2, 3):
        return
    tokens = given(stream)
    values = [own[operation] for own in (plain.weights, loud.weights) if operation in own]
    if len(values) == 2 and all(value.numel() == tokens.numel() for value in values):
        rows = [wide(value.reshape(-1, tokens.shape[-1])) for value in (tokens, *values)]
        site.traits.norm_kind, site.traits.norm_slope = _saturating(*rows) or (ELEMENTWISE, None)


def _saturating(x: Tensor, plain: Tensor, loud: Tensor) -> tuple[str, float] | None:
    """(f, slope) if plain = gain f(slope x) + shift with a gain and a shift for every feature; loud: of 100 x."""
    top, bottom = loud.amax(0), loud.amin(0)
    gain, shift = (top - bottom) / 2, (top + bottom) / 2
    ratio = (plain - shift) / gain
    told = (ratio.abs() < STRAIGHT) & (x.abs() > 1 - STRAIGHT)
    for name, inverse in (("tanh", torch.atanh), ("erf", torch.erfinv)):
        slopes = (inverse(ratio) / x)[told].abs()
        if len(slopes) and bool(((slopes / slopes.median() - 1).abs() < CURVED).all()):
            return name, float(slopes.median())
    return None


def _read_outputs(experiment: Experiment) -> None:
    """Does a branch grow when what its last weights give is scaled? And is that norm's mean taken off?"""
    last = experiment.weights("last")

    def see(site: Site, tokens: Tensor) -> None:
        if site.traits.base is not None:
            site.traits.output_growth = growth(tokens[0], site.traits.base, LOUDER)
            alone = not (
                site.traits.memory or site.traits.other_layers or site.part.crosses
            )  # else its input differs
            normed = is_normed(site.traits.output_growth)
            if alone and normed and not _same_directions(tokens[0], site.traits.base):
                site.traits.output_growth = None
                site.traits.reasons.append("a bounded function that is not a norm stands at its end")

    experiment.forced(1, lambda s: s.base, see, last_outputs=dict.fromkeys(last, lambda v: LOUDER * v))
    normed = [s for s in experiment.sites if (s.traits.output_growth or 1.0) < NORMED]
    if not any(site.traits.norm_kind is None for site in normed):
        return

    def compare(site: Site, tokens: Tensor) -> None:
        if site in normed and site.traits.norm_kind is None and site.traits.base is not None:
            same = relative(tokens[0], site.traits.base) < SAME
            site.traits.norm_kind = "layer" if same else "rms"

    shift = dict.fromkeys(last, lambda v: v + SHIFT * v.pow(2).mean().sqrt())
    experiment.forced(1, lambda s: s.base, compare, last_outputs=shift)


def _chosen_last(graph: Graph, site: Site) -> bool:
    """Whether all that the last matrices give is chosen by, or weighs what is looked up."""
    inside = [graph[index] for index in site.part.inside if not graph[index].weight]
    stops = {node.index for node in inside if node.function in SOFTMAX | CHOICE}
    direct = graph.above(site.part.tip, stops | {site.residual.source})
    return not any(graph.by_operation[operation] in direct for operation in site.part.last)


def _same_directions(one: Tensor, other: Tensor) -> bool:
    """Return whether every token points where it did, as behind a norm; a function that saturates turns it."""
    cosines = torch.nn.functional.cosine_similarity(wide(one), wide(other), dim=-1)
    return bool(cosines.median() > ALONG)


def is_normed(growth: float | None) -> bool | None:
    return None if growth is None or math.isnan(growth) else growth < NORMED
