"""A model that does not fit in memory, measured one block at a time.

Forward: the model's own pass through blocks that wake when the stream arrives and sleep when it has passed.
Backward, by recomputation: from the last block on, each is drawn again (the same weights), run with a graph and
differentiated.
"""

from __future__ import annotations

import copy
import ctypes
import math
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.models.describe import describe
from edgewise.models.inputs import call, default_batch
from edgewise.models.model_map import sites
from edgewise.models.names.model_sites import ModelSites
from edgewise.models.state import random_streams
from edgewise.nouns.architecture import Architecture
from edgewise.nouns.trace import Trace
from edgewise.probe.attention_rows import AttentionLocation, AttentionWatch
from edgewise.probe.batches import Counted, counted
from edgewise.probe.geometry import (
    StreamSite,
    WeightLogs,
    add_squares,
    generator_for,
    log_norms,
    matrices,
    nearby_input,
    no_squares,
    output_gradient,
    own_loss,
    pair_growth,
    parameters_of,
    weight_logs,
)
from edgewise.probe.observation import (
    NO_LOSS,
    NetworkObservation,
    Request,
    read_attention,
    read_geometry,
    trace_of,
    weight_arrays,
)
from edgewise.probe.readout import first_loss
from edgewise.probe.streams import BlockCall, stream_of
from edgewise.probe.subjects import Measurable, model_class


