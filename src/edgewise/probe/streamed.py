"""A model that does not fit in memory, measured one block at a time.

Forward: the model's own pass through blocks that wake when the stream arrives and sleep when it has passed.
Backward, by recomputation: from the last block on, each is drawn again (the same weights), run with a graph and
differentiated.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.describe import describe
from edgewise.models.inputs import default_batch
from edgewise.models.names.record import ModelSites
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import Trace
from edgewise.probe.attention import Attention, AttentionWatch
from edgewise.probe.batches import Counted, counted
from edgewise.probe.block_call import BlockCall, stream_of
from edgewise.probe.geometry import generator_for, nearby_input, pair_growth
from edgewise.probe.gradients import (
    Matrix,
    WeightLogs,
    WeightSquares,
    add_squares,
    log_norms,
    matrices,
    no_squares,
    output_gradient,
    own_loss,
    parameters_of,
    weight_logs,
)
from edgewise.probe.isolation import call, random_streams
from edgewise.probe.materialise import Phantom
from edgewise.probe.observation import (
    NO_LOSS,
    Observation,
    Request,
    read_attention,
    read_geometry,
    trace_of,
    weight_arrays,
)
from edgewise.probe.places import Catch, places
from edgewise.probe.readout import first_loss
from edgewise.probe.subjects import Subject


class StreamedForward:
    """Afterwards: the streams, the arguments of every block (for the way back) and the last stream with a graph."""

    def __init__(self, phantom: Phantom, request: Request) -> None:
        self.phantom, self.model, self.request = phantom, phantom.model, request
        self.sites = phantom.sites()
        if len(self.sites.stacks) > 1:
            raise BadInput(
                f"{type(self.model).__name__} has several stacks of blocks; streaming follows one."
            )
        self.places = places(self.sites)
        self.blocks = [block.name for block in self.sites.blocks]
        self.outside = phantom.outside(set(self.blocks))
        self.catch = Catch(self.places)
        self.calls: list[BlockCall] = []
        self.caught: list[Tensor] = []  # the streams, after `run`
        self.near: Tensor | None = None  # the nearby input, as far as it has come
        self.near_by_site: dict[int, Tensor] = {}
        self.last: Tensor | None = None
        self.rerunning = False
        self.batch: Any = None
        self.counted = Counted()
        self.catch.on_first = self._begin
        self.watch: AttentionWatch | None = None
        if request.attention:
            self.watch = AttentionWatch(
                _attentions(self.sites), torch.Generator().manual_seed(request.seeds[0])
            )

    def _begin(self, first: Tensor) -> None:
        """Which tokens count is known when the first stream arrives, and does not change when a block runs again."""
        if self.rerunning:
            return
        self.counted = counted(self.model, self.batch, first, self.sites.stacks[0].name)
        if self.watch is not None:
            self.watch.sample(first.shape[0], first.shape[1], self.counted.mask)

    def run(self, batch: Any, stack: ExitStack) -> Any:
        """The model's output; hooks live as long as the stack."""
        self.batch = batch
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
        return [self.shaped(self.near_by_site[n]) for n in range(len(self.places))]

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
                self.phantom.wake(
                    name, recurse=False
                )  # bare parameters may be used before the module is called
        for name in self.blocks:
            block = self.model.get_submodule(name)
            stack.callback(
                block.register_forward_pre_hook(self._enter(name), prepend=True, with_kwargs=True).remove
            )
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
            if self.last is None and not self.phantom.tied(
                name
            ):  # what follows the last block has a graph and stays
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
            if self.request.pair:
                self._nearby(self.calls[index])
            self.phantom.sleep(name, recurse=True)
            return self._open_graph(output) if index + 1 == len(self.blocks) else None

        return hook

    def _nearby(self, call_: BlockCall) -> None:
        """The nearby input goes through the block while it is awake; its streams are stored apart."""
        near = nearby_input(call_.stream, self.request.seeds[0]) if self.near is None else self.near
        own, self.catch.streams = self.catch.streams, {}
        self.near = self.again(call_, near)
        self.near_by_site |= self.catch.streams
        self.catch.streams = own

    def _open_graph(self, output: Any) -> Any:
        """From the last block on, a graph: the model's own loss is differentiated down to here."""
        self.last = stream_of(output).detach().requires_grad_()
        torch.set_grad_enabled(True)
        return self.last if isinstance(output, Tensor) else (self.last, *output[1:])


