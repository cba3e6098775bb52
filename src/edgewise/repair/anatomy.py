"""The anatomy of a layer that no adapter recognises, learnt by switching its matrices off one at a time.

Matrices in series make one branch: switching any of them off gives the same output. The one that runs last writes the
branch into the stream, so that its gain scales the branch and leaves everything inside it (also attention) as it was.
Where a norm ends the branch (Gemma 2, OLMo 2) the gain of that norm is the last, and a matrix before it moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.names.gains import is_structured
from edgewise.models.names.names import FUSED, KEY, QUERY, leaf
from edgewise.models.names.norm import find_norms, gain_name
from edgewise.models.twin import holding, twin
from edgewise.probe.block_call import BlockCall
from edgewise.probe.isolation import call, observed, tensors
from edgewise.repair.layers import Layers
from edgewise.repair.meter import has_norms

SAME = 1e-4  # relative difference of two outputs of one layer that counts as none


@dataclass(frozen=True)
class Anatomy:
    """One layer's parameters by their path in it. `writers` end the branches; without a skip there are none."""

    matrices: tuple[str, ...]
    writers: tuple[str, ...]  # matrices, or the gains of norms that end a branch
    skip: bool
    has_norms: bool  # a norm rescales the stream or what the matrices read
    norm_gains: tuple[str, ...]
    offsets: Mapping[str, float]  # what a norm adds to its stored gain: one in Gemma
    biases: tuple[str, ...]
    runs: int  # of one layer, that this took

    @property
    def inner(self) -> tuple[str, ...]:
        """Matrices of the branches that do not write, queries and keys left out: the plan leaves their scale alone."""
        return tuple(path for path in self.matrices if path not in self.writers and not _scores(path))

    @property
    def undone(self) -> bool:
        """A norm ends a branch: what is before it cannot be scaled."""
        return any(path in self.norm_gains for path in self.writers)


def anatomy_of(model: nn.Module, batch: Any, layers: Layers) -> Anatomy:
    """Read from the first layer, run alone on the input it gets from this batch."""
    block = model.get_submodule(layers.names[0])
    shapes = dict(block.named_parameters())
    matrices = tuple(path for path in shapes if _drawn(shapes[path], path, layers))
    norms = find_norms(block) if not layers.leaf else []
    named = ((norm, gain_name(block.get_submodule(norm))) for norm in norms)
    gains = tuple(f"{norm}.{gain}" for norm, gain in named if gain is not None and f"{norm}.{gain}" in shapes)
    owners = {_owner(path) for path in matrices}
    biases = tuple(path for path in shapes if path.endswith("bias") and _owner(path) in owners)
    offsets = {path: _offset(block.get_submodule(_owner(path)), block.get_parameter(path)) for path in gains}
    if layers.leaf:
        return Anatomy(matrices, (), False, has_norms(model, layers), gains, offsets, biases, 0)
    layer = _Alone(model, batch, layers.names[0], biases, offsets)
    off = layer.run(dict.fromkeys(matrices, 0.0))
    skip = _cosine(off, layer.stream) > 0.5
    writers = _writers(layer, matrices, gains) if skip else ()
    return Anatomy(matrices, writers, skip, has_norms(model, layers), gains, offsets, biases, layer.runs)


def _drawn(parameter: Tensor, path: str, layers: Layers) -> bool:
    """Whether a plan may draw it: a matrix that multiplies the stream, and whose entries were drawn before."""
    if parameter.ndim < 2 or path.endswith("bias") or is_structured(parameter):
        return False
    return layers.weights is None or f"{layers.names[0]}.{path}" in layers.weights


def _offset(norm: nn.Module, gain: Tensor) -> float:
    """One where a stored gain of zero is a gain of one."""
    x = torch.randn((2, *gain.shape), generator=torch.Generator().manual_seed(0)).to(gain)
    zeros = {name: torch.zeros_like(p) for name, p in norm.named_parameters()}
    norm = twin(norm)  # in the mode for evaluation a batch norm does not count what it sees
    with torch.no_grad(), holding(norm, zeros):
        return float(bool(norm(x).any()))


