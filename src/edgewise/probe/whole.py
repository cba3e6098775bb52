"""A network in memory read once: a forward pass with hooks, a backward pass per readout, a nearby input.

Observation must not change what a model computes: its output is compared with that of a run without any hook.

Once per model, attention implementation and input shape: another measurement of the same model does not pay again.

A pair of nearby inputs: where the second one starts, and how fast the two drift apart from site to site.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgewise.adapters.roles.record import ModelSites
from edgewise.probe.attention import AttentionWatch
from edgewise.probe.batches import kept_tokens
from edgewise.probe.gradients import (
    add_squares,
    log_norms,
    matrices,
    no_squares,
    output_gradient,
    own_loss,
    parameters_of,
    site_gradients,
    weight_logs,
)
from edgewise.probe.isolation import call, observed, same, tensors
from edgewise.probe.places import Catch, pair_separation, places, sequence_first
from edgewise.probe.reading import (
    NO_LOSS,
    Array,
    Reading,
    Wanted,
    generator_for,
    geometry,
    keep_attention,
    weight_arrays,
)
from edgewise.probe.softmax_gain import GainWatch

_SEEN: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


class Unchanged:
    """Made before the hooks are attached: runs the plain forward pass unless this model and shape were compared."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.model, self.batch, self.key = model, batch, _signature(model, batch)
        self.known = self.key in _SEEN.get(model, ())
        if not self.known:
            with torch.no_grad():
                self.plain = call(model, batch)

    def confirmed(self, output: Any) -> bool:
        """True when the observed output is the plain one bit for bit, now or when it was compared before."""
        if self.known:
            return True
        if not same(self.plain, output):
            self.plain = call(self.model, self.batch)  # with a graph: some kernels differ without one
        if not same(self.plain, output):
            return False
        _SEEN.setdefault(self.model, set()).add(self.key)
        return True


def forget() -> None:
    """Compare every model again, as after the first import."""
    _SEEN.clear()


def _signature(model: nn.Module, batch: Any) -> Hashable:
    """What may choose another kernel: the implementation, and shapes, types and devices of model and input."""
    chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
    parameter = next(model.parameters())
    shapes = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors(batch))
    return chosen, parameter.dtype, parameter.device, shapes


DISTANCE = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative; 0.1 for half precisions, which is not local


def nearby_input(first: Tensor, seed: int) -> Tensor:
    """first (…, width) plus Gaussian noise of a small part of each token's length; a draw of its own per seed."""
    generator = generator_for(seed, "nearby")
    noise = torch.randn(first.shape, generator=generator, dtype=torch.float32).to(first)
    scale = first.square().mean(-1, keepdim=True).sqrt()
    return first + DISTANCE.get(first.dtype, 0.1) * scale * noise


