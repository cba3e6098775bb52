"""Absolute positions, where the stream starts; and windows, which need the full length of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from edgewise.interrupts import check
from edgewise.models.behavior.batch import Feed, feeds
from edgewise.models.behavior.compare import spread
from edgewise.models.behavior.dependence import quiet_scores, real_tokens
from edgewise.models.behavior.experiment import TRACE_ENTRIES, Experiment, Site, run
from edgewise.models.behavior.record import Operation
from edgewise.models.behavior.trace import INPUT
from edgewise.models.behavior.visibility import sight
from edgewise.models.behavior.weight_calls import Edits

DIFFERENT = 1e-5  # between positions of equal tokens where the stream starts


def absolute_positions(experiment: Experiment) -> dict[int, bool]:
    """By stack: do equal tokens differ by their position where the stream starts?

    Only the second half of the positions is compared: class and register tokens stand first.
    """
    starts = {experiment.graph[chain.sums[0].point].operation: i for i, chain in enumerate(experiment.chains)}
    differs: dict[int, bool] = {}

    def look(operation: Operation) -> Any:
        def edit(value: Tensor) -> Tensor:
            stream = experiment.streams.get(operation)
            if stream is not None and experiment.chains[stream.stack].proven:
                length = real_tokens(experiment, stream)
                tokens = stream.layout.tokens(value, TRACE_ENTRIES)[0, length // 2 : length]
                differs[starts[operation]] = spread(tokens) > DIFFERENT
            return value

        return edit

    results = {operation: look(operation) for operation in starts if operation.function != INPUT}
    if results:
        experiment.passes += 1
        batch = experiment.feed.equal_tokens().entries(TRACE_ENTRIES)
        try:
            run(experiment.model, batch, Edits(results=results), experiment.precision)
        except Exception:  # noqa: BLE001 - the model does not take such an input: not read
            differs.clear()
        check()
    return differs | {i: False for operation, i in starts.items() if operation.function == INPUT}


def read_long_windows(experiment: Experiment, batch: Any) -> int | None:
    """Windows longer than the cut: a row of every attention at the full length of the batch, which is returned."""
    if experiment.feed.axis:  # the entry of a batch whose first axis is tokens is cut already
        return None
    full = next(iter(feeds(batch, cut=False, model=experiment.model)))
    full = replace(
        full, kwargs=full.kwargs | {k: v for k, v in experiment.feed.kwargs.items() if k == "use_cache"}
    )
    wanted = {site for site in experiment.sites if _unlimited(site)} if experiment.differentiable else set()
    if not wanted or full.tokens is None or full.tokens <= (experiment.feed.tokens or full.tokens):
        return None
    rows: dict[Site, list[tuple[int, set[int]]]] = {}
    try:
        _full_rows(experiment, full, wanted, rows)
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError):
        check()
        return None
    for site, listed in rows.items():
        pattern = sight(listed, full.tokens)
        if pattern is not None:
            site.traits.sight = pattern
    return full.tokens


def _unlimited(site: Site) -> bool:
    pattern = site.traits.sight
    if not site.chain.language:  # the length of images does not follow that of the text
        return False
    return (
        pattern is not None
        and site.part.softmax
        and pattern.sees in ("causal", "all")
        and pattern.window is None
    )


def _full_rows(experiment: Experiment, full: Feed, wanted: set[Site], rows: dict[Site, Any]) -> None:
    """Gradients from natural values: nothing is replaced, every point of the stream only becomes a leaf."""
    leaves: dict[Operation, Tensor] = {}

    def leaf(operation: Operation) -> Callable[[Tensor], Tensor]:
        def edit(value: Tensor) -> Tensor:
            leaves[operation] = value.detach().requires_grad_()
            return leaves[operation].clone()

        return edit

    def see(site: Site, branch: Tensor) -> None:
        layout = experiment.layout_of(site, branch)
        if site in wanted and layout is not None and branch.requires_grad:
            tokens = layout.tokens(branch, 1)
            own = [op for op in leaves if experiment.streams[op].stack == site.stack]
            rows[site] = list(_rows(experiment, site, tokens, {op: leaves[op] for op in own}))

    batch = full.tensors(1)
    with torch.enable_grad():
        inputs = {op.number: leaf(op)(batch[op.number]) for op in experiment.points if op.function == INPUT}
    results = {op: leaf(op) for op in experiment.streams if op.function != INPUT}
    quiet = quiet_scores(experiment)
    edits = Edits(results=results, inputs=inputs, sums=experiment.observers(see), first_outputs=quiet)
    experiment.passes += 3
    with torch.enable_grad():
        run(
            experiment.model,
            full.entries(1),
            edits.with_updates(experiment.graph.updates),
            experiment.precision,
        )
    check()


def _rows(
    experiment: Experiment, site: Site, tokens: Tensor, leaves: dict[Operation, Tensor]
) -> Iterator[tuple[int, set[int]]]:
    """The row of one query; of a second one where the first is limited, to tell windows from blocks."""
    length = tokens.shape[1]
    causal = site.traits.sight is not None and site.traits.sight.sees == "causal"
    for query in (length - 1, length - 4) if causal else (length // 2, length // 2 + 3):
        direction = torch.zeros_like(tokens)
        direction[0, query] = torch.randn(tokens.shape[-1], generator=torch.Generator().manual_seed(2)).to(
            tokens
        )
        gradients = torch.autograd.grad(
            tokens, list(leaves.values()), direction, retain_graph=True, allow_unused=True
        )
        seen: set[int] = set()
        for operation, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                reached = experiment.streams[operation].layout.tokens(gradient, 1)[0].abs().amax(-1) > 0
                seen |= set(reached.nonzero().flatten().tolist())
        yield query, seen
        if len(seen) == (query + 1 if causal else length):
            return
