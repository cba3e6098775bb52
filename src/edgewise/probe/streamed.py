"""Giants on a laptop: blocks exist one at a time, forward, and again (the same weights) for the backward pass.

The model's own forward pass through blocks that wake when the stream arrives and sleep when it has passed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.adapters.describe import describe
from edgewise.architecture import Architecture
from edgewise.errors import BadInput
from edgewise.probe.attention import AttentionWatch
from edgewise.probe.batches import default_batch, kept_tokens
from edgewise.probe.block_call import BlockCall, stream_of
from edgewise.probe.gradients import own_loss
from edgewise.probe.isolation import call, random_streams
from edgewise.probe.materialise import Phantom
from edgewise.probe.measure import assemble
from edgewise.probe.places import Catch, places
from edgewise.probe.reading import Reading, Wanted, geometry, keep_attention
from edgewise.probe.streamed_backward import StreamedBackward
from edgewise.probe.subjects import as_config, is_config
from edgewise.probe.whole import nearby_input, pair_growth
from edgewise.trace import Trace


class StreamedForward:
    """Afterwards: the streams, the arguments of every block (for the way back) and the last stream with a graph."""

    def __init__(self, phantom: Phantom, wanted: Wanted) -> None:
        self.phantom, self.model, self.wanted = phantom, phantom.model, wanted
        self.found = phantom.sites()
        if len(self.found.stacks) > 1:
            raise BadInput(f"{type(self.model).__name__} has several stacks of blocks; streaming follows one.")
        self.places = places(self.found)
        self.blocks = [block.name for block in self.found.blocks]
        self.outside = phantom.outside(set(self.blocks))
        self.catch = Catch(self.places)
        self.calls: list[BlockCall] = []
        self.near: Tensor | None = None  # the nearby input, as far as it has come
        self.near_caught: dict[int, Tensor] = {}
        self.last: Tensor | None = None
        self.rerunning = False
        self.watch: AttentionWatch | None = None
        if wanted.attention:
            self.watch = AttentionWatch(self.found.blocks, torch.Generator().manual_seed(wanted.seeds[0]))
            self.catch.counted = self.watch.sample

    def run(self, batch: Any, stack: ExitStack) -> Any:
        """The model's output; hooks live as long as the stack."""
        self._attach(stack)
        with ExitStack() as watching:
            if self.watch is not None:
                watching.enter_context(self.watch)
            output = call(self.model, batch)
        self.caught = self.catch.finished()
        return output

    def streams(self) -> list[Tensor]:
        """Each (sequences, tokens, width)."""
        return [self.shaped(stream) for stream in self.caught]

    def near_streams(self) -> list[Tensor]:
        return [self.shaped(self.near_caught[n]) for n in range(len(self.places))]

    def shaped(self, stream: Tensor) -> Tensor:
        return stream.reshape(*self.caught[0].shape[:2], -1)  # OPT flattens its middle

    def again(self, call_: BlockCall, stream: Tensor) -> Tensor:
        """The block that is awake, on another stream; attention is not counted twice."""
        self.rerunning = True
        if self.watch is not None:
            self.watch.paused = True
        try:
            return call_.on(stream).run(self.model.get_submodule(call_.module))
        finally:
            self.rerunning = False
            if self.watch is not None:
                self.watch.paused = False

    def _attach(self, stack: ExitStack) -> None:
        """Order matters: parts wake before anything reads them, and blocks sleep after everything has."""
        for name in self.outside:
            part = self.model.get_submodule(name)
            stack.callback(part.register_forward_pre_hook(self._wake(name), prepend=True).remove)
            stack.callback(part.register_forward_hook(self._outside_done(name)).remove)
            if any(p is not None for p in part._parameters.values()) and any(True for _ in part.children()):
                self.phantom.wake(name, recurse=False)  # bare parameters may be used before the module is called
        for name in self.blocks:
            block = self.model.get_submodule(name)
            stack.callback(block.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True).remove)
        self.catch.attach(self.model, stack)
        if self.watch is not None:
            self.watch.attach(self.model, stack)
        for index, name in enumerate(self.blocks):
            block = self.model.get_submodule(name)
            stack.callback(block.register_forward_hook(self._leave(index, name)).remove)

    def _wake(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self.phantom.wake(name, recurse=False)

        return hook

    def _outside_done(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self.last is None and not self.phantom.tied(name):  # what follows the last block has a graph: kept
                self.phantom.sleep(name, recurse=False)

        return hook

    def _enter(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:  # noqa: ARG001
            if not self.rerunning:
                self.phantom.wake(name, recurse=True)
                self.calls.append(BlockCall(name, inputs, named))

        return hook

    def _leave(self, index: int, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> Any:  # noqa: ARG001
            if self.rerunning:
                return None
            if self.wanted.pair:
                self._nearby(self.calls[index])
            self.phantom.sleep(name, recurse=True)
            return self._open_graph(output) if index + 1 == len(self.blocks) else None

        return hook

    def _nearby(self, call_: BlockCall) -> None:
        """The nearby input goes through the block while it is awake; its streams are kept apart."""
        near = nearby_input(call_.stream, self.wanted.seeds[0]) if self.near is None else self.near
        kept, self.catch.streams = self.catch.streams, {}
        self.near = self.again(call_, near)
        self.near_caught |= self.catch.streams
        self.catch.streams = kept

    def _open_graph(self, output: Any) -> Any:
        """From the last block on, a graph: the model's own loss is differentiated down to here."""
        self.last = stream_of(output).detach().requires_grad_()
        torch.set_grad_enabled(True)
        return self.last if isinstance(output, Tensor) else (self.last, *output[1:])


def measure_stream(source: Any, batch: Any, wanted: Wanted, tokens: int | None) -> Trace:
    """Every seed is a new initialization; memory: one block (and one matrix's gradient), the embedding or the head."""
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
            readings.append(read_streamed(phantom, batch, one, tokens))
    described = describe(config, tokens=readings[0].tokens)
    assert isinstance(described, Architecture)
    notes = dict.fromkeys(note for reading in readings for note in reading.notes)
    said = [f"measured: {config.model_type}, {readings[0].tokens} tokens, {len(readings)} seeds"]
    said += ["each a new initialization, streamed block by block", *notes]
    return assemble(readings, described, "; ".join(said))


def read_streamed(phantom: Phantom, batch: Any, wanted: Wanted, tokens: int | None) -> Reading:
    """Forward, geometry, backward: the same draws as of a network in memory with these weights."""
    seed = wanted.seeds[0]
    if batch is None:  # made for the processor: the model's own device holds nothing
        batch = default_batch(phantom.model, torch.Generator().manual_seed(seed), tokens, torch.device("cpu"))
    with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
        forward = StreamedForward(phantom, wanted)
        output = forward.run(batch, stack)
        streams = forward.streams()
        kept = kept_tokens(batch, tuple(streams[0].shape[:2]))  # type: ignore[arg-type]
        reading = geometry(forward.places, streams, kept)
        if forward.watch is not None:
            keep_attention(reading, forward.watch, forward.places)
        if not reading.finite:
            return reading
        logs, statistics = StreamedBackward(forward, wanted, kept).run(own_loss(output), reading)
        if wanted.pair:
            statistics["pair_growth"] = pair_growth(streams, forward.near_streams(), kept)
        reading.log_gradient.append(logs)
        reading.statistics.append(statistics)
    return reading
