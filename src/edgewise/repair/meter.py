"""The two totals of any stack, read in one forward and backward pass, with some parameters replaced for the pass.

Nothing is written: replaced values go in by torch.func.functional_call, buffers as copies. Streams may be (B, d),
(B, n, d) or (B, C, ...); two items are two samples or, in a sequence, two tokens.

An input for a plan when none is given: as `measure` makes one up, or random vectors or images for other networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.adapters.roles.norm import find_norms
from edgewise.adapters.unwrap import unwrap
from edgewise.errors import BadInput
from edgewise.probe.batches import default_batch, token_mask
from edgewise.probe.geometry import mean_square, separation
from edgewise.probe.isolation import observed, tensors
from edgewise.probe.places import sequence_first
from edgewise.repair.layers import Layers, repeated
from edgewise.repair.plan import Totals

SAMPLES, SIDE = 32, 16


def made_up(model: nn.Module, tokens: int | None = None) -> Any:
    """What `default_batch` gives, else normal numbers shaped for the first matrix or filter."""
    generator = torch.Generator().manual_seed(0)
    try:
        return default_batch(model, generator, tokens)
    except BadInput as refusal:
        first = next((m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))), None)
        if first is None:
            raise
        if isinstance(first, nn.Linear):
            shape: tuple[int, ...] = (SAMPLES, first.in_features)
        else:
            shape = (SAMPLES // 4, first.in_channels, *[SIDE] * len(first.kernel_size))
        batch = torch.randn(shape, generator=generator).to(first.weight)
        try:
            with observed(model), torch.no_grad():
                model(batch)
        except (RuntimeError, ValueError, TypeError):
            raise refusal from None
        return batch


READOUT = 7919
BEYOND = 1e3  # stands for a total that left the range of numbers


@dataclass
class Meter:
    """Counts its passes. `raw`: no norm rescales the signal, so that the bare gradient counts."""

    model: nn.Module
    batch: Any
    layers: Layers
    raw: bool
    passes: int = 0
    streams: list[Tensor] = field(default_factory=list)
    size: float = 0.0  # log of the last stream's mean square over the first's, in the last pass

    def read(self, replaced: Mapping[str, Tensor] | None = None, seed: int = 0) -> Totals:
        """Totals from the first stream to the last, for a random gradient at every coordinate of the last."""
        self.passes += 1
        with observed(self.model) as stack:
            _statistics_of_batches(self.model)
            streams = self._streams(replaced or {}, stack)
            return self._totals(streams, seed)

    def _streams(self, replaced: Mapping[str, Tensor], stack: ExitStack) -> list[Tensor]:
        self.streams = []
        for index, name in enumerate(self.layers.names):
            module = self.model.get_submodule(name)
            if index == 0:
                stack.callback(module.register_forward_pre_hook(self._first, with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(self._keep).remove)
        copies = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        args, named = _arguments(self.batch)
        torch.func.functional_call(self.model, {**copies, **replaced}, args, named)
        if len(self.streams) < 3:
            raise BadInput(f"only {len(self.streams)} of {self.layers.depth} layers were run by this batch.")
        return self.streams

    def _first(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:  # noqa: ARG002
        """The input of the first block is the first stream; a leaf's input is of another kind (after an activation)."""
        if self.streams:
            return None
        place = next((i for i, value in enumerate(inputs) if isinstance(value, Tensor)), None)
        key = next((k for k, v in named.items() if isinstance(v, Tensor) and v.is_floating_point()), None)
        stream = inputs[place] if place is not None else named[key] if key is not None else None
        if stream is None:
            raise BadInput(f"{self.layers.names[0]} was called without a tensor, so its stream cannot be read.")
        given = stream if stream.requires_grad else stream.detach().requires_grad_()
        if not self.layers.leaf:
            self.streams.append(given)
        if place is not None:
            return (*inputs[:place], given, *inputs[place + 1 :]), named
        return inputs, named | {key: given}

    def _keep(self, module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG002
        self.streams.append(next(tensors(output)))

    def _totals(self, streams: Sequence[Tensor], seed: int) -> Totals:
        first, last = streams[0], streams[-1]
        q0, q1 = (mean_square(stream, self._padding(stream)) for stream in (first, last))
        width = last.shape[1] if last.ndim > 3 else last.shape[-1]
        spread = math.sqrt(2 * (len(streams) - 1) / width)
        if not (math.isfinite(q1) and q1 > 0):
            return Totals(0.0, -BEYOND if q1 == 0 else BEYOND, self.raw, spread)
        self.size = _log(q1) - _log(q0)
        generator = torch.Generator().manual_seed(READOUT + seed)  # not the stream of a made-up input
        readout = torch.randn(last.shape, generator=generator).to(last)
        (gradient,) = torch.autograd.grad(last, first, readout, allow_unused=True)
        if gradient is None:
            raise BadInput("no gradient reaches the first layer: the last one does not depend on it.")
        change = _log(gradient.double().square().sum()) - _log(readout.double().square().sum())
        change += 0.0 if self.raw else math.log(q0 / q1)
        apart = [self._separation(stream) for stream in (first, last)]
        angle = _log(apart[1]) - _log(apart[0])
        return Totals(angle, max(-BEYOND, min(BEYOND, change)), self.raw, spread)

    @property
    def sequence_first(self) -> bool:
        return sequence_first(self.model)

    @property
    def start(self) -> tuple[float, float]:
        """(norm, overlap) of the first stream of the last pass: where a prediction begins."""
        first = self.streams[0]
        return mean_square(first, self._padding(first)), 1 - self._separation(first)

    def _padding(self, stream: Tensor) -> Tensor | None:
        """Which tokens count, where the batch says so."""
        return token_mask(self.batch, tuple(stream.shape[:2])) if stream.ndim == 3 else None  # type: ignore[arg-type]

    def _separation(self, stream: Tensor) -> float:
        """1 - mean cosine between items, padding left out."""
        if stream.ndim == 2:
            return separation(stream[None])
        if stream.ndim > 3 or _channels_first(self.model):
            if len(stream) > 1:
                return separation(stream.flatten(1)[None])
            return separation(stream.flatten(2).transpose(1, 2))
        sequences = stream if self.sequence_first else stream.transpose(0, 1)
        if sequences.shape[1] < 2:
            return separation(sequences.transpose(0, 1))
        return separation(sequences, self._padding(sequences))


def total_changes(model: nn.Module, batch: Any = None, seed: int = 0) -> Totals:
    """The totals of a module as it is; `seed` numbers the readout direction."""
    bare = unwrap(model)
    given = made_up(bare) if batch is None else batch
    layers = repeated(bare)
    return Meter(bare, given, layers, raw=not normed(bare, layers)).read(seed=seed)


def normed(model: nn.Module, layers: Layers) -> bool:
    """Whether norms stand in the layers, or between bare matrices: then sizes are relative to the stream."""
    first = model.get_submodule(layers.names[0])
    if not layers.leaf:
        return bool(_norms(first))
    return len(_norms(model.get_submodule(layers.names[0].rpartition(".")[0]))) >= layers.depth - 1


def _norms(module: nn.Module) -> list[str]:
    """Norms that are there: an Identity in the place of one is none."""
    return [name for name in find_norms(module) if not isinstance(module.get_submodule(name), nn.Identity)]


def _log(value: Tensor | float) -> float:
    value = float(value)
    return math.log(value) if 0 < value < math.inf else BEYOND if value else -BEYOND


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if hasattr(batch, "keys"):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, (tuple, list)) else ((batch,), {})


def _channels_first(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv1d) and module.kernel_size[0] > 1 for module in model.modules())


def _statistics_of_batches(model: nn.Module) -> None:
    """Batch norms see their batch, as in training: their running statistics say nothing yet. `observed` undoes it."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.training = True
