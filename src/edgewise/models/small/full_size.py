"""Numbers of a small reading, scaled to the sizes of the config by power laws."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Block, Branch, Gains, Stack
from edgewise.models.readable import words
from edgewise.models.small.sizes import (
    DEPTH,
    HEADS,
    HIDDEN,
    KEY_HEADS,
    WINDOW,
    WINDOWS,
    Scale,
    Tower,
    inner_configs,
    small_config,
)
from edgewise.models.small.small_model import Blueprint, without_weights

UNIT, LARGEST = 0.5, 2.0  # exponents are multiples of the one up to the other
TOLERANCE = 0.17  # of an exponent: gains of small models scatter by a few hundredths


class NoPowerLaw(BadInput):
    """A number that follows no power of a size, as far as the models that were read tell."""


@dataclass(frozen=True)
class ModelSizes:
    """What gains may depend on, as logarithms: the width, the share of one head in it, the number of layers."""

    width: float
    share: float
    depth: float


WORDS = {"width": "the width", "share": "the width of a head", "depth": "the depth"}


def extrapolate(
    what: str, sizes: Sequence[ModelSizes], values: Sequence[float | None], full: ModelSizes
) -> float | None:
    """The value at full size; `sizes[0]` is where all directions start, every other differs from it in one."""
    if all(value is None for value in values):
        return None
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values) or not all(map(math.isfinite, numbers)):
        raise BadInput(
            f"{what} could be read at some sizes only; not described. Build the model and describe that."
        )
    if all(abs(number - numbers[0]) <= 1e-6 * abs(numbers[0]) for number in numbers):
        return numbers[0]
    if min(numbers) <= 0 <= max(numbers):
        raise BadInput(f"{what} is zero or changes sign with the size: {_text(numbers)}; not described.")
    logs = [math.log(abs(number)) for number in numbers]
    exponents = _exponents(what, sizes, logs)
    constants = [log - _power(exponents, point) for log, point in zip(logs, sizes, strict=True)]
    return math.copysign(math.exp(sum(constants) / len(constants) + _power(exponents, full)), numbers[0])


def _exponents(what: str, sizes: Sequence[ModelSizes], logs: Sequence[float]) -> ModelSizes:
    exponents = dict.fromkeys(WORDS, 0.0)
    for point, log in zip(sizes[1:], logs[1:], strict=True):
        name = next(f.name for f in fields(ModelSizes) if getattr(point, f.name) != getattr(sizes[0], f.name))
        slope = (log - logs[0]) / (getattr(point, name) - getattr(sizes[0], name))
        exponents[name] = UNIT * round(slope / UNIT)
        if abs(slope - exponents[name]) > TOLERANCE or abs(exponents[name]) > LARGEST:
            raise NoPowerLaw(
                f"{what} grows as {WORDS[name]} to the power {slope:.2f}. Expected a multiple of 1/2, as every usual "
                "initialization has, so its value at full size is not known. Build the model and describe that."
            )
    return ModelSizes(**exponents)


def _power(exponents: ModelSizes, point: ModelSizes) -> float:
    return sum(a * x for a, x in zip(astuple(exponents), astuple(point), strict=True))


def _text(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)


class FullNumbers:
    """Which config a stack belongs to, by its width at every scale; and its numbers there."""

    def __init__(self, plan: Blueprint, builds: Sequence[tuple[Scale, Stack]]) -> None:
        self.plan, self.builds = plan, builds
        self.first = builds[0][1]
        self._full_model: nn.Module | None = None
        self.tower = self._tower()
        self.config = _at(plan.config, self.tower.path)
        self.small = _at(plan.small(builds[0][0]), self.tower.path)

    def _tower(self) -> Tower:
        for tower in self.plan.towers.values():
            if all(stack.width == self._width(tower, scale) for scale, stack in self.builds):
                return tower
        raise BadInput(
            f"the stream of {self.first.name} is {self.first.width} wide in a small model, which no width of the "
            "config explains. Build the model and describe that."
        )

    def _width(self, tower: Tower, scale: Scale) -> int:
        return tower.part_of_stream(tower.width, scale) if self.plan.narrow else tower.width

    def sizes(self, branch: Branch) -> dict[str, int | None]:
        """Heads, key heads, head width and hidden width of a branch."""
        heads = self._named(HEADS, branch.heads, "heads")
        keys = (
            heads if branch.kv_heads == branch.heads else self._named(KEY_HEADS, branch.kv_heads, "key heads")
        )
        return {
            "heads": heads,
            "kv_heads": keys,
            "head_width": self._head_width(branch, heads),
            "hidden_width": self._hidden_width(branch),
        }

    def _named(self, pattern: re.Pattern[str], value: int | None, what: str) -> int | None:
        if value is None or not self.plan.narrow or not self.tower.shrinks:
            return value
        options = {name: full for name, full, small in self._pairs(pattern) if small == value}
        side = {
            full for name, full in options.items() if name.split("_")[0] in re.split(r"[._]", self.first.name)
        }
        full = side if len(side) == 1 else set(options.values())
        if len(full) == 1:
            return full.pop()
        if value == 1 and not full:
            return 1
        raise BadInput(
            f"{value} {what} of {self.first.name} in a small model could not be found in the config. Build the model "
            "and describe that."
        )

    def _head_width(self, branch: Branch, heads: int | None) -> int | None:
        if branch.head_width is None or heads is None or not self.plan.narrow or not self.tower.shrinks:
            return branch.head_width
        if branch.head_width * (branch.heads or 0) == self.first.width and heads * branch.head_width:
            own = self.tower.head_width
            return own if own and heads == self.tower.heads else self.tower.width // heads
        assert self.tower.head_width and self.tower.small_head_width
        return round(branch.head_width * self.tower.head_width / self.tower.small_head_width)

    def _hidden_width(self, branch: Branch) -> int | None:
        """A number of the config, or a multiple of a hidden width or of the stream's, that the full matrices have."""
        width = branch.hidden_width
        if width is None:
            return None
        sizes = self._matrix_sizes(branch.module)
        for value in self._candidates(width):
            if value in sizes or 2 * value in sizes:  # the halves of a gate may be one matrix
                return value
        raise BadInput(
            f"the hidden width {width} of {branch.module} in a small model could not be found in the config. Build the "
            "model and describe that."
        )

    def _candidates(self, width: int) -> Iterator[int]:
        pairs = [*self._pairs(HIDDEN), ("", self.tower.width, self._width(self.tower, self.builds[0][0]))]
        places = re.split(r"[._]", self.first.name)  # encoder and decoder may have hidden widths of their own
        pairs.sort(key=lambda pair: pair[0].split("_")[0] not in places)
        yield from (full for _, full, small in pairs if small == width)
        yield from (full * (width // small) for _, full, small in pairs if small and width % small == 0)
        yield from (full * width // small for _, full, small in pairs if small and full * width % small == 0)
        yield width

    def _matrix_sizes(self, path: str) -> set[int]:
        """Of all parameters in a module at full width."""
        if self._full_model is None:
            scale = replace(self.builds[0][0], narrow=False)
            config = small_config(self.plan.config, self.plan.towers, scale)
            try:
                self._full_model = without_weights(self.plan.model_class, config)
            except Exception as error:  # transformers and torch raise what they like
                raise BadInput(
                    f"a model of these sizes cannot be made: {words(error)}. Check its widths."
                ) from error
        return {size for p in self._full_model.get_submodule(path).parameters() for size in p.shape}

    def _pairs(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, int, int]]:
        """(key, full, small) of the config's own numbers, and of configs inside it that have no width."""
        own = {path for path in self.plan.towers if path != self.tower.path}
        yield from _pairs(self.config, self.small, pattern, self.tower.path, own)

    def window(self, branch: Branch, longer: int | None) -> int | None:
        """A window follows the config's number with slope one, or one half if it is shared by both sides.

        longer  the window of the same branch in the model of longer windows
        """
        if branch.window == longer:
            return branch.window
        full = {value for _, value, small in self._pairs(WINDOW) if small != value}
        slope = 0.0
        if branch.window is not None and longer is not None:
            slope = (longer - branch.window) / (WINDOWS[1] - WINDOWS[0])
        if len(full) != 1 or slope not in (0.5, 1.0):
            raise BadInput(
                f"the windows of {branch.module} follow no number of the config: {branch.window} and {longer} for "
                f"{WINDOWS[0]} and {WINDOWS[1]}. Build the model and describe that."
            )
        return int(branch.window + slope * (full.pop() - WINDOWS[0]))  # type: ignore[operator]

    def depth(self) -> int:
        """As the config says, if no list has a module for every block."""
        numbers = {v for k, v in self.config.to_dict().items() if DEPTH.match(k) and isinstance(v, int)}
        if len(numbers) != 1:
            raise BadInput(f"the number of blocks of {self.first.name} could not be found in the config.")
        return numbers.pop()

    def tokens(self) -> int | None:
        """Of an image as many as it has patches, and those beside them; None for what is not an image."""
        full, small = (_patches(c) for c in (self.config, self.small))
        if self.first.language or full is None or small is None or self.first.tokens < small:
            return None
        return self.first.tokens - small + full


def _at(config: Any, path: str) -> Any:
    for name in path.split(".") if path else ():
        config = getattr(config, name)
    return config


def _pairs(
    full: Any, small: Any, pattern: re.Pattern[str], path: str, others: set[str]
) -> Iterator[tuple[str, int, int]]:
    values: Mapping[str, Any] = full.to_dict()
    smaller: Mapping[str, Any] = small.to_dict()
    for name, value in values.items():
        if pattern.search(name) and isinstance(value, int) and not isinstance(value, bool):
            yield name, value, smaller[name]
    for name, inner in inner_configs(full):
        below = f"{path}.{name}" if path else name
        if below not in others:
            yield from _pairs(inner, getattr(small, name), pattern, below, others)


def _patches(config: Any) -> int | None:
    image, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if not isinstance(image, int) or not isinstance(patch, int) or not patch:
        return None
    return int((image // patch) ** 2)


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
    """The stack as the config has it, and the config which it belongs to; no tokens if the config decides."""
    full = _FullStack(plan, builds)
    return full.stack(), full.numbers.config


def full_kinds(plan: Blueprint, scale: Scale, stack: Stack) -> tuple[int, ...] | None:
    """The kind of every block at full depth; None if no list has a module for every block."""
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
        self.full = ModelSizes(math.log(tower.width), math.log(share), math.log(len(self.kinds)))

    def _sizes(self, build: Build) -> ModelSizes:
        tower, width, head = self.numbers.tower, build.stack.width, None
        if tower.head_width is not None:
            head = tower.part_of_head(tower.head_width, build.scale) if self.plan.narrow else tower.head_width
        return ModelSizes(math.log(width), math.log((head or width) / width), math.log(build.stack.depth))

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
