"""What the softmax of a real layer does to the backward signal: one block J(s_t) per sequence, head and query.

With o_t = V^T s_t and e_t = dLoss/do_t the gradient of the logits is dLoss/dz_t = J(s_t) V e_t. The gain
|J V e| / |V e| is taken on the true backward signal: condition numbers are a worst case, this is what happened.
Shapes: rows and upstream (sequences, heads, rows, keys); every statistic (heads,).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from edgewise import softmax_jacobian as jacobian
from edgewise.arrays import Array
from edgewise.probe.attention import COARSE, FUSED, AttentionWatch, RowStatistics
from edgewise.probe.places import Place, attends

NAMES = ("softmax_gain", "row_gradient_spread", "row_eigenvalue_spread")


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Each block of the layer's Jacobian, (..., rows): what it could do (eigenvalues) and what it did (gain)."""

    log_largest: Tensor  # log lambda_1
    log_smallest: Tensor  # log lambda_{n-1}
    gain: Tensor  # |J V e| / |V e|; nan where no signal arrives
    log_gradient: Tensor  # log |dLoss/dz_t|


def row_blocks(logits: Tensor, upstream: Tensor) -> RowBlocks:
    """Blocks of rows with logits (..., n), masked at -inf, and upstream V e (..., n); nan for less than two keys."""
    alive = torch.isfinite(logits).any(-1)
    rows = torch.log_softmax(torch.where(alive[..., None], logits, 0.0).double(), -1)
    several = alive & (jacobian.count(rows) > 1)
    a = torch.where(torch.isneginf(rows), 0.0, upstream.double())
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
        e = shaped[:, :, rows.to(gradient.device)].double()
        if self.values is None:
            return e
        V = self.values.detach().double()
        return e @ V.repeat_interleave(heads // V.shape[1], 1).transpose(-1, -2)


class GainWatch(AttentionWatch):
    """An attention watch that also remembers each attention, so that a backward pass can be asked about it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
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

    def gains(self, target: Tensor, start: Tensor | None, listed: Sequence[Place]) -> dict[str, Array]:
        """Each statistic (sites, heads) for one backward signal; the graph stays. Empty if a layer was refused."""
        if self.refusals or set(self.calls) != set(self.blocks):
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


def _at_sites(by_block: Mapping[int, dict[str, Array]], listed: Sequence[Place]) -> dict[str, Array]:
    heads = max((len(statistics[NAMES[0]]) for statistics in by_block.values()), default=0)
    arrays = {name: np.full((len(listed), heads), np.nan) for name in NAMES} if heads else {}
    for index, place in enumerate(listed):
        if place.block is not None and place.block in by_block and attends(place.site):
            for name, array in arrays.items():
                values = by_block[place.block][name]
                array[index, : len(values)] = values
    return arrays
