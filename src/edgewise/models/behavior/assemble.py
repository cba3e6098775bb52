"""The record from what the passes have shown; what was not shown is `None`, with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgewise.errors import BadInput
from edgewise.models.behavior.branch_matrices import (
    attention_calls,
    matrices_of,
    weights_of,
    why_no_roles,
    writers_of,
)
from edgewise.models.behavior.dependence import read_sight, real_tokens
from edgewise.models.behavior.experiment import TRACE_ENTRIES, Experiment, Site, Stream
from edgewise.models.behavior.gains import read_gains
from edgewise.models.behavior.graph import MULTIHEAD, Graph
from edgewise.models.behavior.layout import plain_layout
from edgewise.models.behavior.mlp import Hidden
from edgewise.models.behavior.norms import branch_scale, is_normed, merged, read_norms, read_shares, rescale
from edgewise.models.behavior.queries_and_keys import Scores
from edgewise.models.behavior.record import BEYOND, Block, Branch, Stack, norm_position
from edgewise.models.behavior.stacks import RESAMPLED, WIDENED, Chain, block_module, common_path
from edgewise.models.behavior.token_order import SPREAD, positions_of, read_equal_tokens, read_filled_order
from edgewise.models.behavior.visibility import Sight

MATRICES = 6  # that read the stream in a dense branch: gate, value and what adapters add; experts have more


def stack_of(experiment: Experiment, number: int, absolute: bool | None, horizon: int | None) -> Stack:
    """One chain as a stack."""
    chain = experiment.chains[number]
    sites = [site for site in experiment.sites if site.stack == number]
    steps = _steps(chain)
    branches = {site: _branch(experiment, site, steps[site.place]) for site in sites}
    _agree_on_the_last(branches)
    blocks = _joined(_blocks(experiment, chain, branches))
    start = experiment.graph[chain.sums[0].point].operation
    stream = experiment.streams.get(start)
    shape = experiment.graph[chain.sums[0].node].shape
    reasons = [*(chain.reasons or _reasons(chain, blocks, stream is not None))]
    if not (chain.proven or chain.reasons or any(site.part.softmax or site.part.scores for site in sites)):
        reasons.insert(
            0, f"no attention found: nothing in it is a softmax over tokens{_mixes_by(experiment, sites)}"
        )
    tokens = real_tokens(experiment, stream) if stream is not None else 0  # beyond them a model has padded
    lengths = {s.length for s in experiment.streams.values() if s.stack == number}
    if len(lengths) > 1:
        reasons.append(f"{RESAMPLED}: {', '.join(map(str, sorted(lengths)))}")
    widths = {
        other.true.shape[-1]
        for other in experiment.streams.values()
        if other.stack == number and chain.stages
    }
    if len(widths) > 1:
        reasons.append(f"{WIDENED}: {', '.join(map(str, sorted(widths)))}")
    proven = stream is not None and chain.proven
    weights, adapters = weights_of(experiment, sites)
    layout = _read_layout(stream) if stream is not None and proven else _plain_layout(experiment, chain)
    return Stack(
        name=chain.name,
        default=False,
        language=chain.language,
        width=_width(shape, layout) if stream is None or not proven else stream.true.shape[-1],
        tokens=stream.length if stream else 0,
        horizon=max(horizon if horizon and chain.language else 0, tokens),
        layout=layout,
        start=start,
        start_norm=float(stream.entry.pow(2).mean()) if stream is not None else math.nan,
        absolute=absolute,
        blocks=blocks,
        copies=None,
        shared=chain.shared,
        notes=()
        if chain.reasons
        else (
            *dict.fromkeys(chain.remarks),
            *_notes(blocks),
            *_more_tokens(stream.length if stream else 0, tokens),
        ),
        not_read=tuple(dict.fromkeys(reasons)),
        weights=weights,
        adapters=adapters,
    )


def _more_tokens(length: int, tokens: int) -> list[str]:
    """Tokens behind those that were given: padding, or streams of their own."""
    if length <= tokens:
        return []
    return [f"of its {length} tokens the first {tokens} were inspected; {BEYOND}"]


def _read_layout(stream: Stream) -> str:
    """If entries and tokens share an axis, (1, entries tokens, features), the other one is of size one."""
    folded = stream.entry.shape[stream.layout.batch] > 1
    return stream.layout.text.replace("token", "one") if folded else stream.layout.text


def _plain_layout(experiment: Experiment, chain: Chain) -> str | None:
    """Of a stack whose branches do not show it."""
    graph, inside = experiment.graph, {index for total in chain.sums for index in total.inside}
    shapes = [graph[total.node].shape for total in chain.sums]
    return plain_layout(graph, shapes, inside, TRACE_ENTRIES, experiment.feed.tokens)


def _width(shape: tuple[int, ...], layout: str | None) -> int:
    """Features of one token; of a stream whose axes are not certain, the size of the last."""
    axes = (layout or "").split()
    sizes = (
        [size for size, axis in zip(shape, axes, strict=True) if axis == "feature"] if axes else [shape[-1]]
    )
    return math.prod(sizes)


def _joined(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Attention and feed-forward layers that take turns in one list are the two halves of a block."""
    if (
        any(len(block.branches) != 1 for block in blocks)
        or not blocks
        or blocks[0].branches[0].kind != "attention"
    ):
        return blocks
    starts = [i for i, block in enumerate(blocks) if block.branches[0].kind == "attention"]
    groups = [blocks[start:end] for start, end in zip(starts, [*starts[1:], len(blocks)], strict=True)]
    kinds = {tuple(block.branches[0].kind for block in group) for group in groups}
    if len(kinds) != 1 or len(groups[0]) == 1:
        return blocks
    return tuple(
        Block(index, None, tuple(branch for block in group for branch in block.branches))
        for index, group in enumerate(groups)
    )