class StreamedForward:
    """Afterwards: the streams, the arguments of every block (for the way back) and the last stream with a graph."""

    def __init__(self, phantom: Phantom, request: Request) -> None:
        self.phantom, self.model, self.request = phantom, phantom.model, request
        self.sites = phantom.sites()
        if len(self.sites.stacks) > 1:
            raise BadInput(
                f"{type(self.model).__name__} has several stacks of blocks; streaming follows one."
            )
        self.places = _hooked_sites(self.sites)
        self.blocks = [block.name for block in self.sites.blocks]
        self.outside = phantom.outside(set(self.blocks))
        self.calls: list[BlockCall] = []
        self.passing: dict[int, Tensor] = {}  # by site, since the last time it was emptied
        self.versions: dict[int, int] = {}
        self.caught: list[Tensor] = []  # the streams, after `run`
        self.near: Tensor | None = None  # the nearby input, as far as it has come
        self.near_by_site: dict[int, Tensor] = {}
        self.last: Tensor | None = None
        self.rerunning = False
        self.batch: object = None
        self.counted = Counted()
        self.watch: AttentionWatch | None = None
        if request.attention:
            attentions = [
                AttentionLocation(b.index, b.attention.name, heads, heads_of_call=heads)
                for b in self.sites.blocks
                for heads in [b.attention.heads]
            ]
            self.watch = AttentionWatch(attentions, torch.Generator().manual_seed(request.seeds[0]))

    def run(self, batch: object, stack: ExitStack) -> object:
        """The model's output; hooks live as long as the stack."""
        self.batch = batch
        self._attach(stack)
        with ExitStack() as watching:
            if self.watch is not None:
                watching.enter_context(self.watch)
            output = call(self.model, batch)
        missing = [site.name for n, site in enumerate(self.places) if n not in self.passing]
        if missing:
            raise BadInput(
                f"the forward pass did not reach {', '.join(missing[:4])}: every site must be read."
            )
        changed = [s.name for n, s in enumerate(self.places) if self.passing[n]._version != self.versions[n]]
        if changed:
            raise BadInput(
                f"the model overwrites its stream in place at {', '.join(changed[:4])}; it cannot be read."
            )
        self.caught = [self.passing[n] for n in range(len(self.places))]
        return output

    def shaped_streams(self, streams: Mapping[int, Tensor] | None = None) -> list[Tensor]:
        """Return the streams, or others by site, each (sequences, tokens, width)."""
        streams = dict(enumerate(self.caught)) if streams is None else streams
        return [self.shaped(streams[n]) for n in range(len(self.places))]

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
            stack.callback(part.register_forward_pre_hook(partial(self._wake, name), prepend=True).remove)
            stack.callback(part.register_forward_hook(partial(self._sleep, name)).remove)
            if any(p is not None for p in part._parameters.values()) and any(True for _ in part.children()):
                # Bare parameters may be used before the module is called.
                self.phantom.wake(name, recurse=False)
        for name in self.blocks:
            block = self.model.get_submodule(name)
            stack.callback(
                block.register_forward_pre_hook(
                    partial(self._enter, name), prepend=True, with_kwargs=True
                ).remove
            )
        for n, site in enumerate(self.places):
            module = self.model.get_submodule(site.module)
            if site.end == "output":
                stack.callback(module.register_forward_hook(partial(self._keep_output, n)).remove)
            else:
                stack.callback(
                    module.register_forward_pre_hook(partial(self._keep_input, n), with_kwargs=True).remove
                )
        if self.watch is not None:
            self.watch.attach(self.model, stack)
        for index, name in enumerate(self.blocks):
            block = self.model.get_submodule(name)
            stack.callback(block.register_forward_hook(partial(self._leave, index)).remove)

    def _keep_output(self, n: int, _: nn.Module, __: object, output: object) -> None:
        self._keep(n, stream_of(output))

    def _keep_input(self, n: int, _: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        self._keep(n, BlockCall(self.places[n].module, inputs, named).stream)

    def _keep(self, n: int, stream: Tensor) -> None:
        if n in self.passing:
            raise BadInput(
                f"{self.places[n].module} ran twice in one forward pass, expected once. The layers of a shared "
                "block cannot be told apart: measure a model whose layers have modules of their own."
            )
        self.passing[n], self.versions[n] = stream, stream._version
        if n == 0 and not self.rerunning:  # only now it is known which tokens count
            first = stream[None] if stream.ndim == 2 else stream
            if first.ndim != 3:
                raise BadInput(
                    f"a stream has shape {tuple(stream.shape)}; expected (sequences, tokens, width)."
                )
            self.counted = counted(self.model, self.batch, first, self.sites.stacks[0].name)
            if self.watch is not None:
                self.watch.sample(first.shape[0], first.shape[1], self.counted.mask)

    def _wake(self, name: str, *_: object) -> None:
        self.phantom.wake(name, recurse=False)

    def _sleep(self, name: str, *_: object) -> None:
        """Unless it follows the last block: that has a graph and stays."""
        if self.last is None and not self.phantom.tied(name):
            self.phantom.sleep(name, recurse=False)

    def _enter(self, name: str, _: nn.Module, inputs: tuple[object, ...], named: dict[str, object]) -> None:
        if not self.rerunning:
            self.phantom.wake(name, recurse=True)
            self.calls.append(BlockCall(name, inputs, named))

    def _leave(self, index: int, _: nn.Module, __: object, output: Any) -> object:
        if self.rerunning:
            return None
        if self.request.pair:  # goes through the block while it is awake; its streams are stored apart
            block_call = self.calls[index]
            near = nearby_input(block_call.stream, self.request.seeds[0]) if self.near is None else self.near
            own, self.passing = self.passing, {}
            self.near = self.again(block_call, near)
            self.near_by_site |= self.passing
            self.passing = own
        self.phantom.sleep(self.blocks[index], recurse=True)
        if index + 1 < len(self.blocks):
            return None
        # From the last block on, a graph: the model's own loss is differentiated down to here.
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
        self, loss: Tensor | None, observation: NetworkObservation
    ) -> tuple[dict[str, list[float]], dict[str, Array]]:
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

    def _starts(self, loss: Tensor | None, observation: NetworkObservation) -> dict[str, Tensor]:
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
        block_call = self.forward.calls[i]
        self.forward.passing = {}
        entry = block_call.stream.detach().requires_grad_()
        output = self.forward.again(block_call, entry)
        inside = [n for n, place in enumerate(self.places) if place.block == i and place.end == "input"]
        before = min(n for n, place in enumerate(self.places) if place.block == i) - 1
        streams = {before: entry} | {n: self.forward.passing[n] for n in inside}
        pulled = {}
        for left, readout in zip(reversed(range(len(gradients))), list(gradients), strict=True):
            self._backward(i, readout, output, gradients[readout], streams, retain=left > 0)
            assert entry.grad is not None
            pulled[readout] = self._near_one(readout, entry.grad)
            for stream in streams.values():
                stream.grad = None
        self.forward.passing = {}  # their graph holds the block's weights, which are about to be dropped
        return pulled

    def _backward(
        self, i: int, readout: str, output: Tensor, gradient: Tensor, streams: dict[int, Tensor], retain: bool
    ) -> None:
        listed = [matrix for matrix in matrices(self.forward.sites.blocks) if matrix.block == i]
        weighing = [(name, self.model.get_parameter(name)) for name in parameters_of(listed)]
        weighing = weighing if readout == self.weighed else []
        squares = no_squares(listed)

        def count(name: str, parameter: Tensor) -> None:
            """Each gradient is dropped as soon as it is counted, while the backward pass runs."""
            assert parameter.grad is not None
            add_squares(squares, listed, name, parameter.grad)
            parameter.grad = None

        for name, parameter in weighing:
            parameter.requires_grad_().register_post_accumulate_grad_hook(partial(count, name))
        inputs = [*streams.values(), *(parameter for _, parameter in weighing)]
        torch.autograd.backward(output, gradient, retain_graph=retain, inputs=inputs)
        scale = self.taken_out[readout]
        for n, stream in streams.items():
            self.logs[readout][n] = self._log(stream.grad, n) + scale
        if weighing:
            self.weights |= {place: log + scale for place, log in weight_logs(squares).items()}

    def _log(self, gradient: Tensor | None, n: int) -> float:
        shaped = None if gradient is None else self.forward.shaped(gradient)
        return log_norms([shaped], [self.places[n].name], self.mask)[0]

    def _near_one(self, readout: str, gradient: Tensor) -> Tensor:
        """Divided by a power of two, which rounds nothing: the result is that of a network in memory, bit for bit."""
        _, exponent = math.frexp(float(gradient.abs().max()))
        self.taken_out[readout] += 2 * exponent * math.log(2)
        return gradient * 2.0**-exponent


