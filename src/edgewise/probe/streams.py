"""The residual stream of any stack, caught where a reading found it: by operation, whatever the modules are called.

A pass runs under the reader's tracer, which names every tensor operation by module, call and count. The tensors at
the operations of a `Stack` are the sites; a block that several layers share is told apart by its call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from edgewise.errors import BadInput
from edgewise.models.behavior.layout import reshaped
from edgewise.models.behavior.record import Block, Branch, Operation, Stack
from edgewise.models.behavior.trace import INPUT, Tracer
from edgewise.models.behavior.weight_calls import Edits, Precision
from edgewise.models.inputs import as_call, change, tensors
from edgewise.models.state import collector_paused
from edgewise.probe.attention_rows import AttentionLocation
from edgewise.probe.geometry import StreamSite

OVERWRITES = (
    "the model overwrites its stream in place (x.add_(y), or x += y where x is used again later), so it cannot be "
    "measured. Write x = x + y."
)
KINDS = {"attention": "attention", "cross-attention": "cross", "mlp": "mlp", "mixer": "mixer", None: "branch"}


@dataclass(frozen=True)
class TracedSite(StreamSite):
    """A site at the result of an operation."""

    operation: Operation


def traced_sites(stack: Stack) -> tuple[TracedSite, ...]:
    """`embed`, then for each block the stream after every step: `block.3.attention`, `block.3.mlp`."""
    listed = [TracedSite("embed", None, stack.start)]
    for index, block in enumerate(stack.blocks):
        names: list[str] = []
        for step in dict.fromkeys(branch.step for branch in block.branches):
            branches = [branch for branch in block.branches if branch.step == step]
            name = "+".join(sorted({KINDS[branch.kind] for branch in branches}))
            number = str(names.count(name) + 1) if name in names else ""
            names.append(name)
            operation = branches[-1].outlet or branches[-1].total
            listed.append(TracedSite(f"block.{index}.{name}{number}", index, operation))
    return tuple(listed)


def attentions(stack: Stack) -> list[AttentionLocation]:
    """List the module in which the attention of each block runs; blocks without one are left out."""
    listed = []
    for index, block in enumerate(stack.blocks):
        branch = next((branch for branch in block.branches if branch.kind == "attention"), None)
        if branch is not None:
            one = branch.heads if len(branch.softmaxes) < 2 else None
            own = next((call.heads for call in branch.calls if call.heads), one)
            listed.append(AttentionLocation(index, _room(branch, block), branch.heads, branch.softmaxes, own))
    return listed


def _room(branch: Branch, block: Block) -> str:
    """The largest module of the block that runs nothing of its other branches: weights alone may sit deeper inside."""
    others = [f"{other.module}." for other in block.branches if other is not branch]
    name = branch.module
    while "." in name and (parent := name.rpartition(".")[0]) != block.module:
        if any(other.startswith(f"{parent}.") for other in others):
            break
        name = parent
    return name


@dataclass
class Catch:
    """The streams of one forward pass by site, with their versions when caught."""

    listed: Sequence[TracedSite]
    stack: Stack
    sequences: int  # of the batch
    streams: dict[int, Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    out_of_place: bool = False  # `x += y` of the model makes a new tensor
    on_first: Callable[[Tensor], None] | None = None  # given the first stream (sequences, tokens, width)
    calls: Mapping[Operation, Callable[..., None]] = field(default_factory=dict)  # inspected before they run

    def run(self, model: nn.Module, batch: object, replace_first: Tensor | None = None) -> object:
        """The model's output; with `replace_first` that tensor takes the place of the first stream."""
        edits = Edits(
            results=self._results(replace_first),
            inputs=self._inputs(model, batch, replace_first),
            calls=self.calls,
            out_of_place=self.out_of_place,
        )
        tracer = Tracer(model, edits, Precision(False, frozenset()))

        def own(number: int, value: Tensor) -> Tensor:
            tensor = edits.inputs[number] if number in edits.inputs else value.detach().clone()
            tracer.feed(number, tensor)
            return tensor

        args, kwargs = change(*as_call(batch, model), own)
        with ExitStack() as hooks:
            hooks.callback(register_module_forward_pre_hook(tracer.enter).remove)
            hooks.callback(register_module_forward_hook(tracer.leave, always_call=True).remove)
            with collector_paused(), tracer:
                return model(*args, **kwargs)

    def _results(self, replace_first: Tensor | None) -> dict[Operation, Callable[[Tensor], Tensor]]:
        by_operation: dict[Operation, list[int]] = {}
        for index, place in enumerate(self.listed):
            by_operation.setdefault(place.operation, []).append(index)

        def edit(indices: list[int]) -> Callable[[Tensor], Tensor]:
            def keep(value: Tensor) -> Tensor:
                if indices[0] == 0:
                    value = self._first(value, replace_first)
                for index in indices:
                    self._keep(index, value)
                return value

            return keep

        return {op: edit(indices) for op, indices in by_operation.items() if op.function != INPUT}

    def _inputs(self, model: nn.Module, batch: object, replace_first: Tensor | None) -> dict[int, Tensor]:
        """A model without an embedding is given its first stream as data: the same numbers, with a gradient."""
        start = self.stack.start
        if start.function != INPUT:
            return {}
        value = list(tensors(as_call(batch, model)))[start[3]]
        value = self._first(value.detach().clone(), replace_first)
        self._keep(0, value)
        return {start[3]: value}

    def _first(self, value: Tensor, replace_first: Tensor | None) -> Tensor:
        if replace_first is not None:
            return replace_first
        return (
            value if value.requires_grad or not torch.is_grad_enabled() else value.detach().requires_grad_()
        )

    def _keep(self, index: int, stream: Tensor) -> None:
        self.streams[index], self.versions[index] = stream, stream._version
        if index == 0 and self.on_first is not None:
            self.on_first(self.shaped(stream))

    def finished(self) -> list[Tensor]:
        """All streams in order; raise if one was not met or was overwritten in place."""
        missing = [place.name for index, place in enumerate(self.listed) if index not in self.streams]
        if missing:
            raise BadInput(
                f"the forward pass did not come through {', '.join(missing[:4])}, which it did on the shorter input "
                "that the model was read on; every site must be read. Give a batch as long as the one to measure."
            )
        if self.overwritten:
            raise BadInput(OVERWRITES)
        return [self.streams[index] for index in range(len(self.listed))]

    @property
    def overwritten(self) -> bool:
        """True if numbers of a site are gone."""
        return any(stream._version != self.versions[index] for index, stream in self.streams.items())

    def shaped(self, stream: Tensor) -> Tensor:
        """(sequences, tokens, width), whichever way the model keeps it; OPT flattens its middle to (tokens, width)."""
        first = self.streams.get(0, stream)
        if stream.ndim == 2 < first.ndim and stream.numel() == first.numel():
            return self.shaped(stream.reshape(first.shape))
        order = self._order(stream)
        moved = stream.permute(order)
        axes = self._axes(stream)
        # (sequences tokens, width) are one axis.
        sequences = moved.shape[0] if "token" in axes else self.sequences
        features = axes.count("feature")  # several are streams side by side
        return moved.reshape(sequences, -1, math.prod(moved.shape[-features:]))

    def _order(self, stream: Tensor) -> tuple[int, ...]:
        axes = self._axes(stream)
        features = [axis for axis, name in enumerate(axes) if name == "feature"]
        others = [axis for axis, name in enumerate(axes) if name not in ("batch", "feature")]
        return (axes.index("batch"), *others, *features)

    def _axes(self, stream: Tensor) -> list[str]:
        """As they were read; a stream with another number of axes is one that was found with these, reshaped."""
        axes = (self.stack.layout or "").split()
        if len(axes) == stream.ndim:
            return axes
        known = [tuple(other.shape) for other in self.streams.values() if other.ndim == len(axes)]
        other = reshaped(known[0], axes, tuple(stream.shape)) if known else None
        if other is None:
            expected = "an unknown layout" if self.stack.layout is None else f"the axes {self.stack.layout!r}"
            raise BadInput(
                f"a stream of {self.stack.name} has shape {tuple(stream.shape)}; expected {expected}."
            )
        return other

    def unshaped(self, value: Tensor, like: Tensor) -> Tensor:
        """(sequences, tokens, width) back in the form of the stream `like`."""
        whole = self.streams[0] if like.ndim == 2 < self.streams[0].ndim else like
        order = self._order(whole)
        moved = value.reshape([whole.shape[axis] for axis in order])
        return moved.permute([order.index(axis) for axis in range(len(order))]).reshape(like.shape)