def _steps(chain: Chain) -> list[int]:
    """Sums that read the same point are one step."""
    steps: list[int] = []
    for residual in chain.sums:
        steps.append(steps[-1] if residual.joins and steps else len(set(steps)))
    return steps


def _branch(experiment: Experiment, site: Site, step: int) -> Branch:
    graph, traits, part = experiment.graph, site.traits, site.part
    scale, vector = branch_scale(graph, site)
    if traits.gate_size is not None:
        vector = traits.gate_size * (1.0 if vector is None else vector)
    pattern = traits.sight if site.chain.proven else None
    kind = _kind(graph, site) if site.chain.proven else None
    after = site.place + 1
    module = common_path([w.module.split(".") for w in part.weights])
    outlet = (
        site.chain.outlet if after == len(site.chain.sums) else graph[site.chain.sums[after].point].operation
    )
    if after in site.chain.stages or (
        outlet is not None and graph.by_operation[outlet] < site.residual.node
    ):  # the next branch is another stream's
        outlet = site.total
    attends = kind in ("attention", "cross-attention")
    matrices = matrices_of(experiment, site, kind)
    return Branch(
        kind=kind,
        silent=traits.silent,
        module=module,
        step=step,
        point=site.point,
        total=site.total,
        outlet=outlet,
        skip=traits.skip,
        multiplier=scale,
        layer_scale=vector,
        rescale=rescale(graph, site),
        share=traits.share,
        sees=None if pattern is None else pattern.sees,
        window=pattern.window if pattern and part.softmax else None,
        window_both_sides=bool(pattern and part.softmax and pattern.both_sides),
        softmax=part.softmax,
        linear=traits.linear if attends else None,
        rows_sum_to_one=None if kind == "mlp" else _sums_to_one(site),
        memory=traits.memory,
        other_layers=traits.other_layers and kind != "mlp",
        input_norm=is_normed(traits.input_growth),
        output_norm=is_normed(traits.output_growth),
        outside_norm=is_normed(traits.outside_growth),
        norm_kind=traits.norm_kind,
        positions=positions_of(site) if kind == "attention" else None,
        qk_norm=_qk_norm(site) if attends else None,
        heads=_heads(experiment, site) if attends else None,
        products=_products(experiment, site),
        kv_heads=_heads(experiment, site, "kv_heads") if attends else None,
        head_width=traits.head_width if attends else None,
        activation=traits.activation,
        gated=_gated(site),
        hidden_width=traits.hidden_width,
        experts=kind == "mlp" and _experts(experiment, site),
        output_gate=bool(set(part.first) & set(part.last) and set(part.last) - set(part.first)),
        gains=traits.gains,
        powers=traits.powers,
        not_read=tuple(dict.fromkeys(traits.reasons)),
        window_uneven=bool(pattern and pattern.uneven),
        weights_seen=traits.whole is not None,
        matrices=matrices,
        conditioned=traits.gate_size is not None,
        calls=attention_calls(experiment, site) if attends else (),
        writers=writers_of(experiment, site),
        no_roles="" if matrices else why_no_roles(experiment, site),
        norm_slope=traits.norm_slope,
        middle_norm=traits.middle_norm,
    )


