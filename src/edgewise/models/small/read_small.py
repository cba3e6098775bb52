"""The small models of a config, read: one in full, and numbers of others that differ from it in one size.

The first is the smallest that has every kind of layer. One is twice as wide, one has twice as many heads, one is
deeper: what a gain does from the first to each tells its power of that size. Where there are windows, one has longer
ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.describe import describe_reading
from edgewise.models.behavior.read import read, reread, reread_windows
from edgewise.models.behavior.record import Block, Reading, Stack
from edgewise.models.inputs import default_batches
from edgewise.models.small.full_numbers import FullNumbers
from edgewise.models.small.full_size import Build, full_kinds
from edgewise.models.small.routers import draw_exponent, router_weights, spread_as
from edgewise.models.small.sizes import WINDOWS, Scale
from edgewise.models.small.small_model import Blueprint
from edgewise.progress import ProgressBar

SHALLOW = 4  # up to here a second depth is twice the first
TEXT = {"input_ids", "decoder_input_ids"}
Result = TypeVar("Result")


class SmallModels:
    """The first reading, and the stack that is described at every scale, the first one first."""

    def __init__(self, plan: Blueprint, stack: str | None, bar: ProgressBar) -> None:
        self._plan, self._bar = plan, bar
        first = _first_scale(plan)
        self.reading, text = _guarded(plan, lambda: _first_reading(plan, first, stack))
        chosen = self.reading.default
        if chosen is None:
            reasons = "; ".join(self.reading.not_read) or "no chain of residual sums was found"
            raise BadInput(f"{plan.model_class.__name__} has no stack to describe: {reasons}.")
        describe_reading(self.reading)  # refuses what no Architecture describes, before more is built
        self._again = _guarded(plan, lambda: _Again(plan, Build(first, chosen), text))
        scales = [first, *_other_scales(plan, first)]
        self.builds = [
            Build(scale, stack) for scale, stack in zip(scales, self._read(scales, 0), strict=True)
        ]

    def draw_again(self, seeds: Sequence[int]) -> None:
        """The same with other weights."""
        numbers = [build for build in self.builds if build.scale.window == self.builds[0].scale.window]
        for seed in seeds:
            stacks = self._read([build.scale for build in numbers], seed)
            numbers = [replace(b, others=(*b.others, s)) for b, s in zip(numbers, stacks, strict=True)]
        self.builds = numbers + self.builds[len(numbers) :]

    def _read(self, scales: Sequence[Scale], seed: int) -> list[Stack]:
        stacks = []
        for number, scale in enumerate(scales):
            self._bar.count("reading small models", number, len(scales))
            stacks.append(_guarded(self._plan, lambda at=scale: self._again.read(at, seed)))  # type: ignore[misc]
        return stacks


def _guarded(plan: Blueprint, work: Callable[[], Result]) -> Result:
    try:
        return work()
    except BadInput:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInput(f"a small {plan.model_class.__name__} could not be built and read: {text}") from error


def _first_reading(plan: Blueprint, scale: Scale, stack: str | None) -> tuple[Reading, bool]:
    """Also whether it was read on text alone: with images beside it, the stream would start from both."""
    model = plan.build(scale)
    batch = _text(model) if stack is None and len(plan.towers) > 1 else None
    if batch is not None:
        try:
            return read(model, batch), True
        except BadInput:
            return read(model), False  # the model wants images, too; what it says then is the reason
    return read(model, stack=stack), False


def _text(model: nn.Module) -> dict[str, Any] | None:
    return next((batch for batch in default_batches(model) if set(batch) <= TEXT), None)


def _first_scale(plan: Blueprint) -> Scale:
    return Scale(depth=plan.full_depth if plan.full_depth <= _deeper(plan) else plan.depth)


def _deeper(plan: Blueprint) -> int:
    return 2 * plan.depth if plan.depth <= SHALLOW else math.ceil(1.5 * plan.depth)


def _other_scales(plan: Blueprint, first: Scale) -> Iterator[Scale]:
    if plan.narrow and any(tower.shrinks for tower in plan.towers.values()):
        yield Scale(stream=2, depth=first.depth)
        if any(tower.splits_heads for tower in plan.towers.values()):
            yield Scale(head=2, depth=first.depth)
    if first.depth != plan.full_depth:
        yield Scale(depth=_deeper(plan))
    if plan.windowed:
        yield Scale(window=WINDOWS[1], depth=first.depth)


class _Again:
    """The stack of the first small model, read at any scale."""

    def __init__(self, plan: Blueprint, first: Build, text: bool) -> None:
        self.plan, self.first, self.text = plan, first, text
        self.routed = plan.narrow and any(branch.experts for branch in first.stack.branches)
        if self.routed:
            self.width = FullNumbers(plan, [(first.scale, first.stack)]).tower.width
            wide = replace(first.scale, stream=2)
            weights = [self._routers(plan.build(scale), scale) for scale in (first.scale, wide)]
            self.exponent = draw_exponent(weights[0], weights[1], wide.stream)

    def read(self, scale: Scale, seed: int) -> Stack:
        """Where windows are longer, these; else the numbers."""
        longer = scale.window != self.first.scale.window
        if longer and not any(self.first.stack.window):
            return self.first.stack
        model = self.plan.build(scale, seed)
        batch = _text(model) if self.text else None
        if longer:
            return reread_windows(model, self.first.stack, batch)
        if self.routed:
            ratio = self.width / (self.first.stack.width * scale.stream)
            spread_as(self._routers(model, scale), ratio, self.exponent)
        return reread(model, self.first.stack, _blocks(self.plan, scale, self.first), batch)

    def _routers(self, model: nn.Module, scale: Scale) -> list[nn.Parameter]:
        return router_weights(
            model, self.plan.config, self.first.stack, self.first.stack.width * scale.stream
        )


def _blocks(plan: Blueprint, scale: Scale, first: Build) -> Sequence[Block]:
    """The blocks that a model of this scale has; each is like the first of its kind."""
    stack, kinds = first.stack, full_kinds(plan, first.scale, first.stack)
    if scale.depth == first.scale.depth:
        return stack.blocks
    assert scale.depth and first.scale.depth
    if kinds is None:
        return (stack.blocks[0],) * (stack.depth * scale.depth // first.scale.depth)
    length = len(plan.lists[stack.name].kinds)
    step = min(length, first.scale.depth) // stack.depth
    return tuple(stack.blocks[kinds.index(kind)] for kind in kinds[: min(length, scale.depth) // step])