NAMES = ("hidden_states", "x", "src")  # common names of the stream if it is passed by keyword


@dataclass(frozen=True)
class BlockCall:
    """Positional and named arguments; the stream is the first tensor, by position and then by name."""

    module: str
    inputs: tuple[Any, ...]
    named: dict[str, Any]

    def _place(self) -> int | str:
        for position, value in enumerate(self.inputs):
            if isinstance(value, Tensor):
                return position
        for key in (*NAMES, *self.named):
            if isinstance(self.named.get(key), Tensor):
                return key
        raise BadInput(f"{self.module} was called without a tensor, so its stream cannot be read.")

    @property
    def stream(self) -> Tensor:
        place = self._place()
        tensor: Tensor = self.inputs[place] if isinstance(place, int) else self.named[place]
        return tensor

    def on(self, stream: Tensor) -> BlockCall:
        """The same call with another stream."""
        place = self._place()
        if isinstance(place, int):
            inputs = (*self.inputs[:place], stream, *self.inputs[place + 1 :])
            return BlockCall(self.module, inputs, self.named)
        return BlockCall(self.module, self.inputs, self.named | {place: stream})

    def run(self, block: nn.Module) -> Tensor:
        return stream_of(block(*self.inputs, **self.named))


def stream_of(output: Any) -> Tensor:
    """A block returns its stream, or a tuple that begins with it."""
    tensor: Tensor = output if isinstance(output, Tensor) else output[0]
    return tensor
