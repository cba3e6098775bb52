"""A stack whose structure was read in a model of other sizes: its numbers in this one, in five passes; its windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgewise.errors import BadInput
from edgewise.models.behavior.branches import look_at_tokens
from edgewise.models.behavior.gains import read_gains
from edgewise.models.behavior.interventions import Experiment, Site
from edgewise.models.behavior.record import Block, Branch, Stack
from edgewise.models.behavior.shares import branch_scale, read_shares, rescale
from edgewise.models.behavior.visibility import Sight

DRAWS = 32  # tokens that value and output matrices are shown; narrow heads scatter


def stack_again(experiment: Experiment, stack: Stack, blocks: Sequence[Block]) -> Stack:
    """The stack with these blocks, whose numbers are read anew."""
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
    fresh = iter([_branch(experiment, site, branch) for site, branch in zip(sites, branches, strict=True)])
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
    """What the gains need to know of a branch."""
    traits = site.traits
    traits.sight = (
        None if branch.sees is None else Sight(branch.sees, branch.window, branch.window_both_sides)
    )
    traits.memory, traits.activation, traits.gated = branch.memory, branch.activation, branch.gated
    traits.output_growth = None if branch.output_norm is None else float(not branch.output_norm)


def _branch(experiment: Experiment, site: Site, branch: Branch) -> Branch:
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