def measure_stream(target: Measurable, batch: object, request: Request, tokens: int | None) -> Trace:
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


def _read(phantom: Phantom, batch: object, request: Request, tokens: int | None) -> NetworkObservation:
    """Forward, geometry, backward: the same draws as of a network in memory with these weights."""
    if batch is None:  # on the processor: the model's own device holds nothing
        generator = torch.Generator().manual_seed(request.seeds[0])
        batch = default_batch(phantom.model, generator, tokens, torch.device("cpu"))
    with ExitStack() as stack, torch.inference_mode(False), torch.no_grad():
        forward = StreamedForward(phantom, request)
        output = forward.run(batch, stack)
        streams = forward.shaped_streams()
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
            statistics["pair_growth"] = pair_growth(
                streams, forward.shaped_streams(forward.near_by_site), mask
            )
        observation.log_gradient.append(logs)
        observation.statistics.append(statistics)
    return observation


@dataclass(frozen=True)
class HookedSite(StreamSite):
    """A site at the input or the output of a module."""

    module: str
    end: str


def _hooked_sites(sites: ModelSites) -> tuple[HookedSite, ...]:
    """`embed`, then for each block of the primary stack the stream between its branches and at its end.

    A block whose middle cannot be read (not parallel, and no module there) is read at its end only, as `.output`.
    """
    stack = sites.stacks[0]
    listed = [HookedSite("embed", None, stack.blocks[0].name, "input")]
    for block in stack.blocks:
        i, end = block.index, "mlp"
        if block.middle is None:
            end = "attention+mlp" if stack.parallel else "output"
        else:
            listed.append(HookedSite(f"block.{i}.attention", i, block.middle, "input"))
        listed.append(HookedSite(f"block.{i}.{end}", i, block.name, "output"))
    return tuple(listed)


