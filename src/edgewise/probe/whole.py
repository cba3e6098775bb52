"""A network in memory read once: a forward pass with hooks, a backward pass per readout, a nearby input.

Observation must not change what a model computes: once per model, attention implementation and input shape its output
is compared with that of a run without any hook.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from edgewise.adapters.roles.record import ModelSites
from edgewise.arrays import Array
from edgewise.probe.attention import AttentionWatch
from edgewise.probe.batches import token_mask
from edgewise.probe.geometry import generator_for, nearby_input, pair_growth
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
from edgewise.probe.places import Catch, places, sequence_first
from edgewise.probe.reading import NO_LOSS, Reading, Request, read_attention, read_geometry, weight_arrays
from edgewise.probe.softmax_gain import GainWatch

_COMPARED: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


class Unchanged:
    """Built before the hooks are attached: runs the plain forward pass unless this model and shape were compared."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.model, self.batch, self.key = model, batch, _signature(model, batch)
        self.compared = self.key in _COMPARED.get(model, ())
        if not self.compared:
            with torch.no_grad():
                self.plain = call(model, batch)

    def confirmed(self, output: Any) -> bool:
        """True when the observed output is the plain one bit for bit, now or when it was compared before."""
        if self.compared:
            return True
        if not same(self.plain, output):
            self.plain = call(self.model, self.batch)  # with a graph: some kernels differ without one
        if not same(self.plain, output):
            return False
        _COMPARED.setdefault(self.model, set()).add(self.key)
        return True


def forget() -> None:
    """Compare every model again, as after the first import."""
    _COMPARED.clear()


def _signature(model: nn.Module, batch: Any) -> Hashable:
    """What may choose another kernel: the implementation, and shapes, types and devices of model and input."""
    implementation = getattr(getattr(model, "config", None), "_attn_implementation", None)
    parameter = next(model.parameters())
    shapes = tuple((tuple(t.shape), t.dtype, t.device) for t in tensors(batch))
    return implementation, parameter.dtype, parameter.device, shapes


def read(model: nn.Module, batch: Any, sites: ModelSites, request: Request) -> Reading:
    """The model is exactly as before afterwards, also when something inside raises."""
    with observed(model):
        return _Pass(model, batch, sites, request).run()


@dataclass(frozen=True, eq=False)
class _Forward:
    """What a forward pass leaves: its streams in the graph, the same as (sequences, tokens, width), and the loss."""

    streams: list[Tensor]
    shaped: list[Tensor]
    mask: Tensor | None
    loss: Tensor | None


class _Pass:
    def __init__(self, model: nn.Module, batch: Any, sites: ModelSites, request: Request) -> None:
        self.model, self.batch, self.sites, self.request = model, batch, sites, request
        self.places = places(sites)
        self.names = tuple(place.site for place in self.places)
        self.catch = Catch(self.places, sequence_first(model.get_submodule(sites.stacks[0].blocks[0].name)))
        self.watch: AttentionWatch | None = None
        if request.attention:
            kind = GainWatch if request.gain else AttentionWatch
            self.watch = kind(sites.blocks, torch.Generator().manual_seed(request.seeds[0]))
            self.catch.on_first = self.watch.sample

    def run(self) -> Reading:
        """Plain pass, observed pass, geometry, attention, readouts: each needs the ones before it."""
        compare = self.watch is not None and self.request.check
        unchanged = Unchanged(self.model, self.batch) if compare else None
        output = self._observed_pass()
        forward = self._forward(output)
        reading = read_geometry(self.places, forward.shaped, forward.mask)
        if unchanged is not None and not unchanged.confirmed(output):
            reading.note("attention not measured: the output changed while observed (not deterministic?)")
        elif self.watch is not None:
            read_attention(reading, self.watch, self.places)
        if reading.finite:
            for seed in self.request.seeds:
                self._directions(reading, seed, forward)
        return reading

    def _observed_pass(self) -> Any:
        """The model's output; hooks live no longer than this."""
        with ExitStack() as hooks:
            self.catch.attach(self.model, hooks)
            if self.watch is not None:
                self.watch.attach(self.model, hooks)
                hooks.enter_context(self.watch)
            return call(self.model, self.batch)

    def _forward(self, output: Any) -> _Forward:
        streams = self.catch.finished()
        shaped = [self.catch.shaped(stream) for stream in streams]
        mask = token_mask(self.batch, tuple(shaped[0].shape[:2]))  # type: ignore[arg-type]
        return _Forward(streams, shaped, mask, own_loss(output))

    def _directions(self, reading: Reading, seed: int, forward: _Forward) -> None:
        """Every readout and the nearby input of one seed, added to the reading."""
        generator = generator_for(seed, "readout")
        logs: dict[str, list[float]] = {}
        statistics: dict[str, Array] = {}
        weighed = self.request.weight_readout(self.request.readouts)
        for readout in self.request.readouts:
            if readout == "own" and forward.loss is None:
                reading.note(NO_LOSS)
                continue
            target, start = self._start(readout, forward, generator)
            weights = statistics if readout == weighed else None
            logs[readout] = self._backward(target, start, forward, weights)
        if self.request.pair:
            statistics["pair_growth"] = self._pair(forward, seed)
        reading.log_gradient.append(logs)
        reading.statistics.append(statistics)

    def _start(self, readout: str, forward: _Forward, generator: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """What is differentiated: the model's own loss, or the last stream against a random gradient."""
        if readout == "own":
            assert forward.loss is not None
            return forward.loss, None
        start = output_gradient(forward.shaped[-1], readout, generator, forward.mask)
        start = start if self.catch.sequence_first else start.transpose(0, 1)
        return forward.streams[-1], start.reshape(forward.streams[-1].shape)

    def _backward(
        self, target: Tensor, start: Tensor | None, forward: _Forward, weights: dict[str, Array] | None
    ) -> list[float]:
        """log |g|^2 at every site over that at the last; gradients of the matrices go into `weights`, where given."""
        listed = [] if weights is None else matrices(self.sites.blocks)
        names = parameters_of(listed)
        parameters = [self.model.get_parameter(name) for name in names]
        at_sites, at_weights = site_gradients(target, forward.streams, start, parameters)
        shaped = [None if g is None else self.catch.shaped(g) for g in at_sites]
        logs = log_norms(shaped, self.names, forward.mask)
        if weights is not None:
            squares = no_squares(listed)
            for name, gradient in zip(names, at_weights, strict=True):
                if gradient is not None:
                    add_squares(squares, listed, name, gradient)
            sequences = forward.shaped[-1].shape[0]
            weights |= weight_arrays(self.places, weight_logs(squares), logs[-1] + math.log(sequences))
            if isinstance(self.watch, GainWatch):
                weights |= self.watch.gains(target, start, self.places)
        return [value - logs[-1] for value in logs]

    def _pair(self, forward: _Forward, seed: int) -> Array:
        catch = Catch(self.places, self.catch.sequence_first)
        with torch.no_grad(), ExitStack() as stack:
            catch.attach(self.model, stack, replace_first=nearby_input(forward.streams[0].detach(), seed))
            call(self.model, self.batch)
        near = [self.catch.shaped(stream) for stream in catch.finished()]
        return pair_growth(forward.shaped, near, forward.mask)
