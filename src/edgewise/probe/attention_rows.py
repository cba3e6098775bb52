"""Attention rows as the model computes them: every softmax and every fused attention inside an attention module.

A `TorchFunctionMode` sees F.scaled_dot_product_attention (queries and keys after rotary embedding) and every form of
softmax (eager attention: logits after bias, mask, cap and sinks). The model's own call runs unchanged and its own
result is returned; rows rebuilt from queries and keys must reproduce that result, or the layer is left out. Of each
layer `RowStatistics` remain: one number per head, over sampled queries.

Shapes: logits (sequences, heads, rows, keys), masked keys at -inf; every statistic (heads,).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from edgewise import softmax_jacobian as jacobian
from edgewise.arrays import Array, in_double, with_double
from edgewise.models.behavior.record import Operation
from edgewise.probe.geometry import StreamSite

ROWS = 64  # sampled queries, all sequences together
SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax)
FUSED = F.scaled_dot_product_attention
EXPONENTIALS = (torch.exp, torch.Tensor.exp)
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 5e-2, torch.float16: 1e-2}
COARSE = 1e-2  # relative error of an eigenvalue that a statistic over rows can bear


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Means over rows, unless stated otherwise; nan if no row has two keys."""

    attention_entropy: Array  # nats
    softmax_condition: Array  # median of log kappa(J)
    effective_support: Array  # exp(entropy), keys
    softmax_eigenvalue: Array  # largest of J
    saturated_fraction: Array  # rows whose largest entry leaves less than 1e-2
    largest_logit: Array  # of all rows, in size

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))

    def joined(self, other: RowStatistics) -> RowStatistics:
        """These heads and then those of another call."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.names())
        return RowStatistics(*(np.concatenate(pair) for pair in pairs))


def row_statistics(logits: Tensor) -> RowStatistics:
    """Rows that attend to nothing (padding) are left out."""
    logits = with_double(logits)
    size = torch.where(torch.isfinite(logits), logits.abs(), 0.0)
    by_head = logits.transpose(0, 1).flatten(1, 2)  # (heads, sequences x rows, keys)
    alive = torch.isfinite(by_head).any(-1)  # (heads, rows)
    safe = in_double(torch.where(alive[..., None], by_head, 0.0))
    rows = jacobian.checked(torch.log_softmax(safe, -1))
    spectrum = jacobian.extremes_of_rows(rows, COARSE)
    entropy = jacobian.entropy(rows)
    several = alive & (jacobian.count(rows) > 1)
    return RowStatistics(
        _mean(entropy, alive),
        _numpy(torch.where(several, spectrum.condition, math.nan).nanmedian(-1).values),
        _mean(entropy.exp(), alive),
        _mean(spectrum.largest.exp(), several),
        _mean(in_double(jacobian.saturated(rows)), several),
        _numpy(in_double(size.amax((0, 2, 3)))),
    )


def _mean(values: Tensor, mask: Tensor) -> Array:
    total = torch.where(mask, values, 0.0).sum(-1) / mask.sum(-1)
    return _numpy(total)


def _numpy(values: Tensor) -> Array:
    return np.asarray(values.cpu().numpy(), dtype=np.float64)


@dataclass(frozen=True)
class AttentionLocation:
    """Where a block's attention runs: the calls of its softmax, else the module; and its heads if they are known."""

    block: int
    module: str
    heads: int | None
    softmaxes: tuple[Operation, ...] = ()
    heads_of_call: int | None = None  # in one call of the softmax


