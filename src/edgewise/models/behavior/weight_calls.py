"""Calls that apply weights to the stream: how input, output and bias are edited, and in which precision they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from edgewise.models.behavior.graph import FOURIER, MATRIX, MULTIHEAD, Constant, Update
from edgewise.models.behavior.record import Operation

LOW = (torch.float16, torch.bfloat16)
CASTS = {"half": "float", "bfloat16": "float"}


class Precision:
    """How the calls of a pass are run: as they are, or with half-precision numbers widened to single precision."""

    def __init__(self, wide: bool, devices: frozenset[str]) -> None:
        self.wide, self._devices = wide, devices

    @classmethod
    def of(cls, model: nn.Module) -> Precision:
        everything = [*model.parameters(), *model.buffers()]
        low = any(tensor.dtype in LOW for tensor in everything)
        return cls(low, frozenset(tensor.device.type for tensor in everything) | {"cpu"})

    def run(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        cast = [kind for kind in self._devices if torch.is_autocast_enabled(kind)]
        if not cast and not self.wide:
            return func(*args, **kwargs)
        if cast:  # the model's own autocast would round; its structure is the same without
            with torch.autocast(cast[0], enabled=False):
                return func(*self._widened(args), **self._widened(kwargs))
        if name in CASTS and args[0].dtype in (*LOW, torch.float32):
            return args[0].float()
        if name.endswith("_") and (
            not name.startswith("__") or name == "__setitem__" or name.startswith("__i")
        ):
            return self._in_place(func, args, kwargs)
        return func(*self._widened(args), **self._widened(kwargs))

    def _in_place(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor) and args[0].dtype in LOW:
            return func(*args, **kwargs)
        return func(*self._widened(args), **self._widened(kwargs))

    def _widened(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.float() if value.dtype in LOW else value
        if isinstance(value, torch.dtype):
            return torch.float32 if value in LOW else value
        if type(value) in (list, tuple):
            return type(value)(self._widened(item) for item in value)
        return {key: self._widened(item) for key, item in value.items()} if type(value) is dict else value


WITH_ADDEND = ("addmm", "baddbmm", "addbmm")
MULTIHEAD_WEIGHTS = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")
MULTIHEAD_BIASES = (6, 12)
MULTIHEAD_PLACES = {5: "in_proj_weight", 6: "in_proj_bias"}


Edit = Callable[[Tensor], Tensor]


@dataclass
class Edits:
    """What is replaced or inspected in a pass, by operation."""

    results: Mapping[Operation, Edit] = field(default_factory=dict)
    inputs: Mapping[int, Tensor] = field(default_factory=dict)  # tensors of the batch, by their place
    sums: Mapping[Operation, Callable[[Tensor, Tensor], None]] = field(default_factory=dict)
    weight_inputs: Mapping[Operation, Edit] = field(default_factory=dict)
    first_outputs: Mapping[Operation, Edit] = field(default_factory=dict)  # of the first matrices of a branch
    last_outputs: Mapping[Operation, Edit] = field(default_factory=dict)  # of its last ones
    without_bias: frozenset[Operation] = frozenset()
    calls: Mapping[Operation, Callable[[tuple[Any, ...], dict[str, Any]], None]] = field(default_factory=dict)
    fill_zeros: bool = False  # parameters that are all zero act as if drawn at random
    unrounded: bool = False  # what is rounded keeps its numbers
    out_of_place: bool = False  # `x += y` makes a new tensor, and the old one keeps its numbers
    last: Operation | None = None  # the pass ends after it: no later one is edited or inspected

    def operations(self) -> Iterator[Operation]:
        """Everything that is edited or inspected."""
        for kind in (
            self.results,
            self.sums,
            self.weight_inputs,
            self.first_outputs,
            self.last_outputs,
            self.calls,
        ):
            yield from kind
        yield from self.without_bias

    def with_updates(self, updates: Mapping[Operation, Update]) -> Edits:
        """The same where matrices have updates: these read the edited input, and what both give together is edited."""
        own = updates.keys()
        inputs = {a: edit for op, edit in self.weight_inputs.items() if op in own for a in updates[op].first}
        outputs = [
            (op, edit) for kind in (self.first_outputs, self.last_outputs) for op, edit in kind.items()
        ]
        totals: dict[Operation, Edit] = {}
        for op, edit in outputs:
            if op in own:
                totals[updates[op].total] = _after(totals.get(updates[op].total), edit)
        return replace(
            self,
            weight_inputs={**self.weight_inputs, **inputs},
            results={**self.results, **totals},
            first_outputs={op: edit for op, edit in self.first_outputs.items() if op not in own},
            last_outputs={op: edit for op, edit in self.last_outputs.items() if op not in own},
        )


def _after(first: Edit | None, second: Edit) -> Edit:
    return second if first is None else lambda value: second(first(value))


@dataclass
class WeightCall:
    """A matrix product of something that depends on the batch with something that does not."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    node: Callable[[Any], Any]

    @classmethod
    def of(cls, name: str, args: Any, kwargs: Any, node: Callable[[Any], Any]) -> WeightCall | None:
        if name == MULTIHEAD or name in FOURIER:
            return cls(name, args, kwargs, node)
        if name not in MATRIX:
            return None
        operands = (
            args[1] if name == "einsum" and len(args) == 2 and isinstance(args[1], (list, tuple)) else args
        )
        if name in WITH_ADDEND:  # what is added to the product is not a weight
            operands = args[1:]
        values = [value for value in (*operands, *kwargs.values()) if isinstance(value, Tensor)]
        constant = any(node(v) is None and v.is_floating_point() and v.dim() >= 2 for v in values)
        return cls(name, args, kwargs, node) if constant else None

    def constants(self, flat: list[Tensor]) -> tuple[Constant, ...]:
        """List what it reads beside the batch: its matrix, its bias."""
        own = (Constant.of(v) for v in flat if v.is_floating_point() and self.node(v) is None)
        return tuple(constant for constant in own if constant is not None)

    def edit(self, operation: Operation, edits: Edits) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the input edited and the bias left out, as asked."""
        args, kwargs = self.args, self.kwargs
        if self.name == MULTIHEAD:
            args, kwargs = self._multihead(
                edits.weight_inputs.get(operation), edits.first_outputs.get(operation)
            )
        elif operation in edits.weight_inputs:
            edit = edits.weight_inputs[operation]
            args, kwargs = self._inputs(args, edit), {k: self._input(v, edit) for k, v in kwargs.items()}
        if operation in edits.without_bias:
            args, kwargs = self._without_bias(args, kwargs)
        return args, kwargs

    def edit_output(self, output: Any, operation: Operation, edits: Edits) -> Any:
        """Torch's own attention is one call: what comes out of its first matrices was edited in its arguments."""
        for edits_of, first in ((edits.first_outputs, True), (edits.last_outputs, False)):
            edit = edits_of.get(operation)
            if edit is not None and not (first and self.name == MULTIHEAD):
                output = (
                    edit(output)
                    if isinstance(output, Tensor)
                    else type(output)((edit(output[0]), *output[1:]))
                )
        return output

    def _multihead(self, inputs: Any, outputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = list(self.args)
        if inputs is not None:  # keys and values of another stack are not the input of this branch
            query = args[0]
            edited_query = inputs(query)
            args[:3] = [edited_query if value is query else value for value in args[:3]]
        if outputs is not None:  # scaling the input weights and biases scales what comes out of them
            for place in MULTIHEAD_PLACES:
                if place < len(args) and args[place] is not None:
                    args[place] = outputs(args[place])
        named = {
            k: outputs(v) if outputs is not None and k in MULTIHEAD_WEIGHTS and v is not None else v
            for k, v in self.kwargs.items()
        }
        return tuple(args), named

    def _inputs(self, args: Any, edit: Any) -> Any:
        if isinstance(args, (list, tuple)):
            return type(args)(self._inputs(value, edit) for value in args)
        return self._input(args, edit)

    def _input(self, value: Any, edit: Any) -> Any:
        data = isinstance(value, Tensor) and self.node(value) is not None and value.is_floating_point()
        return edit(value) if data else value

    def _without_bias(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.name == MULTIHEAD:
            return tuple(None if i in MULTIHEAD_BIASES else a for i, a in enumerate(args)), {
                k: None if k in ("in_proj_bias", "out_proj_bias") else v for k, v in kwargs.items()
            }
        if self.name in WITH_ADDEND:
            return (torch.zeros_like(args[0]), *args[1:]), kwargs
        if self.name in ("linear", "conv1d", "conv2d", "conv3d"):
            return (*args[:2], *([None] if len(args) > 2 else []), *args[3:]), kwargs | (
                {"bias": None} if "bias" in kwargs else {}
            )
        return args, kwargs


def equation_of_tensordot(a: Tensor, b: Tensor, dims: Any = 2, **_: Any) -> str:
    """As einsum would be told."""
    one, other = (range(a.dim() - dims, a.dim()), range(dims)) if isinstance(dims, int) else dims
    letters = [[chr(97 + axis) for axis in range(a.dim())], [chr(110 + axis) for axis in range(b.dim())]]
    for axis, meets in zip(one, other, strict=True):
        letters[1][meets] = letters[0][axis]
    kept = [letter for pair in (letters, letters[::-1]) for letter in pair[0] if letter not in pair[1]]
    return f"{''.join(letters[0])},{''.join(letters[1])}->{''.join(kept)}"


def constant_factor(value: Any, output: Tensor) -> float | Tensor | None:
    """One number, or one number per feature of what is multiplied; None if it is anything else."""
    plain = not isinstance(value, Tensor) or value.numel() == 1
    return plain_number(value) if plain else _per_feature(value, output)


def _per_feature(value: Tensor, output: Tensor) -> Tensor | None:
    return value.detach() if value.dim() and value.numel() == value.shape[-1] == output.shape[-1] else None


def plain_number(value: Any) -> float | None:
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return float(value)


def draw_for_zeros(parameter: Tensor, seed: int) -> Tensor | None:
    """Random numbers in place of a parameter that is all zero: matrices with gain 1, vectors of size 0.1."""
    if not parameter.is_floating_point() or parameter.numel() == 0 or bool(parameter.detach().any()):
        return None
    noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    return (noise * (parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1)).to(parameter)


def seed_of(operation: Operation) -> int:
    """The same in every pass and process."""
    return crc32(repr(operation).encode())


def is_edited(operation: Operation, edits: Edits) -> bool:
    edited = (edits.weight_inputs, edits.first_outputs, edits.last_outputs, edits.without_bias)
    return any(operation in operations for operations in edited)