def _sums_to_one(site: Site) -> bool | None:
    """As the weights themselves show; if they were not seen, equal tokens give equal outputs."""
    if site.traits.whole is not None or site.traits.spread is None:
        return site.traits.whole
    return site.traits.spread < SPREAD


def _experts(experiment: Experiment, site: Site) -> bool:
    """A choice by a router, many matrices side by side, or matrices that are stacked in one constant."""
    own = [op for op in site.part.weights if "conv" not in op.function]
    stacked = (c.shape for op in own for c in experiment.graph.constants.get(op, ()) if len(c.shape) == 3)
    return site.part.mixture or len(site.part.first) > MATRICES or any(min(shape) > 1 for shape in stacked)


def _heads(experiment: Experiment, site: Site, name: str = "heads") -> int | None:
    """As many in all as the products of queries and keys have, where heads are computed by themselves.

    Several products of several heads each are parts of one (chunks of keys), unless other matrices make their queries.
    """
    number = getattr(site.traits, name)
    if number is None:
        return None
    own = [score.query_weights for score in site.part.scores if not score.mixed]
    return number * max(_products(experiment, site) if site.traits.heads == 1 else len(set(own)), 1)


def _products(experiment: Experiment, site: Site) -> int:
    """Of queries with keys, for one entry of the batch."""
    number = sum(not score.mixed for score in site.part.scores)
    apart = experiment.feed.end_to_end and number % TRACE_ENTRIES == 0
    return number // TRACE_ENTRIES if apart else number


def _kind(graph: Graph, site: Site) -> str | None:
    traits = site.traits
    if traits.sight is None:
        return None
    if site.part.softmax and _over_features(graph, site):
        return "mixer"
    if traits.sight.sees == "token":
        crosses = (traits.memory and site.part.softmax) or bool(
            site.part.scores
        )  # keys may come with the batch
        return "cross-attention" if crosses else "mlp"
    if site.part.softmax and not site.part.composed:
        return "attention"
    sums_to_one = traits.spread is not None and traits.spread < SPREAD
    if any(score.softmax.function == "exp" for score in site.part.scores) and not site.part.composed:
        return "attention"  # exponentials of scores, perhaps with a sink among those they are divided by
    return "attention" if sums_to_one and site.part.scores and not site.part.composed else "mixer"


def _over_features(graph: Graph, site: Site) -> bool:
    """Return whether its softmax weighs features by each other (cross-covariance): the product sums over tokens."""
    shapes = [
        graph[graph.by_operation[s.softmax]].shape[-2:] for s in site.part.scores if s.softmax != s.product
    ]
    return site.traits.head_width == site.traits.length and any(
        site.traits.length not in shape for shape in shapes
    )


def _qk_norm(site: Site) -> bool | None:
    """Both behind a norm, or neither; keys that come from another layer or stack are not asked."""
    if any(score.product.function == MULTIHEAD for score in site.part.scores):
        return False
    normed = [is_normed(g) for g in (site.traits.query_growth, site.traits.key_growth)]
    if site.traits.memory or site.traits.other_layers:
        return normed[0]
    return normed[0] if normed[0] == normed[1] else None


def _gated(site: Site) -> bool | None:
    """By formula; else by powers: a product of two smooth halves grows with the square and is even near zero."""
    powers = site.traits.powers
    if site.traits.gated is not None or powers is None:
        return site.traits.gated
    if abs(powers.small - 2) < 0.1 and powers.parity > 0.8:
        return True
    return None