class StreamedBackward:
    """log |g|^2 at every site per readout; gradients stay near unit size, the powers of two are recorded apart."""

    def __init__(self, forward: StreamedForward, request: Request, mask: Tensor | None) -> None:
        self.forward, self.request, self.mask = forward, request, mask
        self.model, self.phantom, self.places = forward.model, forward.phantom, forward.places
        self.logs: dict[str, dict[int, float]] = {}  # readout, site
        self.taken_out: dict[str, float] = {}  # readout: log of what |g|^2 was divided by
        self.weights: WeightLogs = {}
        self.weighed: str | None = None

    def run(
        self, loss: Tensor | None, observation: Observation
    ) -> tuple[dict[str, list[float]], dict[str, Any]]:
        """(log |g|^2 over that at the last site by readout, gradients of the matrices)."""
        gradients = self._starts(loss, observation)
        last = len(self.places) - 1
        self.weighed = self.request.weight_readout(tuple(gradients))
        self.logs = {readout: {last: self._log(g, last)} for readout, g in gradients.items()}
        self.taken_out = dict.fromkeys(gradients, 0.0)
        for name in self.forward.outside:
            self.phantom.sleep(name, recurse=False)
        for i in reversed(range(len(self.forward.blocks))):
            self.phantom.wake(self.forward.blocks[i], recurse=True)
            with torch.enable_grad():
                gradients = self._pull(i, gradients)
            self.phantom.sleep(self.forward.blocks[i], recurse=True)
        relative = {r: [logs[n] - logs[last] for n in range(last + 1)] for r, logs in self.logs.items()}
        if self.weighed is None:
            return relative, {}
        sequences = self.forward.caught[0].shape[0]
        return relative, weight_arrays(
            self.places, self.weights, self.logs[self.weighed][last] + math.log(sequences)
        )

    def _starts(self, loss: Tensor | None, observation: Observation) -> dict[str, Tensor]:
        """dLoss/dx at the last site for every readout."""
        stream, starts = self.forward.last, {}
        assert stream is not None
        generator = generator_for(self.request.seeds[0], "readout")
        for readout in self.request.readouts or ("token",):
            if readout != "own":
                starts[readout] = output_gradient(stream, readout, generator, self.mask)
            elif loss is None:
                observation.note(NO_LOSS)
            else:
                starts[readout] = torch.autograd.grad(loss, stream)[0]
        return starts

    def _pull(self, i: int, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """The gradients at the block's input, from those at its output; middles and matrices on the way."""
        catch, call = self.forward.catch, self.forward.calls[i]
        catch.streams = {}
        entry = call.stream.detach().requires_grad_()
        output = self.forward.again(call, entry)
        inside = [n for n, place in enumerate(self.places) if place.block == i and place.end == "input"]
        before = min(n for n, place in enumerate(self.places) if place.block == i) - 1
        streams = {before: entry} | {n: catch.streams[n] for n in inside}
        pulled = {}
        for left, readout in zip(reversed(range(len(gradients))), list(gradients), strict=True):
            self._backward(i, readout, output, gradients[readout], streams, retain=left > 0)
            assert entry.grad is not None
            pulled[readout] = self._near_one(readout, entry.grad)
            for stream in streams.values():
                stream.grad = None
        catch.streams = {}  # their graph holds the block's weights, which are about to be dropped
        return pulled

    def _backward(
        self, i: int, readout: str, output: Tensor, gradient: Tensor, streams: dict[int, Tensor], retain: bool
    ) -> None:
        listed = [matrix for matrix in matrices(self.forward.sites.blocks) if matrix.block == i]
        weighing = [(name, self.model.get_parameter(name)) for name in parameters_of(listed)]
        weighing = weighing if readout == self.weighed else []
        squares = _count_squares(listed, weighing)
        inputs = [*streams.values(), *(parameter for _, parameter in weighing)]
        torch.autograd.backward(output, gradient, retain_graph=retain, inputs=inputs)
        scale = self.taken_out[readout]
        for n, stream in streams.items():
            self.logs[readout][n] = self._log(stream.grad, n) + scale
        if weighing:
            self.weights |= {place: log + scale for place, log in weight_logs(squares).items()}

    def _log(self, gradient: Tensor | None, n: int) -> float:
        shaped = None if gradient is None else self.forward.shaped(gradient)
        return log_norms([shaped], [self.places[n].site], self.mask)[0]

    def _near_one(self, readout: str, gradient: Tensor) -> Tensor:
        """Divided by a power of two, which rounds nothing: the result is that of a network in memory, bit for bit."""
        _, exponent = math.frexp(float(gradient.abs().max()))
        self.taken_out[readout] += 2 * exponent * math.log(2)
        return gradient * 2.0**-exponent


def _count_squares(listed: Sequence[Matrix], parameters: Sequence[tuple[str, Tensor]]) -> WeightSquares:
    """Squared gradients by matrix, filled while the backward pass runs: each is dropped as soon as it is counted."""
    squares = no_squares(listed)

    def hook_of(name: str) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            add_squares(squares, listed, name, parameter.grad)
            parameter.grad = None

        return hook

    for name, parameter in parameters:
        parameter.requires_grad_().register_post_accumulate_grad_hook(hook_of(name))
    return squares


def measure_stream(target: Subject, batch: Any, request: Request, tokens: int | None) -> Trace:
    """Every seed is a new initialization; memory: one block (and one matrix's gradient), the embedding or the head."""
    if (config := target.config) is None:
        raise BadInput(
            f"stream=True needs a Hugging Face config (object, dict, file or preset), got {target.name}: "
            "weights that exist already are in memory."
        )
    observations = []
    with random_streams():
        for seed in request.seeds:
            phantom = Phantom(copy.deepcopy(config), seed)
            observations.append(_read(phantom, batch, replace(request, seeds=[seed], check=False), tokens))
    description = describe(config, tokens=observations[0].tokens)
    assert isinstance(description, Architecture)
    notes = dict.fromkeys(
        note for observation in observations for note in (observation.left_out, *observation.notes)
    )
    notes.pop("", None)
    parts = [f"measured: {config.model_type}, {observations[0].tokens} tokens, {len(observations)} seeds"]
    parts += ["each a new initialization, streamed block by block", *notes]
    return trace_of(observations, description, "; ".join(parts))


def _read(phantom: Phantom, batch: Any, request: Request, tokens: int | None) -> Observation:
    """Forward, geometry, backward: the same draws as of a network in memory with these weights."""
    if batch is None:  # on the processor: the model's own device holds nothing
        generator = torch.Generator().manual_seed(request.seeds[0])
        batch = default_batch(phantom.model, generator, tokens, torch.device("cpu"))
    with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
        forward = StreamedForward(phantom, request)
        output = forward.run(batch, stack)
        streams = forward.streams()
        mask = forward.counted.mask
        observation = read_geometry(forward.places, streams, forward.counted)
        if forward.watch is not None:
            read_attention(observation, forward.watch, forward.places)
        causal = "MaskedLM" not in type(phantom.model).__name__
        observation.first_loss = first_loss(phantom.model, batch, output, own_loss(output), mask, causal)
        if not observation.finite:
            return observation
        logs, statistics = StreamedBackward(forward, request, mask).run(own_loss(output), observation)
        if request.pair:
            statistics["pair_growth"] = pair_growth(streams, forward.near_streams(), mask)
        observation.log_gradient.append(logs)
        observation.statistics.append(statistics)
    return observation


def _attentions(sites: ModelSites) -> list[Attention]:
    return [Attention(block.index, block.attention.name, block.attention.heads) for block in sites.blocks]
