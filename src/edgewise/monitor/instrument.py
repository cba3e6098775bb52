"""One sampled step, from hooks to numbers: buffers are read once, for all layers together, and reach the host once.

Activations, gradients and attention are read as the optimizer's step begins, updates as it ends. Of several processes,
all make one packed collective for a stored row: means are averaged, maxima are the largest, sums of squares of sharded
matrices are added; what one finds wrong in its own batch, and how long it would wait, travel with the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.hooks import RemovableHandle

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.models.behavior.record import Operation
from edgewise.models.state import preserved
from edgewise.monitor.attention import AttentionGroup, judged, shape_of
from edgewise.monitor.capture import (
    SEQUENCES,
    TOKENS,
    Call,
    LossCopy,
    LossRing,
    Sizes,
    StreamCopy,
    apart,
    keys_within,
)
from edgewise.monitor.columns import HEAD_STATISTICS, StatisticLayout, StepSample
from edgewise.monitor.hooks import Switch, guarded, guarded_beside
from edgewise.monitor.matrices import Matrices, loose, spectral_entropy
from edgewise.monitor.operations import AttentionOperations, OperationAttention, OperationCapture
from edgewise.monitor.places import AttentionPlace, Places
from edgewise.optim.parallel import by_name, whole


class Processes:
    """The processes of a run; with a group of None there is one."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    def gather(self, values: Tensor) -> Tensor:
        """(processes, n) from (n,) of each."""
        if self.group is None:
            return values[None]
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        return torch.stack(parts)


Rule = Callable[[Tensor], Tensor]  # (processes, n) to (n,)


def mean(each: Tensor) -> Tensor:
    return each.mean(0)


def largest(each: Tensor) -> Tensor:
    return each.amax(0)


def total(each: Tensor) -> Tensor:
    return each.sum(0)


def joined(each: Tensor, sizes: Sequence[int], rules: Sequence[Rule]) -> Tensor:
    """One row (n,) of the rows (processes, n), part by part."""
    return torch.cat([rule(part) for rule, part in zip(rules, each.split(list(sizes), 1), strict=True)])


@dataclass(frozen=True)
class Edge:
    """The largest rate that learned in a rehearsal, and what a step did there."""

    rate: float
    step_change: float
    separation: float | None

    def against(self, change: float, separation: float) -> dict[str, float]:
        """A step's change of the stream and the separation of its tokens, against those at the edge, by column."""
        apart = separation / self.separation if self.separation else math.nan
        return {"stream_change_of_edge": change / self.step_change, "separation_of_edge": apart}

    def json(self) -> dict[str, Any]:
        return asdict(self)


def edge_of(rate: Any) -> Edge | None:
    """The edge of what `edgewise.learning_rate` returned."""
    if rate is None:
        return None
    if not hasattr(rate, "at_edge"):
        raise BadInput(f"rate takes what edgewise.learning_rate returned, got {type(rate).__name__}.")
    edge = rate.at_edge
    if edge is None or not edge.step_change:
        raise BadInput("no rate learned in this rehearsal, so it has no edge to compare the training with.")
    return Edge(float(edge.rate), float(edge.step_change), edge.separation)