def _agree_on_the_last(branches: dict[Site, Branch]) -> None:
    """The norm on the last sum, and on that of a stage, may lie outside the blocks; then it is what all others have."""
    unknown = [site for site, branch in branches.items() if branch.outside_norm is None]
    rest = {branch.outside_norm for branch in branches.values()} - {None}
    last = max((site.place for site in branches), default=0)
    kinds = {branch.norm_kind for branch in branches.values()} - {None}
    if len(rest) == 1 and all(site.place == last or site.place + 1 in site.chain.stages for site in unknown):
        for site in unknown:
            object.__setattr__(branches[site], "outside_norm", next(iter(rest)))
            if len(kinds) == 1 and next(iter(rest)):
                object.__setattr__(branches[site], "norm_kind", next(iter(kinds)))


def _blocks(experiment: Experiment, chain: Chain, branches: dict[Site, Branch]) -> tuple[Block, ...]:
    by_place: dict[int, list[Branch]] = {}
    for site, branch in branches.items():
        by_place.setdefault(site.place, []).append(branch)
    blocks: list[Block] = []
    for places in _grouped(chain, by_place):
        module = block_module(experiment.graph, chain, places[-1])
        own = tuple(branch for place in places for branch in by_place[place])
        blocks.append(Block(len(blocks), None if module is None else module[0], own))
    return tuple(blocks)


def _grouped(chain: Chain, by_place: dict[int, list[Branch]]) -> list[list[int]]:
    """Blocks as modules have them; where every sum has a module of its own, from one mixing sum to the next."""
    groups = chain.blocks
    mixes = [any(branch.mixes for branch in by_place[place]) for place in range(len(chain.sums))]
    if any(len(group) > 1 for group in groups) or all(mixes) or not mixes[0]:
        return groups
    pairs: list[list[int]] = []
    for place, mixing in enumerate(mixes):
        if mixing:
            pairs.append([])
        pairs[-1].append(place)
    return pairs if len({len(pair) for pair in pairs}) == 1 else groups


def _reasons(chain: Chain, blocks: Sequence[Block], has_stream: bool) -> list[str]:
    if not has_stream:
        return ["which axis of its stream is the batch could not be found out"]
    reasons = []
    few = any("too few" in reason for block in blocks for b in block.branches for reason in b.not_read)
    if not chain.proven and not few:
        reasons.append(
            "which axes of its stream are tokens and features is not proven: no branch keeps tokens apart"
        )
    for block in blocks:
        for branch in block.branches:
            reasons += [f"block {block.index}, {branch.module}: {reason}" for reason in branch.not_read]
        if not any(branch.mixes or branch.sees is None for branch in block.branches):
            reasons.append(f"block {block.index} mixes no tokens")
    counts = [block.steps for block in blocks]
    if len(set(counts)) > 1:
        reasons.append(f"its blocks have different numbers of residual sums: {', '.join(map(str, counts))}")
    if any(norm_position(branch) is None for block in blocks for branch in block.branches):
        reasons.append("where the norms of some branches stand has no name: " + _unnamed(blocks))
    return reasons


def _mixes_by(experiment: Experiment, sites: Sequence[Site]) -> str:
    """The convolutions and pools among the operations of some branches, as text."""
    functions = {experiment.graph[index].function for site in sites for index in site.part.inside}
    listed = sorted(name for name in functions if "conv" in name or "pool" in name)
    return f"; it mixes them by {', '.join(listed)}, as a convolutional net does" if listed else ""


def _unnamed(blocks: Sequence[Block]) -> str:
    for block in blocks:
        for b in block.branches:
            if norm_position(b) is None:
                places = zip(
                    ("input", "output", "sum"), (b.input_norm, b.output_norm, b.outside_norm), strict=True
                )
                words = {True: "normed", False: "not normed", None: "unknown"}
                return f"{b.module} has " + ", ".join(f"its {name} {words[value]}" for name, value in places)
    return ""