class AttentionWatch(TorchFunctionMode):
    """Statistics per block while it is active: `records[block]`, or the reason without them in `errors[block]`."""

    def __init__(self, attentions: Sequence[AttentionLocation], generator: torch.Generator) -> None:
        super().__init__()
        self.blocks = {attention.block: attention for attention in attentions}
        self.generator = generator
        self.tokens, self.rows = 0, torch.empty(0, dtype=torch.long)
        self.mask: Tensor | None = None  # (sequences, tokens), True where a query counts
        self.current: int | None = None
        self._once = False  # whether `current` holds for one call only
        self.paused = False
        self.records: dict[int, RowStatistics] = {}
        self.errors: dict[int, str] = {}

    def sample(self, sequences: int, tokens: int, mask: Tensor | None = None) -> None:
        """Draw the query positions, the same in every sequence and layer, where some sequence has a token."""
        self.tokens, self.mask = tokens, mask
        wanted = max(1, ROWS // max(sequences, 1))
        order = torch.randperm(tokens, generator=self.generator)
        order = order if mask is None else order[mask.any(0).cpu()[order]]
        self.rows = order[:wanted].sort().values

    def attach(self, model: nn.Module, stack: ExitStack) -> None:
        """Hooks that tell which block's attention is running, if it is known by its module only."""
        by_module: dict[str, list[int]] = {}
        for attention in self.blocks.values():
            if not attention.softmaxes:
                by_module.setdefault(attention.module, []).append(attention.block)
        for name, indices in by_module.items():
            module = model.get_submodule(name)
            stack.callback(module.register_forward_pre_hook(partial(self._enter, iter(indices))).remove)
            stack.callback(module.register_forward_hook(self._leave, always_call=True).remove)

    def operations(self) -> dict[Operation, Callable[..., None]]:
        """For a traced pass: which block's attention the next call is."""
        return {op: partial(self._begin, a.block) for a in self.blocks.values() for op in a.softmaxes}

    def _begin(self, block: int, *_: object) -> None:
        self.current, self._once = block, True

    def _enter(self, turns: Iterator[int], *_: object) -> None:
        """Blocks that share a module take their turns in order."""
        self.current = next(turns, None)

    def _leave(self, *_: object) -> None:
        self.current = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if self.current is None or self.paused:
            return func(*args, **named)
        # Inside it the mode is off: torch would call this without end.
        if func is F.multi_head_attention_forward:
            once, self._once = self._once, False
            with functions_of_torch(self):
                result = func(*args, **named)
            self.current = None if once else self.current
            return result
        result = func(*args, **named)
        if func is FUSED:
            self._record(lambda: self._fused(result, *args, **named))
        elif any(func is softmax for softmax in SOFTMAX) or self._is_exponential(func):
            self._record(lambda: self._eager(*args, **({} if func in EXPONENTIALS else named)))
        else:
            return result
        self.current = None if self._once else self.current
        return result

    def _is_exponential(self, func: object) -> bool:
        """Whether exponentials of scores, which are then divided by their sum, are the one softmax of this block."""
        assert self.current is not None
        operations = self.blocks[self.current].softmaxes
        return func in EXPONENTIALS and len(operations) == 1 and operations[0].function == "exp"

    def _record(self, read: Callable[[], RowStatistics | str | None]) -> None:
        index = self.current
        assert index is not None
        with torch.no_grad(), torch._C.DisableTorchFunction():
            record = read()
        if record is None:
            return
        if isinstance(record, str):
            self.errors[index] = record
        elif index not in self.records:
            self.records[index] = record
        elif self.blocks[index].heads == len(self.blocks[index].softmaxes) * len(record.largest_logit):
            self.records[index] = self.records[index].joined(record)
        else:
            self.errors[index] = "two attentions ran inside it"

    def counted(self, logits: Tensor) -> RowStatistics:
        """Statistics of the sampled rows; those of tokens that are left out attend to nothing."""
        if self.mask is not None and len(logits) == len(self.mask):
            alive = self.mask[:, self.rows.to(self.mask.device)].to(logits.device)
            logits = logits.masked_fill(~alive[:, None, :, None], -math.inf)
        return self.statistics(logits)

    def statistics(self, logits: Tensor) -> RowStatistics:
        """Statistics of rows; a watch that records more overrides this."""
        return row_statistics(logits)

    def _fused(
        self,
        result: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> RowStatistics | str | None:
        query, key, value, result = (self._by_head(t) for t in (query, key, value, result))
        attn_mask = self._by_head(attn_mask) if attn_mask is not None and attn_mask.ndim == 3 else attn_mask
        if query.ndim != 4 or not self._rows_fit(query):
            return None
        if dropout_p:
            return "its attention drops entries although the model is in eval mode"
        rows = self._rows_of(query)
        share = query.shape[1] // key.shape[1] if enable_gqa else 1
        key, value = (t.repeat_interleave(share, 1) if share > 1 else t for t in (key, value))
        wide = torch.promote_types(query.dtype, torch.float32)
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        logits = query[:, :, rows].to(wide) @ key.to(wide).transpose(-1, -2) * factor
        logits = _masked(logits, attn_mask, is_causal, rows)
        rebuilt, actual = torch.softmax(logits, -1) @ value.to(wide), result[:, :, rows].to(wide)
        alive = torch.isfinite(logits).any(-1, keepdim=True)
        gap = float(torch.where(alive, (rebuilt - actual).abs(), 0.0).max())
        size = float(value.abs().max())
        if not gap <= TOLERANCE.get(query.dtype, 1e-2) * max(size, 1e-30):
            return f"rows rebuilt from queries and keys miss the model's own output by {gap / max(size, 1e-30):.2g}"
        return self.counted(logits)

    def _eager(
        self, logits: Tensor, dim: int | None = None, *_: object, **named: int | None
    ) -> RowStatistics | None:
        dim, heads = named.get("dim", dim), self.blocks[self.current].heads_of_call  # type: ignore[index]
        dim = -1 if dim is None and self._once else dim
        if dim is None or logits.ndim < 3:
            return None
        logits = self._by_head(_keys_last(logits, dim, self.tokens, heads))
        if logits.ndim != 4 or not self._rows_fit(logits) or (heads and logits.shape[1] != heads):
            return None
        rows = logits[:, :, self._rows_of(logits)]
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return self.counted(wide.masked_fill(rows <= torch.finfo(rows.dtype).min / 2, -math.inf))

    def _rows_fit(self, value: Tensor) -> bool:
        """Whether the axis before the last is the tokens; of an operation that was read, windows of them or more."""
        heads = self.blocks[self.current].heads_of_call  # type: ignore[index]
        windows = self._once and self.mask is None and heads is not None
        return bool(value.shape[-2] == self.tokens or (windows and value.shape[-2] > 1))

    def _rows_of(self, value: Tensor) -> Tensor:
        """The sampled queries; in windows of the tokens as many of each."""
        if value.shape[-2] == self.tokens:
            return self.rows.to(value.device)
        return torch.arange(value.shape[-2], device=value.device)[: max(1, ROWS // max(value.shape[0], 1))]

    def _by_head(self, value: Tensor) -> Tensor:
        """(sequences, heads, rows, columns): heads may lie with the sequences in one axis, or groups beside heads."""
        heads = self.blocks[self.current].heads_of_call  # type: ignore[index]
        if value.ndim == 3 and heads and value.shape[0] % heads == 0:
            return value.unflatten(0, (-1, heads))
        groups = value.ndim == 5 and heads and value.shape[1] * value.shape[2] in (heads, value.shape[1])
        return value.flatten(1, 2) if groups else value


def _keys_last(logits: Tensor, dim: int, tokens: int, heads: int | None) -> Tensor:
    """The axis of the softmax last and that of the queries before it: scores may be (sequences, rows, keys, heads)."""
    logits = logits.movedim(dim, -1)
    if logits.ndim == 4 and logits.shape[0] == tokens != logits.shape[-2] and heads == logits.shape[2]:
        return logits.permute(1, 2, 0, 3)
    fits = logits.ndim == 4 and logits.shape[-2] != tokens and logits.shape[1] == tokens
    return logits.transpose(1, 2) if fits and heads in (None, logits.shape[2]) else logits


def _masked(logits: Tensor, mask: Tensor | None, is_causal: bool, rows: Tensor) -> Tensor:
    if is_causal:
        later = torch.arange(logits.shape[-1], device=rows.device) > rows[:, None]
        logits = logits.masked_fill(later, -math.inf)
    if mask is None:
        return logits
    mask = mask.expand(*logits.shape[:2], -1, logits.shape[-1])
    mask = mask[:, :, rows] if mask.shape[-2] > 1 else mask
    if mask.dtype == torch.bool:
        return logits.masked_fill(~mask, -math.inf)
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return (logits + mask.to(logits.dtype)).masked_fill(hidden, -math.inf)


@contextmanager
def functions_of_torch(watch: TorchFunctionMode) -> Iterator[None]:
    """Inside F.multi_head_attention_forward its two globals report to the watch; restored afterwards."""

    def through(function: Any) -> Callable[..., Tensor]:
        return lambda *args, **named: watch.__torch_function__(function, (), args, named)

    names = {"scaled_dot_product_attention": FUSED, "softmax": SOFTMAX[0]}
    before = {name: getattr(F, name) for name in names}
    try:
        for name, function in names.items():
            setattr(F, name, through(function))
        yield
    finally:
        for name, function in before.items():
            setattr(F, name, function)


NAMES = ("softmax_gain", "row_gradient_spread", "row_eigenvalue_spread")


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Each block of the layer's Jacobian, (..., rows): what it could do (eigenvalues) and what it did (gain)."""

    log_largest: Tensor  # log lambda_1
    log_smallest: Tensor  # log lambda_{n-1}
    gain: Tensor  # |J V e| / |V e|; nan if no signal arrives
    log_gradient: Tensor  # log |dLoss/dz_t|


def row_blocks(logits: Tensor, upstream: Tensor) -> RowBlocks:
    """Blocks of rows with logits (..., n), masked at -inf, and upstream V e (..., n); nan for less than two keys."""
    logits = with_double(logits)
    alive = torch.isfinite(logits).any(-1)
    rows = torch.log_softmax(in_double(torch.where(alive[..., None], logits, 0.0)), -1)
    several = alive & (jacobian.count(rows) > 1)
    a = torch.where(torch.isneginf(rows), 0.0, in_double(upstream))
    moved = jacobian.product(rows.exp(), a).norm(dim=-1)
    size = a.norm(dim=-1)
    spectrum = jacobian.extremes_of_rows(rows, COARSE)

    def only(values: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, values, math.nan)

    reached = several & (size > 0)
    return RowBlocks(
        only(spectrum.largest, several),
        only(spectrum.smallest, several),
        only(moved / size, reached),
        only(moved.log(), several),
    )


def head_statistics(blocks: RowBlocks) -> dict[str, Array]:
    """Per head, over sequences and rows (sequences, heads, rows) of the blocks.

    softmax_gain           median of |J V e| / |V e|
    row_gradient_spread    log of the largest over the median |dLoss/dz_t|
    row_eigenvalue_spread  log of the largest lambda_1 over the smallest lambda_{n-1}, across rows
    """
    gain, gradient, top, low = (
        value.transpose(0, 1).flatten(1)
        for value in (blocks.gain, blocks.log_gradient, blocks.log_largest, blocks.log_smallest)
    )
    values = (
        gain.nanmedian(-1).values,
        _largest(gradient) - gradient.nanmedian(-1).values,
        _largest(top) + _largest(-low),
    )
    return {
        name: np.asarray(value.cpu().numpy(), dtype=np.float64)
        for name, value in zip(NAMES, values, strict=True)
    }


def _largest(values: Tensor) -> Tensor:
    """Largest along the last dimension, nan left out; nan where all are."""
    filled = torch.where(torch.isnan(values), -math.inf, values).amax(-1)
    return torch.where(torch.isneginf(filled), math.nan, filled)


@dataclass(frozen=True, eq=False)
class SoftmaxCall:
    """One attention as it ran: its output in the graph, the logits of the sampled rows, and the values."""

    output: Tensor  # of the fused attention (B, H, n, d_h), or the probabilities (B, H, n, keys)
    logits: Tensor
    values: Tensor | None  # of the fused attention; the gradient of probabilities is V e already

    def upstream(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """V e for the sampled rows, from the gradient of `output`."""
        heads = self.logits.shape[1]
        shaped = gradient if gradient.ndim == 4 else gradient.unflatten(0, (-1, heads))
        e = in_double(shaped[:, :, rows.to(gradient.device)])
        if self.values is None:
            return e
        V = in_double(self.values.detach())
        return e @ V.repeat_interleave(heads // V.shape[1], 1).transpose(-1, -2)


class GainWatch(AttentionWatch):
    """An attention watch that also remembers each attention, so that a backward pass can be asked about it."""

    def __init__(self, attentions: Sequence[AttentionLocation], generator: torch.Generator) -> None:
        super().__init__(attentions, generator)
        self.calls: dict[int, SoftmaxCall] = {}
        self._logits: Tensor | None = None

    def statistics(self, logits: Tensor) -> RowStatistics:
        self._logits = logits
        return super().statistics(logits)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        block = self.current
        result = super().__torch_function__(func, types, args, kwargs)
        if self._logits is not None and block is not None:
            named = kwargs or {}
            values = (named["value"] if "value" in named else args[2]) if func is FUSED else None
            if func is not FUSED or result.ndim == 4:
                self.calls[block] = SoftmaxCall(result, self._logits, values)
            self._logits = None
        return result

    def gains(self, target: Tensor, start: Tensor | None, listed: Sequence[StreamSite]) -> dict[str, Array]:
        """Each statistic (sites, heads) for one backward signal; the graph stays. Empty if a layer was left out."""
        if self.errors or set(self.calls) != set(self.blocks):
            return {}
        order = list(self.calls)
        outputs = [self.calls[index].output for index in order]
        gradients = torch.autograd.grad(target, outputs, start, retain_graph=True, allow_unused=True)
        by_block = {
            index: head_statistics(self._blocks(self.calls[index], gradient))
            for index, gradient in zip(order, gradients, strict=True)
            if gradient is not None
        }
        return _at_sites(by_block, listed)

    def _blocks(self, call: SoftmaxCall, gradient: Tensor) -> RowBlocks:
        with torch.no_grad():
            return row_blocks(call.logits, call.upstream(gradient, self.rows))


def _at_sites(by_block: Mapping[int, dict[str, Array]], listed: Sequence[StreamSite]) -> dict[str, Array]:
    heads = max((len(statistics[NAMES[0]]) for statistics in by_block.values()), default=0)
    arrays = {name: np.full((len(listed), heads), np.nan) for name in NAMES} if heads else {}
    for index, place in enumerate(listed):
        if place.block is not None and place.block in by_block and place.attends:
            for name, array in arrays.items():
                values = by_block[place.block][name]
                array[index, : len(values)] = values
    return arrays