def _writers(layer: _Alone, matrices: Sequence[str], gains: Sequence[str]) -> tuple[str, ...]:
    """The last to run of every class of parts that do the same when switched off; queries and keys do not count."""
    plain = layer.run({})
    classes: list[tuple[Tensor, list[str]]] = []
    for path in (*sorted(matrices, key=layer.position), *gains):
        out = layer.run({path: 0.0})
        if _difference(out, plain) < SAME or _scores(path):
            continue
        alike = next((members for other, members in classes if _difference(out, other) < SAME), None)
        if alike is not None:
            alike.append(path)
        elif path in matrices:  # a norm on the stream is not a branch
            classes.append((out, [path]))
    last = [max(members, key=layer.position) for _, members in classes]
    off = layer.run(dict.fromkeys(last, 0.0))
    # With every other branch off, a writer still writes; an unnamed query or key, whose values are off, does not.
    alone = {path: layer.run({other: 0.0 for other in last if other != path}) for path in last}
    return tuple(path for path, out in alone.items() if _difference(out, off) > SAME)


class _Alone:
    """One layer, run alone with some matrices scaled and its biases off."""

    def __init__(
        self, model: nn.Module, batch: Any, name: str, biases: Sequence[str], offsets: Mapping[str, float]
    ) -> None:
        self.block, self.runs = twin(model.get_submodule(name)), 0
        self.biases, self.offsets = biases, offsets
        self.order: dict[str, int] = {}
        self.call = _call_of(model, batch, name, self.order)
        self.stream = self.call.stream.detach()

    def position(self, path: str) -> int:
        """When the module that owns a parameter ran; bare parameters last, in the order they are declared."""
        return self.order.get(_owner(path), len(self.order))

    def run(self, scales: Mapping[str, float]) -> Tensor:
        self.runs += 1
        values = {name: buffer.clone() for name, buffer in self.block.named_buffers()}
        values |= {path: self._scaled(path, scale) for path, scale in scales.items()}
        values |= {path: torch.zeros_like(self.block.get_parameter(path)) for path in self.biases}
        with observed(self.block), torch.no_grad(), holding(self.block, values):
            return next(tensors(self.block(*self.call.inputs, **self.call.named)))

    def _scaled(self, path: str, scale: float) -> Tensor:
        offset = self.offsets.get(path, 0.0)
        return (self.block.get_parameter(path).detach() + offset) * scale - offset


def _call_of(model: nn.Module, batch: Any, name: str, order: dict[str, int]) -> BlockCall:
    """The first call of the layer, without its cache; `order` is filled with the order in which its parts run."""
    calls: list[BlockCall] = []
    block = model.get_submodule(name)

    def record(module: nn.Module, inputs: Any, named: Any) -> None:  # noqa: ARG001
        cacheless = {
            key: value for key, value in named.items() if key not in ("past_key_values", "use_cache")
        }
        calls.append(BlockCall(name, inputs, cacheless))

    with observed(model) as stack, torch.no_grad():
        stack.callback(block.register_forward_pre_hook(record, with_kwargs=True).remove)
        _watch_order(block, order, stack)
        call(model, batch)
    if not calls:
        raise BadInput(f"this batch does not run {name}, the first of the layers.")
    return calls[0]


def _watch_order(block: nn.Module, order: dict[str, int], stack: ExitStack) -> None:
    def note(path: str) -> None:
        order.setdefault(path, len(order))

    for path, module in block.named_modules():
        stack.callback(module.register_forward_pre_hook(lambda *_, path=path: note(path)).remove)


def _owner(path: str) -> str:
    return path.rpartition(".")[0]


def _scores(path: str) -> bool:
    """Named as a query or key alone (a fused one holds the values too)."""
    name = leaf(path.removesuffix(".weight"))
    return name in (*QUERY, *KEY) and name not in FUSED


def _difference(first: Tensor, second: Tensor) -> float:
    return float((first - second).norm() / max(float(second.norm()), math.ulp(1.0)))


def _cosine(first: Tensor, second: Tensor) -> float:
    if first.shape != second.shape:
        return 0.0
    x, y = first.double().flatten(), second.double().flatten()
    return float(x @ y / max(float(x.norm() * y.norm()), 1e-300))