class StreamChange:
    """The stream behind the last block before and after a step, in passes of our own without gradients."""

    def __init__(self, model: nn.Module, block: str) -> None:
        self.model, self.block = model, block
        self._call: Call | None = None
        self._before: Tensor | None = None
        self._seen: Tensor | None = None

    def before(self, call: Call | None) -> None:
        """Measure the stream with the weights that the step begins with."""
        self._call = call
        self._before = None if call is None else self._look(call)

    def after(self) -> Tensor:
        """The change that the step made, on the device; not a number if there was no look before it."""
        if self._call is None or self._before is None:
            return torch.tensor(math.nan, device=next(self.model.parameters()).device)
        old, new = self._before, self._look(self._call)
        self._call = self._before = None
        return torch.linalg.vector_norm(new - old) / torch.linalg.vector_norm(old)

    def _look(self, call: Call) -> Tensor:
        inputs, named = call
        with preserved(self.model, gradients=True) as stack, torch.no_grad():
            hook = self.model.get_submodule(self.block).register_forward_hook(self._catch)
            stack.callback(hook.remove)
            self.model(*inputs, **named)
        seen, self._seen = self._seen, None
        assert seen is not None
        return seen

    def _catch(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        stream = output[0] if isinstance(output, (tuple, list)) else output
        self._seen = stream.detach().float().clone()


SLOW = 10  # stored rows between two on the slow clock
SPECTRUM = 3 * SLOW  # and between two at which the change of one block's logits is taken apart
CHECKED = 10 * SLOW  # and between two at which the referee looks, after its first five looks
LOOKS = 3  # rows in a row that the referee may miss before they are left out under dropout
HOST = ("cpu",)  # devices whose numbers can be read without waiting for them
LOUD = 100.0  # times the mean square of what enters a block
FEW = 1e-30  # below every activation that matters: keeps logarithms finite


def checked(stored: int) -> bool:
    """Return whether the referee inspects the row that so many are stored before."""
    return stored % (SLOW if stored < 5 * SLOW else CHECKED) == 0


class Instrument:
    """Hooks on a model and the batched computation behind them."""

    def __init__(self, places: Places, switch: Switch, loss: nn.Module | None) -> None:
        self.places, self.switch = places, switch
        self.device = next(places.model.parameters()).device
        self.sizes = Sizes(self.device)
        self.matrices = Matrices(places) if places.depth or loose(places.model) else None
        self.handles: list[RemovableHandle] = []
        count = places.depth + 1 if places.depth else 0
        self._scalars = torch.full((1 + count,), math.nan, device=self.device)  # cleared in one call
        self.loss, self.gradients = self._scalars[0], self._scalars[1:]
        self._absent = torch.full((1,), math.nan, device=self.device)
        target = places.model if loss is None else loss
        self.on_host = self.device.type in HOST  # if it costs nothing to check the loss of every step
        self.loss_copy = LossCopy(self.loss)
        self.ring = None if self.on_host else LossRing(self.device)
        self.handles.append(target.register_forward_hook(guarded_beside(switch, self.loss_copy.leave)))
        self.capture: OperationCapture | None = None  # for what modules do not give away
        self._capturing = False
        self._attach_streams()
        self.groups: list[AttentionGroup | OperationAttention] = [
            *self._attach_attention(),
            *self._attach_operations(places.by_operation),
        ]
        self._blocks = [[place.block for place in group.layers] for group in self.groups]
        self._most_heads = max([*places.heads, 0])
        self._sheet = StatisticLayout(places.depth)
        # rows, and how many of the last that the referee inspected and rejected in part
        self.samples = self._missed = 0
        self._activations: list[Tensor] = []
        self._shapes: list[torch.Size] = []  # of the parts of a row
        self._spans: list[tuple[slice, torch.Size]] = []  # and where they stand in it
        self._turn: tuple[AttentionPlace, Tensor, Tensor] | None = None
        self.change: StreamChange | None = None  # where a rehearsal was given
        # how much of what enters each block leaves it, of the first row; 1 with a skip
        self.skips: list[float] = []
        self.audit: tuple[float, float] = (math.nan, math.nan)  # of the last audited row

    def _attach_streams(self) -> None:
        p, find = self.places, self.places.model.get_submodule
        count = len(self.gradients)
        self.streams = torch.full((count, SEQUENCES, TOKENS, p.width), math.nan, device=self.device)
        # one that is not a number makes all of its site's none
        self._first_entries = self.streams.flatten(1)[:, :1]
        if not p.depth:
            return
        sizes = [self.sizes, *[self.sizes if p.streams else None] * p.depth]  # how long the sequences are
        copies = [
            StreamCopy(
                self.switch,
                self.streams[i],
                apart(self.gradients[i]),
                sizes[i],
                p.sequence_first,
                i == p.depth,
            )
            for i in range(count)
        ]
        if p.streams:
            by_operation: dict[Operation, list[StreamCopy]] = {}
            for operation, copy in zip(p.streams, copies, strict=True):
                copy.window.batch_first = True
                by_operation.setdefault(operation, []).append(copy)
            self.capture = OperationCapture(p.model, self.switch, self.sizes, by_operation, p.axes)
            return
        enter = guarded(self.switch, copies[0].enter)
        self.handles.append(find(p.blocks[0].name).register_forward_pre_hook(enter, with_kwargs=True))
        pairs = [(find(block.name), each) for block, each in zip(p.blocks, copies[1:], strict=True)]
        self.handles += [
            block.register_forward_hook(guarded(self.switch, each.leave)) for block, each in pairs
        ]

    def _attach_operations(self, layers: Sequence[AttentionOperations]) -> list[OperationAttention]:
        """Groups of attentions that are seen where they are computed, one for each number of heads."""
        if self.capture is None and layers:
            self.capture = OperationCapture(self.places.model, self.switch, self.sizes, {}, ())
        if self.capture is None:
            return []
        if not self._capturing:
            self._capturing = True
            self.handles += self.capture.attach()
        self.capture.add(layers)
        by_heads: dict[int, list[AttentionOperations]] = {}
        for layer in layers:
            by_heads.setdefault(layer.heads, []).append(layer)
        return [OperationAttention(each) for each in by_heads.values()]

    def _attach_attention(self) -> list[AttentionGroup]:
        by_shape: dict[tuple[Any, ...], list[AttentionPlace]] = {}
        for place in self.places.attentions:
            by_shape.setdefault(shape_of(place), []).append(place)
        widths = sum(p.fan_out for place in self.places.attentions for p in place.projections)
        keys = keys_within(self.places.model, widths)
        groups = [
            AttentionGroup(
                self.places.model, layers, self.switch, self.sizes, keys, self.places.sequence_first
            )
            for layers in by_shape.values()
        ]
        for group in groups:
            self.handles += group.handles
        return groups

    @property
    def reached(self) -> bool:
        """Return whether the hooks of the blocks saw a pass since `clear`."""
        return self.sizes.read()[2] > 0

    @property
    def doubts(self) -> bool:
        """Tell if the referee looks again: dropout makes noise, and one row may by chance have too much or little."""
        return self._missed < LOOKS and any(group.noisy and any(group.refusals) for group in self.groups)

    def detach(self) -> None:
        """Take every hook off."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.switch.deferred.forget()

    def clear(self) -> None:
        """Before a step that will be sampled: what it does not fill must not look like numbers."""
        self.sizes.clear()
        self.switch.deferred.forget()
        self.loss_copy.heard = False
        self._scalars.fill_(math.nan)
        self._first_entries.fill_(math.nan)
        for group in self.groups:
            group.clear(self.switch.check)

    @torch.no_grad()
    def before_step(self, *, check: bool, spectrum: bool, scale: float, call: Call | None = None) -> None:
        """Read the pass, while the weights are still those it was made with.

        check: let the referee compare attention; spectrum: also what changes the logits of one block; call: what the
        model was called with.
        """
        self.switch.deferred.settle()
        sequences, tokens, length = self.sizes.read()
        x = self.streams[:, :sequences, :tokens]
        gradients = self.gradients if scale == 1.0 else self.gradients / scale
        if not self.skips and tokens:
            before, after = x[:-1].flatten(1), x[1:].flatten(1)
            square, grown = before.square().sum(1), after.square().sum(1)
            told = (square > FEW) & (grown < LOUD * square)  # beside a loud branch a skip is not seen
            self.skips = ((before * after).sum(1) / square).where(told, math.nan).tolist()
        parts = [self.loss[None], gradients, *(_geometry(x) if tokens > 1 else _nothing(len(x), x))]
        parts += [self._attention(group, sequences, length, check, call) for group in self.groups]
        self._activations = parts
        if check:
            self._missed = self._missed + 1 if any(any(group.refusals) for group in self.groups) else 0
        if self.matrices is not None:
            self.matrices.before(self.samples)
        self._turn = self._remember() if spectrum and self.places.attentions else None

    def _attention(
        self,
        group: AttentionGroup | OperationAttention,
        sequences: int,
        length: int,
        check: bool,
        call: Call | None,
    ) -> Tensor:
        if length < 2:
            return torch.full(self._shape(group), math.nan, device=self.device)
        if isinstance(group, OperationAttention):
            return group.numbers(self.device)
        group.gather()
        rows = judged(group, sequences, length, self.dtype, check, call)
        refused = [i for i, reason in enumerate(group.refusals) if reason]
        nothing = torch.full(self._shape(group), math.nan, device=self.device)
        values = group.statistics(rows) if len(refused) < len(group.layers) else nothing
        group.release()
        if refused:
            values[refused] = math.nan
        return values

    def look_inside(self) -> bool:
        """See attentions that cannot be rebuilt where they are computed, from the next pass on; whether any is new.

        Compiled code cannot be looked into: there the reason stays.
        """
        known = {layer.block for layer in self.places.by_operation}
        refused = [
            AttentionOperations(place.block, place.heads, room=place.name)
            for group in self.groups
            if isinstance(group, AttentionGroup)
            for place, reason, masks in zip(group.layers, group.refusals, group.masks, strict=True)
            if reason and not masks.traced and place.block not in known
        ]
        if refused:
            self.places.by_operation += refused
            self.groups += self._attach_operations(refused)
            self._blocks = [[place.block for place in group.layers] for group in self.groups]
        return bool(refused)

    @property
    def dtype(self) -> torch.dtype:
        """Choose the type in which the matrices multiply, by the range of what they are given."""
        kinds = (torch.float16, torch.bfloat16)
        return next((k for k in kinds if torch.finfo(k).max == self.switch.limit), torch.float32)

    def _remember(self) -> tuple[AttentionPlace, Tensor, Tensor]:
        place = self.places.attentions[(self.samples // SPECTRUM) % len(self.places.attentions)]
        query, key = self._query_key(place)
        return place, query.clone(), key.clone()

    def _query_key(self, place: AttentionPlace) -> tuple[Tensor, Tensor]:
        """W_Q and W_K as they are now, (heads, d_h, d) both."""
        logits = place.query_key
        stored = {name: whole(p) for name, p in by_name(self.places.model, logits.parameters).items()}
        query, key = (side.read(stored)[..., :-1] for side in (logits.query, logits.key))
        return query, key.repeat_interleave(logits.share, 0)

    @torch.no_grad()
    def after_step(
        self, join: Callable[[Tensor, list[int]], Tensor] | None = None, audited: bool = False
    ) -> StepSample:
        """Add what the step changed, and bring everything to the host at once.

        join: what makes one row of the rows of several processes; audited: whether `audit` is wanted.
        """
        squares = (
            self.matrices.after() if self.matrices is not None else torch.zeros(3, 1, device=self.device)
        )
        self.audit = (math.nan, math.nan)
        if audited and self.matrices is not None and not self.matrices.sharded:
            lost, uphill = self.matrices.audit().tolist()
            self.audit = lost, uphill
        change = self._absent if self.change is None else self.change.after()[None]
        parts = [*self._activations, squares, self._spectrum(), change]
        flat, shapes = torch.cat([part.reshape(-1) for part in parts]), [part.shape for part in parts]
        if shapes != self._shapes:
            sizes = [shape.numel() for shape in shapes]
            spans = [slice(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]
            self._shapes, self._spans = shapes, list(zip(spans, shapes, strict=True))
        if join is not None:
            flat = join(flat, [shape.numel() for shape in shapes])
        host = flat.cpu().numpy().astype(np.float64)
        numbers = [host[span].reshape(shape) for span, shape in self._spans]
        self.samples += 1
        self._activations = []
        return self._sample(numbers)

    def rules(self) -> list[Rule]:
        """Say how each part of a row is joined over processes; matrices that are not sharded are alike in all."""
        sharded = self.matrices is not None and self.matrices.sharded
        heads: list[Rule] = [partial(_heads_joined, shape=self._shape(group)) for group in self.groups]
        return [mean, mean, mean, mean, largest, *heads, total if sharded else mean, mean, mean]

    def _shape(self, group: AttentionGroup | OperationAttention) -> tuple[int, int, int]:
        return len(group.layers), len(HEAD_STATISTICS), group.first.heads

    def _spectrum(self) -> Tensor:
        if self._turn is None:
            return self._absent
        place, query, key = self._turn
        return spectral_entropy(query, key, *self._query_key(place)).float().mean()[None]

    def _sample(self, numbers: list[Array]) -> StepSample:
        loss, gradient, norm, separation, largest, *attention, squares, spectrum, change = numbers
        depth, mixed = self.places.depth, self.matrices.mixed if self.matrices is not None else set()
        turn = np.full(depth, np.nan)
        if self._turn is not None:
            turn[self._turn[0].block] = float(spectrum[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            heads = self._heads(attention)
            squares, total = (
                (squares, squares.sum(1)) if self.matrices is None else self.matrices.grouped(squares)
            )
            site = self._sheet.sites(norm, separation, largest, gradient, self.switch.limit)
            run, block = self._sheet.blocks(squares, total, heads, mixed)
        run |= {"loss": float(loss[0]), "stream_change": float(change[0])}
        return StepSample(run, site, block, heads, turn)

    def _heads(self, attention: list[Array]) -> Array:
        """(blocks, statistics, H) of all groups; not-a-number where a block has fewer heads than others, or none."""
        if self._blocks == [list(range(self.places.depth))]:
            return attention[0]
        heads = np.full((self.places.depth, len(HEAD_STATISTICS), self._most_heads), np.nan)
        for blocks, values in zip(self._blocks, attention, strict=True):
            heads[blocks, :, : values.shape[2]] = values
        return heads


def _heads_joined(each: Tensor, shape: tuple[int, int, int]) -> Tensor:
    parts = each.unflatten(1, shape)
    logit = HEAD_STATISTICS.index("largest_logit")
    values = parts.mean(0)
    values[:, logit] = parts[:, :, logit].amax(0)
    return values.flatten()


def _geometry(x: Tensor) -> list[Tensor]:
    """Mean square, separation and largest entry of streams (sites, sequences, tokens, width), each (sites,)."""
    length = torch.linalg.vector_norm(x, dim=-1)
    unit = x / length.clamp_min(FEW)[..., None]
    apart = torch.linalg.vector_norm(unit.sub_(unit.mean(2, keepdim=True)), dim=(-1, -2)).square_()
    norm = length.square_().mean((1, 2)).div_(x.shape[-1])
    return [norm, apart.div_(x.shape[2] - 1).mean(1), x.abs().amax((1, 2, 3))]


def _nothing(count: int, like: Tensor) -> list[Tensor]:
    return [torch.full((count,), math.nan, device=like.device)] * 3