class Phantom:
    """The model of a config without its weights; `wake` draws a part's weights from (seed, name), `sleep` drops them.

    The same seed and name give the same weights, so that a block may be dropped and drawn again for the backward pass.
    """

    def __init__(self, config: Any, seed: int) -> None:
        self.seed = seed
        config.use_cache = False  # a block that runs again must not find its own keys in a cache
        with torch.device("meta"):
            self.model: nn.Module = model_class(config)(config).eval()
        self.owners = self._shared()

    def _shared(self) -> dict[int, list[tuple[str, str]]]:
        """Parameters that several modules hold (tied embeddings), as (module, attribute), the first one owns it."""
        held: dict[int, list[tuple[str, str]]] = {}
        for name, module in self.model.named_modules():
            for attribute, parameter in module._parameters.items():
                if parameter is not None:
                    held.setdefault(id(parameter), []).append((name, attribute))
        self._alive = list(self.model.parameters())  # ids stay unique while these live
        return {key: places for key, places in held.items() if len(places) > 1}

    def tied(self, name: str) -> bool:
        """True when this part shares a matrix with another: it must stay awake."""
        return any(name == module for places in self.owners.values() for module, _ in places)

    def outside(self, blocks: set[str]) -> list[str]:
        """Modules outside the blocks that hold parameters or buffers themselves."""
        inside = tuple(f"{block}." for block in blocks)
        return [
            name
            for name, module in self.model.named_modules()
            if name
            and name not in blocks
            and not name.startswith(inside)
            and (any(p is not None for p in module._parameters.values()) or module._buffers)
        ]

    def sites(self) -> ModelSites:
        """The places of the model; norms wake for it, because their kind is told by running them."""
        small = [
            name
            for name, module in self.model.named_modules()
            if module._parameters and all(p is None or p.ndim == 1 for p in module._parameters.values())
        ]
        for name in small:
            self.wake(name, recurse=False)
        result = sites(self.model)
        for name in small:
            self.sleep(name, recurse=False)
        return result

    def wake(self, name: str, recurse: bool) -> None:
        """Draw the part's weights; what its class leaves unset raises."""
        part = self.model.get_submodule(name)
        if all(not tensor.is_meta for _, tensor in _tensors(part, recurse)):
            return
        torch.manual_seed(zlib.crc32(f"{self.seed}/{name}".encode()))
        part.to_empty(device="cpu", recurse=recurse)
        for _, tensor in _tensors(part, recurse):
            tensor.data.fill_(torch.nan if tensor.is_floating_point() else -1)
        order = list(part.modules())[::-1] if recurse else [part]
        with torch.no_grad():
            for module in order:
                self.model._init_weights(module)  # type: ignore[operator]
        self._refuse_unset(name, part, recurse)
        self._tie(name, part)

    def _refuse_unset(self, name: str, part: nn.Module, recurse: bool) -> None:
        for key, tensor in _tensors(part, recurse):
            unset = torch.isnan(tensor.sum()) if tensor.is_floating_point() else (tensor == -1).all()
            if tensor.numel() and bool(unset):
                raise BadInput(
                    f"{type(self.model).__name__} does not initialize {name}.{key} itself, so it cannot be streamed. "
                    "Measure it whole (stream=False), or pass a factory."
                )

    def _tie(self, name: str, part: nn.Module) -> None:
        for places in self.owners.values():
            owner, attribute = places[0]
            for module, held in places[1:]:
                if module == name:
                    self.wake(owner, recurse=False)
                    part._parameters[held] = self.model.get_submodule(owner)._parameters[attribute]

    def sleep(self, name: str, recurse: bool) -> None:
        """Give the part's memory back."""
        self.model.get_submodule(name).to_empty(device="meta", recurse=recurse)
        if recurse:
            return_free_pages()


def return_free_pages() -> None:
    """Ask glibc to hand freed pages to the system: matrices of a few MB otherwise pile up in its heap."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


def _tensors(part: nn.Module, recurse: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield from part.named_parameters(recurse=recurse)
    yield from part.named_buffers(recurse=recurse)