def _notes(blocks: Sequence[Block]) -> list[str]:
    """Branches that differ from most in the place of their norms."""
    branches = [branch for block in blocks for branch in block.branches]
    places = [norm_position(branch) for branch in branches]
    usual = max(set(places), key=places.count)
    return [
        f"{branch.module}: norm {place}, where most branches are {usual}"
        for branch, place in zip(branches, places, strict=True)
        if place != usual and place is not None
    ]


def look_at_tokens(experiment: Experiment) -> None:
    """Find what every branch weighs and which tokens it depends on."""
    if experiment.sites:
        read_shares(experiment)
        read_sight(experiment)


def look_inside(experiment: Experiment) -> None:
    """Find what branches do with the tokens they see; skipped if that could not be told of any."""
    if not any(site.traits.sight is not None and site.chain.proven for site in experiment.sites):
        return
    scores, hidden = Scores(experiment), Hidden(experiment)
    read_norms(experiment, scores.plain(), hidden.edits(large=False))
    hidden.compare()
    read_equal_tokens(experiment)
    read_filled_order(experiment)
    experiment.forced(1, lambda s: s.base, None, **merged(scores.strong(), hidden.edits(large=True)))
    hidden.compare()
    scores.conclude()
    hidden.conclude()
    read_gains(experiment)


DRAWS = 32  # tokens that value and output matrices are shown; narrow heads scatter


def stack_again(experiment: Experiment, stack: Stack, blocks: Sequence[Block]) -> Stack:
    """The stack with these blocks, whose numbers are read again."""
    number = next((i for i, chain in enumerate(experiment.chains) if chain.name == stack.name), None)
    sites = [site for site in experiment.sites if site.stack == number]
    branches = [branch for block in blocks for branch in block.branches]
    if number is None or len(sites) != len(branches):
        raise BadInput(
            f"{stack.name} has {len(sites)} branches in a model of another size where {len(branches)} were expected. "
            "Build the model and describe that."
        )
    read_shares(experiment)
    for site, branch in zip(sites, branches, strict=True):
        _recall(site, branch)
    read_gains(experiment, DRAWS)
    start = experiment.streams.get(experiment.graph[experiment.chains[number].sums[0].point].operation)
    if start is None:
        raise BadInput(
            f"which axis of {stack.name} is the batch could not be found out in a model of another size."
        )
    fresh = iter([_renewed(experiment, site, branch) for site, branch in zip(sites, branches, strict=True)])
    return replace(
        stack,
        width=start.true.shape[-1],
        tokens=start.length,
        start_norm=float(start.entry.pow(2).mean()),
        blocks=_refilled(blocks, fresh),
    )


def windows_again(experiment: Experiment, stack: Stack) -> Stack:
    """The stack with the windows of this model."""
    look_at_tokens(experiment)
    sights = [site.traits.sight for site in experiment.sites if site.chain.name == stack.name]
    if len(sights) != len(stack.branches):
        raise BadInput(
            f"{stack.name} has other branches in a model with longer windows. Build the model instead."
        )
    pairs = zip(stack.branches, sights, strict=True)
    fresh = iter([replace(b, window=sight.window if sight and b.softmax else None) for b, sight in pairs])
    return replace(stack, blocks=_refilled(stack.blocks, fresh))


def _refilled(blocks: Sequence[Block], branches: Iterator[Branch]) -> tuple[Block, ...]:
    return tuple(replace(block, branches=tuple(next(branches) for _ in block.branches)) for block in blocks)


def _recall(site: Site, branch: Branch) -> None:
    """Return what the gains need to know of a branch."""
    traits = site.traits
    traits.sight = (
        None if branch.sees is None else Sight(branch.sees, branch.window, branch.window_both_sides)
    )
    traits.memory, traits.activation, traits.gated = branch.memory, branch.activation, branch.gated
    traits.output_growth = None if branch.output_norm is None else float(not branch.output_norm)


def _renewed(experiment: Experiment, site: Site, branch: Branch) -> Branch:
    scale, vector = branch_scale(experiment.graph, site)
    return replace(
        branch,
        silent=site.traits.silent,
        skip=site.traits.skip,
        share=site.traits.share,
        multiplier=scale,
        layer_scale=vector,
        rescale=rescale(experiment.graph, site),
        gains=site.traits.gains,
    )
