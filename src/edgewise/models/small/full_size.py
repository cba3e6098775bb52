"""Readings of small models to one of the config's own sizes: depth, widths, heads, windows and gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Block, Branch, Gains, Stack
from edgewise.models.small.full_numbers import FullNumbers
from edgewise.models.small.power_law import Sizes, extrapolate
from edgewise.models.small.sizes import Scale
from edgewise.models.small.small_model import Blueprint

SCATTER = 0.35  # relative, between layers of one kind in a small model
EXACT = 1e-4
STRUCTURE = (
    "kind",
    "sees",
    "input_norm",
    "output_norm",
    "outside_norm",
    "norm_kind",
    "positions",
    "qk_norm",
    "gated",
    "activation",
    "experts",
    "silent",
)
Read = Callable[[Branch], float | None]


@dataclass(frozen=True)
class Build:
    """A small model that was read: its scale, and the stack that is described."""

    scale: Scale
    stack: Stack
    others: tuple[Stack, ...] = ()  # the same with other weights, which make its gains more certain

    @property
    def draws(self) -> tuple[Stack, ...]:
        return (self.stack, *self.others)


def at_full_size(plan: Blueprint, builds: Sequence[Build]) -> tuple[Stack, Any]:
    """The stack as the config has it, and the config which it belongs to; no tokens where the config decides."""
    full = _FullStack(plan, builds)
    return full.stack(), full.numbers.config


def full_kinds(plan: Blueprint, scale: Scale, stack: Stack) -> tuple[int, ...] | None:
    """The kind of every block at full depth; None where no list has a module for every block."""
    layers = plan.lists.get(stack.name)
    if layers is None or stack.shared or not stack.depth:
        return None
    length = min(len(layers.kinds), scale.depth or len(layers.kinds))
    step, rest = divmod(
        length, stack.depth
    )  # more than one where attention and feed-forward layers take turns
    if rest or not step or len(layers.kinds) % step:
        return None
    groups = [layers.kinds[i : i + step] for i in range(0, len(layers.kinds), step)]
    return tuple(list(dict.fromkeys(groups)).index(group) for group in groups)


class _FullStack:
    def __init__(self, plan: Blueprint, builds: Sequence[Build]) -> None:
        self.plan, self.first = plan, builds[0].stack
        self.builds = [b for b in builds if b.scale.window == builds[0].scale.window]
        self.longer = next((b.stack for b in builds if b not in self.builds), None)
        self.numbers = FullNumbers(plan, [(b.scale, b.stack) for b in builds])
        kinds = full_kinds(plan, builds[0].scale, self.first)
        self.kinds = (0,) * self.numbers.depth() if kinds is None else kinds
        self._refuse_differences()
        self.sizes = [self._sizes(build) for build in self.builds]
        tower = self.numbers.tower
        share = (tower.head_width or tower.width) / tower.width
        self.full = Sizes(math.log(tower.width), math.log(share), math.log(len(self.kinds)))

    def _sizes(self, build: Build) -> Sizes:
        tower, width, head = self.numbers.tower, build.stack.width, None
        if tower.head_width is not None:
            head = tower.part_of_head(tower.head_width, build.scale) if self.plan.narrow else tower.head_width
        return Sizes(math.log(width), math.log((head or width) / width), math.log(build.stack.depth))

    def stack(self) -> Stack:
        start = extrapolate(
            f"the stream at the start of {self.first.name}",
            self.sizes,
            [_mean(math.sqrt(s.start_norm) for s in b.draws) for b in self.builds],
            self.full,
        )
        blocks = {kind: self._block(kind) for kind in sorted(set(self.kinds))}
        return replace(
            self.first,
            width=self.numbers.tower.width,
            tokens=self.numbers.tokens() or 0,
            start_norm=(start or 0.0) ** 2,
            blocks=tuple(replace(blocks[kind], index=i) for i, kind in enumerate(self.kinds)),
        )

    def _places(self, build: Build, kind: int) -> list[int]:
        return [i for i in range(build.stack.depth) if self.kinds[i] == kind]

    def _refuse_differences(self) -> None:
        """Small models of all sizes must be the same but for their numbers, and so must the layers of a kind."""
        for kind in sorted(set(self.kinds)):
            shapes = {
                tuple(_structure(branch) for branch in build.stack.blocks[i].branches): build.scale
                for build in self.builds
                for i in self._places(build, kind)
            }
            if len(shapes) > 1:
                one, other = list(shapes)[:2]
                raise BadInput(
                    f"layers of one kind in {self.first.name} were read differently: {_difference(one, other)}. "
                    "Build the model and describe that."
                )

    def _block(self, kind: int) -> Block:
        place = self._places(self.builds[0], kind)[0]
        block = self.first.blocks[place]
        longer = block.branches if self.longer is None else self.longer.blocks[place].branches
        branches = tuple(
            self._branch(kind, number, branch, longer[number].window)
            for number, branch in enumerate(block.branches)
        )
        return replace(block, branches=branches)

    def _branch(self, kind: int, number: int, branch: Branch, longer: int | None) -> Branch:
        def law(what: str, read: Read, scatter: float) -> float | None:
            values = [
                self._pooled(build, kind, number, f"{what} of {branch.module}", read, scatter)
                for build in self.builds
            ]
            return extrapolate(f"{what} of {branch.module}", self.sizes, values, self.full)

        gains = self._gains(law, branch) if branch.gains is not None else None
        changes: dict[str, Any] = {
            "skip": law("the skip", lambda b: b.skip, EXACT),
            "multiplier": law("the multiplier", lambda b: b.multiplier, EXACT),
            "layer_scale": law("the layer scale", lambda b: b.layer_scale, SCATTER),
            "rescale": law("the rescaling", lambda b: b.rescale, EXACT)
            if branch.rescale is not None
            else None,
            "share": None,
            "window": self.numbers.window(branch, longer),
            "gains": gains,
        }
        return replace(branch, **changes | self.numbers.sizes(branch))

    def _gains(self, law: Callable[[str, Read, float], float | None], branch: Branch) -> Gains:
        """Of experts their weighted sum counts; the size of a branch only behind a norm at its end."""

        def gain(name: str) -> Read:
            return lambda b: None if b.gains is None else getattr(b.gains, name)

        def routed(b: Branch) -> float | None:
            return b.gains.branch / b.gains.hidden if b.gains and b.gains.branch and b.gains.hidden else None

        mixes = branch.kind == "attention"
        names = ("score", "value") if mixes else ("inward", "linear", "bias")
        single = {name: law(f"the {name} gain", gain(name), SCATTER) for name in names}
        outward = None if mixes or branch.experts else law("the outward gain", gain("outward"), SCATTER)
        size = law("the size", gain("branch"), SCATTER) if branch.output_norm else None
        ratio = law("the outward gain", routed, SCATTER) if branch.experts else None
        hidden = None if not ratio else (1.0 if size is None else size / ratio)
        parts = dict.fromkeys(("score", "position", "value", "inward", "linear", "bias")) | single
        return Gains(**parts, outward=outward, hidden=hidden, branch=ratio if size is None else size)

    def _pooled(
        self, build: Build, kind: int, number: int, what: str, read: Read, scatter: float
    ) -> float | None:
        """One value for the layers of a kind; they must agree but for chance."""
        values = [
            read(stack.blocks[i].branches[number]) for stack in build.draws for i in self._places(build, kind)
        ]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            return None
        pooled = math.sqrt(sum(v * v for v in numbers) / len(numbers))
        if any(abs(abs(v) - pooled) > scatter * pooled for v in numbers):
            listed = ", ".join(f"{v:.3g}" for v in numbers)
            raise BadInput(
                f"{what} differs between layers of one kind, {listed}, by a rule that small models do not show. Build "
                "the model and describe that."
            )
        return math.copysign(pooled, numbers[0])


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _structure(branch: Branch) -> tuple[Any, ...]:
    return tuple(getattr(branch, name) for name in STRUCTURE)


def _difference(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]]) -> str:
    return next(_differences(one, other), f"{len(one)} branches and {len(other)}")


def _differences(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    for a, b in zip(one, other, strict=False):
        for name, x, y in zip(STRUCTURE, a, b, strict=True):
            if x != y:
                yield f"{name} {x} and {y}"
