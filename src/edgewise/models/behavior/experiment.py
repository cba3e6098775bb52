"""Passes in which every branch reads an edited copy of its own true input, all branches at once.

The value at every point of the stream is replaced, so that errors do not travel and the cost does not grow with
depth. All entries of a batch are copies of one input; an edit may differ from entry to entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from edgewise.arrays import in_double
from edgewise.interrupts import check
from edgewise.models.behavior.batch import Feed
from edgewise.models.behavior.graph import Graph, address, parameters_by_storage
from edgewise.models.behavior.layout import Layout, layouts
from edgewise.models.behavior.record import Gains, Operation, Powers
from edgewise.models.behavior.residuals import Part, ResidualSum
from edgewise.models.behavior.score_operands import TokenPlaces
from edgewise.models.behavior.stacks import Chain
from edgewise.models.behavior.trace import INPUT, Finished, Tracer
from edgewise.models.behavior.visibility import Sight
from edgewise.models.behavior.weight_calls import Edits, Precision
from edgewise.models.inputs import Call, change
from edgewise.models.readable import words
from edgewise.models.state import is_sharded

NOISE_SEED = 7
TRACE_ENTRIES, VALUE_ENTRIES = 2, 3  # different, so that the axis which grows is the batch


class EditedPassError(Exception):
    """The model ran as it is and does not run with its stream edited, or on more entries."""


Rows = list[tuple[int, set[int]]]


@dataclass
class Traits:
    """None where not measured yet, or not measurable."""

    skip: float | None = None
    share: float | None = None
    silent: bool = False
    gate_size: float | None = None  # root mean square of a gate that is made without the stream
    length: int = 0  # tokens of its stream
    rows: Rows | None = None
    faint: dict[int, set[int]] = field(default_factory=dict)  # by query, positions with a small gradient
    columns: Rows | None = None
    open: Tensor | None = None  # (query, key): not masked, by the scores themselves
    layout: Layout | None = None  # of the branch, if it differs from the stream's
    sight: Sight | None = None
    memory: bool = False
    other_layers: bool = False
    coupled: bool = False  # entries of the batch are not independent
    quiet: Tensor | None = None  # output at the base input with small queries and keys
    base: Tensor | None = None  # output at the base input
    order: float | None = None
    quiet_order: float | None = (
        None  # with scores near zero; relative to changing one of the two tokens exchanged
    )
    spread: float | None = None  # of the output over positions when all tokens are equal
    whole: bool | None = None  # the weights of attention sum to one; None if they were not seen
    linear: bool | None = None
    input_growth: float | None = None
    output_growth: float | None = None
    outside_growth: float | None = None
    norm_kind: str | None = None
    norm_slope: float | None = None  # inside a tanh or erf in the place of a norm
    middle_norm: bool = False  # between the activation of an MLP and its last matrix
    query_growth: float | None = None
    key_growth: float | None = None
    places: TokenPlaces = field(default_factory=TokenPlaces)  # among queries, keys and scores
    axes: dict[Operation, tuple[str | None, str | None]] = field(default_factory=dict)  # of a product's
    scales: dict[Operation, float] = field(default_factory=dict)  # that a fused call multiplies them by
    rotary: str | None = None  # "rotary", "query or key", "" or None if the operands were not found
    bias: str | None = None  # "alibi", "bias", "" or None if the scores were not found
    bias_size: float | None = None  # standard deviation of that bias over the keys of a query
    heads: int | None = None
    kv_heads: int | None = None
    head_width: int | None = None
    activation: str | None = None
    gated: bool | None = None
    hidden_width: int | None = None
    gate: int | None = None  # which of two first matrices, or of two halves of one, is inside the activation
    fused: dict[str, tuple[int, int, int, int]] = field(
        default_factory=dict
    )  # rows of queries, keys and values
    powers: Powers | None = None
    gains: Gains | None = None
    reasons: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Site:
    """One branch of one stack, and what the passes have shown of it."""

    chain: Chain
    stack: int
    place: int  # of its sum in the chain
    residual: ResidualSum
    part: Part
    point: Operation
    source: Operation
    total: Operation
    traits: Traits = field(default_factory=Traits)


@dataclass
class Stream:
    """The value of one entry of the stream at one point."""

    layout: Layout
    entry: Tensor
    noisy: Tensor  # of mean square one, and no two tokens alike
    stack: int

    @property
    def true(self) -> Tensor:
        """(1, tokens, features)"""
        return self.layout.tokens(self.entry, 1)

    @property
    def base(self) -> Tensor:
        """(1, tokens, features): what the tests start from."""
        return self.layout.tokens(self.noisy, 1)

    @property
    def length(self) -> int:
        return self.true.shape[1]


Make = Callable[[Stream], Tensor]  # (entries or 1, tokens, features) from a stream
See = Callable[[Site, Tensor], None]


class Experiment:
    """A model, an input, its graph, and the edited passes on it."""

    def __init__(
        self, model: nn.Module, feed: Feed, graph: Graph, listed: list[Chain], precision: Precision
    ) -> None:
        self.model, self.feed, self.graph, self.chains = model, feed, graph, listed
        self.precision = precision
        self.passes, self.fill_zeros = 0, False
        self.parameters = parameters_by_storage(model)
        # A gradient that leaves a sharded block makes it let go of its weights, in the middle of its forward pass.
        self.differentiable = not any(is_sharded(module) for module in model.modules())
        self._must_return = not self.differentiable or any(
            _waits_for_its_return(module) for module in model.modules()
        )
        at = lambda index: graph[index].operation  # noqa: E731
        self.sites = [
            Site(chain, stack, place, r, part, at(r.point), at(r.source), at(r.node))
            for stack, chain in enumerate(listed)
            for place, r in enumerate(chain.sums)
            for part in r.parts
        ]
        self.streams: dict[Operation, Stream] = {}
        self.points = {op for site in self.sites for op in (site.point, site.source)}
        self.totals = {site.total for site in self.sites}
        self.ends = {graph[chain.sums[-1].node].operation for chain in listed} - self.points
        self._shapes = {
            graph[i].operation: (graph[i].shape, stack)
            for stack, c in enumerate(listed)
            for r in c.sums
            for i in (r.point, r.source, r.node)
        }

    def weights(self, kind: str) -> frozenset[Operation]:
        """The first, last or all weights of all branches."""
        return frozenset(operation for site in self.sites for operation in getattr(site.part, kind))

    def run(self, entries: int, edits: Edits, *, gradients: bool = False) -> Graph:
        """One pass on so many copies of the input; a pass with gradients is counted with its backward pass."""
        edits = replace(edits.with_updates(self.graph.updates), fill_zeros=self.fill_zeros, unrounded=True)
        edits = replace(edits, last=self._last(edits))
        self.passes += 3 if gradients else 1
        try:
            with torch.set_grad_enabled(gradients):
                graph = run(self.model, self.feed.entries(entries), edits, self.precision)
        except Exception as error:
            check()
            raise EditedPassError(words(error, 200)) from error
        check()
        return graph

    def _last(self, edits: Edits) -> Operation | None:
        """Return what comes after it (a head for every word of a vocabulary) need not run.

        None if it must: sharded and offloaded modules, and hooks of the user's, may undo something on the way out.
        """
        if self._must_return:
            return None
        order = self.graph.by_operation
        asked = set(edits.operations())
        return max(asked, key=order.__getitem__) if asked and asked <= order.keys() else None

    def values(self, see_skip: Callable[[Site, Tensor, Tensor | None], None], see_branch: See) -> None:
        """A plain pass: the true streams; `see_skip` is handed the skip and the stream it comes from."""
        raw: dict[Operation, Tensor] = {}

        def keep(operation: Operation) -> Callable[[Tensor], Tensor]:
            def edit(value: Tensor) -> Tensor:
                raw[operation] = value.detach().clone()
                return value

            return edit

        results = {op: keep(op) for op in self.points | self.ends if op.function != INPUT}
        batch = self.feed.tensors(VALUE_ENTRIES)
        raw |= {op: batch[op.number] for op in self.points if op.function == INPUT}

        def see_layout(site: Site, branch: Tensor) -> None:
            shapes = self.graph[site.part.tip].shape, tuple(branch.shape)
            site.traits.layout = next(iter(layouts(*shapes, TRACE_ENTRIES, VALUE_ENTRIES)), None)
            see_branch(site, branch)

        observers = self.observers(see_layout, lambda site, skip: see_skip(site, skip, raw.get(site.point)))
        self.run(VALUE_ENTRIES, Edits(results=results, sums=observers, calls=self._gates()))
        for operation in sorted(raw):
            self._add_stream(operation, raw[operation])

    def _gates(self) -> dict[Operation, Callable[..., None]]:
        """Looks that keep the size of every gate on a branch that is made without the stream."""

        def look(sites: list[Site], side: int) -> Callable[..., None]:
            def keep(args: Any, _: Any) -> None:
                for site in sites:
                    site.traits.gate_size = float(in_double(args[side].detach()).pow(2).mean().sqrt())

            return keep

        by_gate: dict[tuple[Operation, int], list[Site]] = {}
        for site in self.sites:
            if site.part.gate is not None:
                by_gate.setdefault(site.part.gate, []).append(site)
        return {product: look(sites, side) for (product, side), sites in by_gate.items()}

    def _add_stream(self, operation: Operation, value: Tensor) -> None:
        shape, stack = self._shapes[operation]
        candidates = layouts(shape, tuple(value.shape), TRACE_ENTRIES, VALUE_ENTRIES)
        if not candidates or not value.is_floating_point():
            return
        axis = candidates[0].batch
        entry = value.narrow(axis, 0, value.shape[axis] // VALUE_ENTRIES).contiguous()
        entry = entry.float() if entry.dtype != torch.float64 else entry
        generator = torch.Generator().manual_seed(NOISE_SEED + len(self.streams))
        noise = torch.randn(entry.shape, generator=generator, dtype=entry.dtype).to(entry.device)
        self.streams[operation] = Stream(candidates[0], entry, unit(unit(entry) + noise), stack)

    def change_layout(self, stack: int) -> bool:
        """Read the streams of a stack with features along axis 1 (channels first); False if there is none."""
        streams = [stream for stream in self.streams.values() if stream.stack == stack]
        if not streams or any(s.layout.rank < 3 or s.layout.batch == 1 for s in streams):
            return False
        for stream in streams:
            stream.layout = Layout(stream.layout.batch, 1, stream.layout.rank)
        return True

    def forced(
        self,
        entries: int,
        make: Make,
        see: See | None = None,
        *,
        arriving: See | None = None,
        sums: Callable[[Tensor], Tensor] | None = None,
        leaves: Callable[[Operation, Tensor], Tensor] | None = None,
        observed: Mapping[Operation, Callable[[Tensor], None]] | None = None,
        **edits: Any,
    ) -> None:
        """A pass in which every point of the stream is replaced by `make`, and every branch is handed to `see`.

        arriving  is handed the value that the model itself brings to a site's point
        sums      replaces residual sums that the next branch does not read directly (a norm stands between)
        leaves    is handed every replaced value and may return another: gradients start there
        observed  operations whose results are inspected
        """
        natural = self._arrivals(arriving)

        def force(operation: Operation, how: Make) -> Callable[[Tensor], Tensor]:
            def edit(value: Tensor) -> Tensor:
                natural.get(operation, _ignore)(value)
                stream = self.streams.get(operation)
                if stream is None:
                    return value
                tokens = how(stream)
                stand_in = stream.layout.stream(tokens.expand(entries, -1, -1), value.shape).to(value.dtype)
                return stand_in if leaves is None else leaves(operation, stand_in)

            return edit

        results = {op: force(op, lambda s: s.base) for op in self.ends}
        results |= {op: force(op, make) for op in self.points if op.function != INPUT}
        if sums is not None:
            results |= dict.fromkeys(self.totals - self.points, sums)
        results |= {op: _looking(look) for op, look in (observed or {}).items() if op not in results}
        batch = self.feed.tensors(entries)
        with torch.set_grad_enabled(leaves is not None):
            inputs = {
                op.number: force(op, make)(batch[op.number]) for op in self.points if op.function == INPUT
            }
        observers = {} if see is None else self.observers(self._by_token(see, entries))
        changes = Edits(results=results, inputs=inputs, sums=observers, **edits)
        self.run(entries, changes, gradients=leaves is not None)

    def _arrivals(self, arriving: See | None) -> Mapping[Operation, Callable[[Tensor], None]]:
        if arriving is None:
            return {}
        by_point = {site.point: site for site in reversed(self.sites)}
        return {op: lambda value, site=site: arriving(site, value) for op, site in by_point.items()}  # type: ignore[misc]

    def _by_token(self, see: See, entries: int) -> See:
        def look(site: Site, branch: Tensor) -> None:
            layout = self.layout_of(site, branch)
            known = layout is not None and site.source in self.streams
            if known and layout is not None and branch.shape[layout.batch] % entries == 0:
                see(site, layout.tokens(branch, entries))

        return look

    def layout_of(self, site: Site, branch: Tensor) -> Layout | None:
        """Return a branch's layout in memory: the stream's that it is added to, unless it is reshaped on the way."""
        for operation in (site.point, site.source):
            stream = self.streams.get(operation)
            if stream is not None and stream.layout.rank == branch.dim():
                return stream.layout
        return site.traits.layout

    def observers(
        self, see_branch: See, see_skip: See | None = None
    ) -> dict[Operation, Callable[[Tensor, Tensor], None]]:
        """Edits that hand the operands of every sum to whom they concern."""
        parts: dict[Operation, list[Site]] = {}
        skips: dict[Operation, list[Site]] = {}
        for site in self.sites:
            parts.setdefault(site.part.total, []).append(site)
            skips.setdefault(site.total, []).append(site)

        def observer(operation: Operation) -> Callable[[Tensor, Tensor], None]:
            def observe(one: Tensor, other: Tensor) -> None:
                for site in skips.get(operation, ()) if see_skip is not None else ():
                    see_skip(site, (one, other)[site.residual.skip_side])  # type: ignore[misc]
                for site in parts.get(operation, ()):
                    see_branch(site, (one, other)[site.part.side])

            return observe

        return {operation: observer(operation) for operation in parts.keys() | skips.keys()}


def _waits_for_its_return(module: nn.Module) -> bool:
    return hasattr(module, "_hf_hook") or bool(module._forward_hooks or module._forward_pre_hooks)


def unit(value: Tensor) -> Tensor:
    """At mean square one, so that the eps of a norm plays no part."""
    return value / (value.pow(2).mean().sqrt() + 1e-30)


def _ignore(value: Tensor) -> None: ...


def _looking(look: Callable[[Tensor], None]) -> Callable[[Tensor], Tensor]:
    def edit(value: Tensor) -> Tensor:
        look(value)
        return value

    return edit


def run(
    model: nn.Module, batch: tuple[tuple[Any, ...], dict[str, Any]], edits: Edits, precision: Precision
) -> Graph:
    """One pass of the model on copies of the batch's tensors, up to the last operation of the edits."""
    tracer = Tracer(model, edits, precision, frozenset(address(p) for p in model.parameters() if p.numel()))
    args, kwargs = _own_tensors(batch, edits, tracer)
    torch.manual_seed(0)  # a model that draws in evaluation mode draws the same in every pass
    before = register_module_forward_pre_hook(tracer.enter)
    after = register_module_forward_hook(tracer.leave, always_call=True)
    try:
        with suppress(Finished), tracer:
            model(*args, **kwargs)
    finally:
        before.remove()
        after.remove()
    return tracer.graph


def _own_tensors(batch: Call, edits: Edits, tracer: Tracer) -> Call:
    def own(place: int, value: Tensor) -> Tensor:
        tensor = edits.inputs[place] if place in edits.inputs else value.detach().clone()
        tracer.feed(place, tensor)
        return tensor

    args, kwargs = batch
    return change(args, kwargs, own)
