"""Which blocks a model runs one after another, seen by plain forward hooks: the checker's own way to find a stack.

A stack is a run of calls to numbered siblings (`layers.0`, `layers.1`, ...) that take and return tensors of one shape.
Blocks that are no modules (pairs in a list that the model unpacks) are not seen; then the checker has no opinion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

Run = Callable[[], Any]
Place = int | str  # of an argument: its position or its name


@dataclass
class Call:
    """One call of a module: the tensors it was given by place, and the first it returned."""

    name: str
    given: dict[Place, Tensor]
    out: Tensor | None


@dataclass
class Stack:
    """Calls of numbered siblings in order; `place` is where each block takes the stream."""

    name: str
    blocks: list[str]
    place: Place
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.blocks)


def first_tensor(value: Any) -> Tensor | None:
    """The stream among what a block returned: itself, or the first tensor in it."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return next((item for item in items if isinstance(item, Tensor)), None)


def _streams(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Place, Tensor]:
    named: dict[Place, Any] = {**dict(enumerate(args)), **kwargs}
    return {
        k: v for k, v in named.items() if isinstance(v, Tensor) and v.is_floating_point() and v.dim() >= 2
    }


@contextmanager
def watching(model: nn.Module, calls: list[Call]) -> Iterator[None]:
    """Append every call of every submodule, in the order in which they end."""

    def note(name: str) -> Callable[..., None]:
        return lambda _, args, kwargs, out: calls.append(
            Call(name, _streams(args, kwargs), first_tensor(out))
        )

    handles = [
        m.register_forward_hook(note(name), with_kwargs=True) for name, m in model.named_modules() if name
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def find_stacks(model: nn.Module, run: Run) -> tuple[list[Stack], list[Call]]:
    """All stacks of at least three blocks, outermost first, and every call of the pass."""
    calls: list[Call] = []
    with torch.no_grad(), watching(model, calls):
        run()
    families: dict[str, list[Call]] = {}
    for call in calls:
        parent, _, last = call.name.rpartition(".")
        if last.isdigit():
            families.setdefault(parent, []).append(call)
    stacks = [stack for name, members in families.items() if (stack := _stack(name, members)) is not None]
    return [s for s in stacks if not any(s.name.startswith(f"{other.name}.") for other in stacks)], calls


def _stack(name: str, calls: list[Call]) -> Stack | None:
    outputs = [call.out for call in calls]
    if len(calls) < 3 or any(out is None or out.dim() < 2 for out in outputs):
        return None
    shape = outputs[0].shape  # type: ignore[union-attr]
    places = [place for place, x in calls[0].given.items() if x.shape == shape]
    same = all(out.shape == shape for out in outputs)  # type: ignore[union-attr]
    place = next((p for p in places if all(p in c.given and c.given[p].shape == shape for c in calls)), None)
    if place is None or not same or not _chained(calls, place):
        return None
    inputs = [call.given[place].detach() for call in calls]
    return Stack(
        name, [call.name for call in calls], place, inputs, [o.detach() for o in outputs if o is not None]
    )


def _chained(calls: list[Call], place: Place) -> bool:
    """Whether blocks take what the one before returned, but for a few: siblings side by side are no stack."""
    pairs = list(pairwise(calls))
    linked = [torch.equal(a.out, b.given[place]) for a, b in pairs if a.out is not None]
    return sum(linked) >= 0.75 * len(pairs)


@contextmanager
def _forcing(
    model: nn.Module, stack: Stack, edit: Callable[[Tensor], Tensor], outputs: list[Tensor]
) -> Iterator[None]:
    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, place = edit(stack.inputs[len(outputs)]), stack.place
        if isinstance(place, str):
            return args, {**kwargs, place: x}
        return (*args[:place], x, *args[place + 1 :]), kwargs

    def after(_: nn.Module, __: Any, out: Any) -> None:
        outputs.append(first_tensor(out).detach())  # type: ignore[union-attr]

    modules = dict(model.named_modules())
    blocks = [modules[name] for name in dict.fromkeys(stack.blocks)]
    handles = [b.register_forward_pre_hook(before, with_kwargs=True) for b in blocks]
    handles += [b.register_forward_hook(after) for b in blocks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def forced(
    model: nn.Module, run: Run, stack: Stack, edit: Callable[[Tensor], Tensor]
) -> tuple[list[Tensor], list[Call]]:
    """What every block returns when it sees an edited copy of its own true input, and all calls of that pass."""
    outputs: list[Tensor] = []
    calls: list[Call] = []
    with torch.no_grad(), watching(model, calls), _forcing(model, stack, edit, outputs):
        run()
    return outputs, calls


@contextmanager
def scaled(model: nn.Module, names: set[str], factor: float) -> Iterator[None]:
    """Multiply what some modules return."""

    def after(_: nn.Module, __: Any, out: Any) -> Any:
        return (out[0] * factor, *out[1:]) if isinstance(out, tuple) else out * factor

    handles = [m.register_forward_hook(after) for name, m in model.named_modules() if name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
