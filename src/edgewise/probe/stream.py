"""Giants on a laptop: blocks exist one at a time, forward, and again (the same weights) for the backward pass."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgewise.adapters.describe import describe
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.probe.activations import mean_square, pair_separation, separation
from edgewise.probe.attention import AttentionWatch
from edgewise.probe.batches import default_batch, kept_tokens
from edgewise.probe.gradients import WeightLogs, matrices, output_gradient, own_loss, weight_logs
from edgewise.probe.isolation import call, random_streams
from edgewise.probe.materialise import Phantom
from edgewise.probe.measure import assemble
from edgewise.probe.places import Catch, places
from edgewise.probe.reading import NEARBY, NO_LOSS, Reading, Wanted, keep_attention, weight_arrays
from edgewise.probe.subjects import as_config, is_config
from edgewise.trace import Trace


def measure_stream(source: Any, batch: Any, wanted: Wanted, tokens: int | None) -> Trace:
    """Every seed is a new initialization; memory is one block (and its gradient), the embedding or the head."""
    if not is_config(source) or isinstance(config := as_config(source), dict):
        raise BadInput(
            f"stream=True needs a Hugging Face config (object, dict or preset), got {type(source).__name__}: "
            "weights that exist already are in memory."
        )
    readings = []
    with random_streams():
        for seed in wanted.seeds:
            phantom = Phantom(copy.deepcopy(config), seed)
            one = Wanted(wanted.readouts, wanted.attention, wanted.pair, [seed], check=False)
            readings.append(_Streamed(phantom, batch, one, tokens).run())
    described = describe(config, tokens=readings[0].tokens)
    assert isinstance(described, Architecture)
    notes = dict.fromkeys(note for reading in readings for note in reading.notes)
    said = [f"measured: {config.model_type}, {readings[0].tokens} tokens, {len(readings)} seeds"]
    said += ["each a new initialization, streamed block by block", *notes]
    return assemble(readings, described, "; ".join(said))


class _Streamed:
    def __init__(self, phantom: Phantom, batch: Any, wanted: Wanted, tokens: int | None) -> None:
        self.phantom, self.model, self.wanted = phantom, phantom.model, wanted
        self.found = phantom.sites()
        self.places = places(self.found)
        self.blocks = [block.name for block in self.found.blocks]
        every = {block.name for stack in self.found.stacks for block in stack.blocks}
        if len(self.found.stacks) > 1:
            raise BadInput(f"{type(self.model).__name__} has several stacks of blocks; streaming follows one.")
        self.outside = phantom.outside(every)
        self.generator = torch.Generator().manual_seed(wanted.seeds[0])
        self.batch = _on_cpu(self.model, self.generator, tokens) if batch is None else batch
        self.catch = Catch(self.places)
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.near: Tensor | None = None
        self.near_streams: dict[int, Tensor] = {}
        self.busy = False
        self.last: Tensor | None = None

    def run(self) -> Reading:
        with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
            output, watch = self._forward(stack)
            self.shape = self.catch.finished()[0].shape[:2]
            streams = [self._shaped(stream) for stream in self.catch.finished()]
            kept = kept_tokens(self.batch, tuple(streams[0].shape[:2]))  # type: ignore[arg-type]
            reading = self._geometry(streams, kept)
            if watch is not None:
                keep_attention(reading, watch, self.places)
            logs, statistics = self._backward(own_loss(output), streams, kept, reading)
            if self.wanted.pair:
                apart = [pair_separation(x, self._shaped(self.near_streams[i]), kept) for i, x in enumerate(streams)]
                statistics["pair_growth"] = np.diff(np.log(apart), prepend=math.log(apart[0]))
            reading.log_gradient.append(logs)
            reading.statistics.append(statistics)
        return reading

    def _forward(self, stack: ExitStack) -> tuple[Any, AttentionWatch | None]:
        """The model's own forward pass; parts wake when they are called and sleep when they are done."""
        watch = AttentionWatch(self.found.blocks, self.generator) if self.wanted.attention else None
        for name in self.outside:
            part = self.model.get_submodule(name)
            stack.callback(part.register_forward_pre_hook(self._wake(name, False), prepend=True).remove)
            stack.callback(part.register_forward_hook(self._outside_done(name)).remove)
            if any(p is not None for p in part._parameters.values()) and any(True for _ in part.children()):
                self.phantom.wake(name, recurse=False)  # bare parameters may be used before the module is called
        self.catch.counted = watch.sample if watch is not None else None
        for name in self.blocks:
            block = self.model.get_submodule(name)
            stack.callback(block.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True).remove)
        self.catch.attach(self.model, stack)
        if watch is not None:
            watch.attach(self.model, stack)
        for index, name in enumerate(self.blocks):
            block = self.model.get_submodule(name)
            stack.callback(block.register_forward_hook(self._leave(index, name, watch), with_kwargs=True).remove)
        if watch is None:
            return call(self.model, self.batch), None
        with watch:
            return call(self.model, self.batch), watch

    def _wake(self, name: str, recurse: bool) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self.phantom.wake(name, recurse)

        return hook

    def _outside_done(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self.last is None and not self.phantom.tied(name):  # what follows the last block has a graph: kept
                self.phantom.sleep(name, recurse=False)

        return hook

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG001
            if not self.busy:
                self.phantom.wake(name, recurse=True)
                self.calls.append((inputs, named))

        return hook

    def _leave(self, index: int, name: str, watch: AttentionWatch | None) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
            if self.busy:
                return None
            if self.wanted.pair:
                self._nearby(module, inputs, named, watch)
            self.phantom.sleep(name, recurse=True)
            return self._open_graph(output) if index + 1 == len(self.blocks) else None

        return hook

    def _open_graph(self, output: Any) -> Any:
        """From the last block on, a graph: the model's own loss is differentiated down to here."""
        stream = output if isinstance(output, Tensor) else output[0]
        self.last = stream.detach().requires_grad_()
        torch.set_grad_enabled(True)
        return self.last if isinstance(output, Tensor) else (self.last, *output[1:])

    def _nearby(
        self, block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], watch: AttentionWatch | None
    ) -> None:
        """The nearby input goes through the block while it is awake; its streams are kept apart."""
        stream = _stream(inputs, named)
        if self.near is None:
            noise = torch.randn(stream.shape, generator=self.generator).to(stream)
            scale = stream.square().mean(-1, keepdim=True).sqrt()
            self.near = stream + NEARBY.get(stream.dtype, 0.1) * scale * noise
        kept, self.catch.streams = self.catch.streams, {}
        output = self._again(block, inputs, named, self.near, watch)
        self.near_streams |= self.catch.streams
        self.catch.streams = kept
        self.near = output

    def _again(
        self, block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], stream: Tensor,
        watch: AttentionWatch | None = None,
    ) -> Tensor:  # fmt: skip
        inputs, named = _with_stream(inputs, named, stream)
        self.busy = True
        if watch is not None:
            watch.paused = True
        output = block(*inputs, **named)
        self.busy = False
        if watch is not None:
            watch.paused = False
        return output if isinstance(output, Tensor) else output[0]

    def _geometry(self, streams: Sequence[Tensor], kept: Tensor | None) -> Reading:
        norm = np.array([mean_square(x, kept) for x in streams])
        if not np.isfinite(norm).all():
            raise BadInput("the stream leaves the range of floating point; measure fewer layers, or lower the gains.")
        apart = np.array([separation(x, kept) for x in streams])
        names = tuple(place.site for place in self.places)
        return Reading(names, streams[0].shape[1], streams[0].shape[2], norm, apart)

    def _starts(self, loss: Tensor | None, kept: Tensor | None, reading: Reading) -> dict[str, Tensor]:
        """dLoss/dx at the last site for every readout."""
        assert self.last is not None
        starts = {}
        for readout in self.wanted.readouts:
            if readout != "own":
                starts[readout] = output_gradient(self.last, readout, self.generator, kept)
            elif loss is None:
                reading.notes.append(NO_LOSS)
            else:
                starts[readout] = torch.autograd.grad(loss, self.last)[0]
        return starts

    def _backward(
        self, loss: Tensor | None, streams: Sequence[Tensor], kept: Tensor | None, reading: Reading
    ) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """Block by block from the end; every readout's gradient is kept at unit size and its logarithm apart."""
        starts = self._starts(loss, kept, reading)
        for name in self.outside:
            self.phantom.sleep(name, recurse=False)
        logs = {readout: {len(self.places) - 1: _log(g, kept)} for readout, g in starts.items()}
        weighed = "token" if "token" in starts else next(iter(starts), None)
        weights: WeightLogs = {}
        for i in reversed(range(len(self.blocks))):
            self.phantom.wake(self.blocks[i], recurse=True)
            with torch.enable_grad():
                starts = self._pull(i, starts, logs, kept, weighed, weights)
            self.phantom.sleep(self.blocks[i], recurse=True)
        found = {readout: [values[n] - values[len(self.places) - 1] for n in range(len(self.places))]
                 for readout, values in logs.items()}  # fmt: skip
        offset = logs[weighed][len(self.places) - 1] + math.log(streams[0].shape[0]) if weighed else 0.0
        return found, weight_arrays(self.places, weights, offset) if weighed else {}

    def _pull(
        self, i: int, starts: dict[str, Tensor], logs: dict[str, dict[int, float]], kept: Tensor | None,
        weighed: str | None, weights: WeightLogs,
    ) -> dict[str, Tensor]:  # fmt: skip
        """The gradients at the block's input, from those at its output; middles and matrices on the way."""
        inputs, named = self.calls[i]
        block = self.model.get_submodule(self.blocks[i])
        entry = _stream(inputs, named).detach().requires_grad_()
        self.catch.streams = {}
        output = self._again(block, inputs, named, entry)
        wanted = [n for n, place in enumerate(self.places) if place.block == i and place.end == "input"]
        middles = [self.catch.streams[n] for n in wanted]
        before = max(n for n, place in enumerate(self.places) if place.block in (i - 1, None) and n < self._first(i))
        listed = [matrix for matrix in matrices(self.found.blocks) if matrix.block == i]
        names = list(dict.fromkeys(name for matrix in listed for name in matrix.projection.parameters))
        pulled = {}
        for count, (readout, start) in enumerate(starts.items(), start=1):
            parameters = [self.model.get_parameter(name).requires_grad_() for name in names if readout == weighed]
            gradients = torch.autograd.grad(
                output, [entry, *middles, *parameters], start, retain_graph=count < len(starts), allow_unused=True
            )
            scale = logs[readout].get(-1, 0.0)
            for n, gradient in zip([before, *wanted], gradients, strict=False):
                logs[readout][n] = _log(self._shaped(gradient), kept) + scale
            if readout == weighed:
                each = dict(zip(names, gradients[1 + len(middles) :], strict=True))
                weights |= {place: log + scale for place, log in weight_logs(listed, each).items()}
            size = math.exp(0.5 * (logs[readout][before] - scale))
            logs[readout][-1] = logs[readout][before]
            pulled[readout] = gradients[0] / size if size > 0 else gradients[0]
        return pulled

    def _shaped(self, stream: Tensor) -> Tensor:
        return stream.reshape(*self.shape, -1)

    def _first(self, i: int) -> int:
        return min(n for n, place in enumerate(self.places) if place.block == i)


def _log(gradient: Tensor | None, kept: Tensor | None) -> float:
    if gradient is None:
        raise BadInput("no gradient reaches the stream: the loss does not depend on it.")
    square = mean_square(gradient, kept) * gradient.shape[-1]
    return math.log(square) if square > 0 else -math.inf


def _stream(inputs: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
    value = next((v for v in inputs if isinstance(v, Tensor)), None)
    return named["hidden_states"] if value is None else value


def _with_stream(
    inputs: tuple[Any, ...], named: dict[str, Any], stream: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    for position, value in enumerate(inputs):
        if isinstance(value, Tensor):
            return (*inputs[:position], stream, *inputs[position + 1 :]), named
    return inputs, named | {"hidden_states": stream}


def _on_cpu(model: nn.Module, generator: torch.Generator, tokens: int | None) -> Any:
    """A default batch is made on the model's device, which here holds nothing."""
    return default_batch(model, generator, tokens, torch.device("cpu"))