def pair_growth(
    streams: Sequence[Tensor], near: Sequence[Tensor], kept: Tensor | None
) -> NDArray[np.float64]:
    """log-growth of 1 - cos between the same token of two nearby inputs, site before to site; 0 at the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log([pair_separation(a, b, kept) for a, b in zip(streams, near, strict=True)])
        return np.diff(logs, prepend=logs[:1])


def read(model: nn.Module, batch: Any, found: ModelSites, wanted: Wanted) -> Reading:
    """The model is exactly as before afterwards, also when something inside raises."""
    with observed(model) as stack:
        return _Pass(model, batch, found, wanted).run(stack)


class _Pass:
    def __init__(self, model: nn.Module, batch: Any, found: ModelSites, wanted: Wanted) -> None:
        self.model, self.batch, self.found, self.wanted = model, batch, found, wanted
        self.places = places(found)
        self.names = tuple(place.site for place in self.places)
        self.catch = Catch(self.places, sequence_first(model.get_submodule(found.stacks[0].blocks[0].name)))

    def run(self, stack: ExitStack) -> Reading:
        watch = None
        if self.wanted.attention:
            kind = GainWatch if self.wanted.gain else AttentionWatch
            watch = kind(self.found.blocks, torch.Generator().manual_seed(self.wanted.seeds[0]))
            self.catch.counted = watch.sample
            self.unchanged = Unchanged(self.model, self.batch) if self.wanted.check else None
        self.watch = watch
        hooks = stack.enter_context(ExitStack())
        self.catch.attach(self.model, hooks)
        output = self._forward(watch)
        hooks.close()
        streams = self.catch.finished()
        shaped = [self.catch.shaped(stream) for stream in streams]
        kept = kept_tokens(self.batch, tuple(shaped[0].shape[:2]))  # type: ignore[arg-type]
        reading = geometry(self.places, shaped, kept)
        if watch is not None:
            self._attention(reading, watch, output)
        if reading.finite:
            for seed in self.wanted.seeds:
                self._directions(reading, seed, streams, own_loss(output), kept)
        return reading

    def _forward(self, watch: AttentionWatch | None) -> Any:
        if watch is None:
            return call(self.model, self.batch)
        with ExitStack() as stack:
            watch.attach(self.model, stack)
            with watch:
                return call(self.model, self.batch)

    def _attention(self, reading: Reading, watch: AttentionWatch, output: Any) -> None:
        if self.unchanged is not None and not self.unchanged.confirmed(output):
            return reading.note("attention not measured: the output changed while observed (not deterministic?)")
        keep_attention(reading, watch, self.places)

    def _directions(
        self, reading: Reading, seed: int, streams: Sequence[Tensor], loss: Tensor | None, kept: Tensor | None
    ) -> None:
        generator = generator_for(seed, "readout")
        logs: dict[str, list[float]] = {}
        statistics: dict[str, Array] = {}
        weighed = self.wanted.weighed(self.wanted.readouts)
        for readout in self.wanted.readouts:
            if readout == "own" and loss is None:
                reading.note(NO_LOSS)
                continue
            logs[readout] = self._readout(readout, streams, loss, kept, generator, statistics, readout == weighed)
        if self.wanted.pair:
            statistics["pair_growth"] = self._pair(streams, kept, seed)
        reading.log_gradient.append(logs)
        reading.statistics.append(statistics)

    def _readout(
        self, readout: str, streams: Sequence[Tensor], loss: Tensor | None, kept: Tensor | None,
        generator: torch.Generator, statistics: dict[str, Array], weighed: bool,
    ) -> list[float]:  # fmt: skip
        listed = matrices(self.found.blocks) if weighed else []
        names = parameters_of(listed)
        parameters = [self.model.get_parameter(name) for name in names]
        last = self.catch.shaped(streams[-1])
        if readout == "own":
            assert loss is not None
            target, start = loss, None
        else:
            start = output_gradient(last, readout, generator, kept)
            start = start if self.catch.sequence_first else start.transpose(0, 1)
            target, start = streams[-1], start.reshape(streams[-1].shape)
        at_sites, at_weights = site_gradients(target, streams, start, parameters)
        shaped = [None if g is None else self.catch.shaped(g) for g in at_sites]
        logs = log_norms(shaped, self.names, kept)
        if weighed:
            squares = no_squares(listed)
            for name, gradient in zip(names, at_weights, strict=True):
                if gradient is not None:
                    add_squares(squares, listed, name, gradient)
            statistics |= weight_arrays(self.places, weight_logs(squares), logs[-1] + math.log(last.shape[0]))
            if isinstance(self.watch, GainWatch):
                statistics |= self.watch.gains(target, start, self.places)
        return [value - logs[-1] for value in logs]

    def _pair(self, streams: Sequence[Tensor], kept: Tensor | None, seed: int) -> Array:
        catch = Catch(self.places, self.catch.sequence_first)
        with torch.no_grad(), ExitStack() as stack:
            catch.attach(self.model, stack, replace_first=nearby_input(streams[0].detach(), seed))
            call(self.model, self.batch)
        first, near = ([self.catch.shaped(x) for x in found] for found in (streams, catch.finished()))
        return pair_growth(first, near, kept)
