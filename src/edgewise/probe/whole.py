"""A network in memory read once: a forward pass with hooks, a backward pass per readout, a nearby input.

Observation must not change what a model computes: once per model, attention implementation and input shape its output
is compared with that of a run without any hook.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.models.behavior.record import Stack
from edgewise.models.names.record import BlockSite
from edgewise.nouns.trace import GRADIENTS
from edgewise.probe.attention import AttentionWatch
from edgewise.probe.batches import Counted, counted, sequences_of
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
from edgewise.probe.observation import (
    NO_LOSS,
    Observation,
    Request,
    read_attention,
    read_geometry,
    weight_arrays,
)
from edgewise.probe.readout import first_loss, readout_of
from edgewise.probe.softmax_gain import GainWatch
from edgewise.probe.streams import OVERWRITES, Catch, attentions, places

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


def observe(
    model: nn.Module, batch: Any, stack: Stack, blocks: Sequence[BlockSite], request: Request
) -> Observation:
    """What one network shows at the sites of a stack; `blocks` has the roles of its matrices, empty where unknown.

    The model is exactly as before afterwards, also when something inside raises.
    """
    with observed(model):
        return _Pass(model, batch, stack, blocks, request).run()


@dataclass(frozen=True, eq=False)
class _Forward:
    """What a forward pass leaves: its streams in the graph, the same as (sequences, tokens, width), and the loss."""

    streams: list[Tensor]
    shaped: list[Tensor]
    mask: Tensor | None
    loss: Tensor | None


class _Pass:
    def __init__(
        self, model: nn.Module, batch: Any, stack: Stack, blocks: Sequence[BlockSite], request: Request
    ) -> None:
        self.model, self.batch, self.stack, self.blocks, self.request = model, batch, stack, blocks, request
        self.places = places(stack)
        self.names = tuple(place.site for place in self.places)
        self._prepare()

    def _prepare(self) -> None:
        """Empty hands for a pass."""
        self.catch = Catch(self.places, self.stack, sequences_of(self.batch))
        self.catch.on_first = self._begin
        self.counted = Counted()
        self.watch: AttentionWatch | None = None
        if self.request.attention and self.stack.attentions:
            kind = GainWatch if self.request.gain else AttentionWatch
            self.watch = kind(attentions(self.stack), torch.Generator().manual_seed(self.request.seeds[0]))

    def _begin(self, first: Tensor) -> None:
        """Which tokens count is known when the first stream arrives."""
        self.counted = counted(self.model, self.batch, first, self.stack.name)
        if self.watch is not None:
            self.watch.sample(first.shape[0], first.shape[1], self.counted.mask)

    def run(self) -> Observation:
        """Plain pass, observed pass, geometry, attention, readouts: each needs the ones before it."""
        compare = self.request.check
        unchanged = Unchanged(self.model, self.batch) if compare else None
        output = self._observed_pass()
        forward = self._forward(output)
        observation = read_geometry(self.places, forward.shaped, self.counted)
        causal = any("causal" in (branch.sees or "") for branch in self.stack.branches)
        observation.first_loss = first_loss(
            self.model, self.batch, output, forward.loss, self.counted.mask, causal
        )
        if unchanged is not None and not unchanged.confirmed(output):
            if self.catch.out_of_place:
                raise BadInput(OVERWRITES)
            observation.note("attention not measured: the output changed while observed (not deterministic?)")
        elif self.watch is not None:
            read_attention(observation, self.watch, self.places)
        if not all(stream.requires_grad for stream in forward.streams):
            observation.note(
                "gradients not measured: the model cuts them off (detach, no_grad, a kernel without them)"
            )
        elif observation.finite:
            observation.readout = readout_of(output, forward.streams[-1], self.catch.shaped)
            for seed in self.request.seeds:
                self._directions(observation, seed, forward)
        return observation

    def _observed_pass(self) -> Any:
        """The model's output; without gradients where a kernel has none on this device."""
        try:
            return self._watched_pass()
        except NotImplementedError:
            self._prepare()
            with torch.no_grad():
                return self._watched_pass()

    def _watched_pass(self) -> Any:
        """Once more where `x += y` has overwritten a stream: then as x = x + y, which gives the same output."""
        output = self._hooked_pass()
        if self.catch.overwritten:
            self._prepare()
            self.catch.out_of_place = True
            output = self._hooked_pass()
        return output

    def _hooked_pass(self) -> Any:
        """Hooks live no longer than this."""
        with ExitStack() as hooks:
            if self.watch is not None:
                self.watch.attach(self.model, hooks)
                self.catch.calls = self.watch.operations()
                hooks.enter_context(self.watch)
            return self.catch.run(self.model, self.batch)

    def _forward(self, output: Any) -> _Forward:
        streams = self.catch.finished()
        shaped = [self.catch.shaped(stream) for stream in streams]
        return _Forward(streams, shaped, self.counted.mask, own_loss(output))

    def _directions(self, observation: Observation, seed: int, forward: _Forward) -> None:
        """Every readout and the nearby input of one seed, added to the observation."""
        generator = generator_for(seed, "readout")
        logs: dict[str, list[float]] = {}
        statistics: dict[str, Array] = {}
        readouts = self.request.readouts
        if readouts is None:
            readouts = (GRADIENTS.get(observation.readout, "token"),)
        weighed = self.request.weight_readout(readouts) if self.blocks else None
        for readout in readouts:
            if readout == "own" and forward.loss is None:
                observation.note(NO_LOSS)
                continue
            target, start = self._start(readout, forward, generator)
            weights = statistics if readout == weighed else None
            logs[readout] = self._backward(target, start, forward, weights)
        if self.request.pair:
            statistics["pair_growth"] = self._pair(forward, seed)
        observation.log_gradient.append(logs)
        observation.statistics.append(statistics)

    def _start(
        self, readout: str, forward: _Forward, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """What is differentiated: the model's own loss, or the last stream against a random gradient."""
        if readout == "own":
            assert forward.loss is not None
            return forward.loss, None
        start = output_gradient(forward.shaped[-1], readout, generator, forward.mask)
        return forward.streams[-1], self.catch.unshaped(start, forward.streams[-1])

    def _backward(
        self, target: Tensor, start: Tensor | None, forward: _Forward, weights: dict[str, Array] | None
    ) -> list[float]:
        """log |g|^2 at every site over that at the last; gradients of the matrices go into `weights`, where given."""
        listed = [] if weights is None else matrices(self.blocks)
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
        catch = Catch(self.places, self.stack, self.catch.sequences, out_of_place=self.catch.out_of_place)
        with torch.no_grad():
            catch.run(self.model, self.batch, replace_first=nearby_input(forward.streams[0].detach(), seed))
        near = [self.catch.shaped(stream) for stream in catch.finished()]
        return pair_growth(forward.shaped, near, forward.mask)
