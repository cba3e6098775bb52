"""Whole numbers at the config's sizes: heads, widths, windows, depth and length of one stack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from edgewise.errors import BadInput
from edgewise.models.behavior.record import Branch, Stack
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
)
from edgewise.models.small.small_config import small_config
from edgewise.models.small.small_model import Blueprint, without_weights


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
        words = re.split(r"[._]", self.first.name)  # encoder and decoder may have hidden widths of their own
        pairs.sort(key=lambda pair: pair[0].split("_")[0] not in words)
        yield from (full for _, full, small in pairs if small == width)
        yield from (full * (width // small) for _, full, small in pairs if small and width % small == 0)
        yield from (full * width // small for _, full, small in pairs if small and full * width % small == 0)
        yield width

    def _matrix_sizes(self, path: str) -> set[int]:
        """Of all parameters in a module at full width."""
        if self._full_model is None:
            scale = replace(self.builds[0][0], narrow=False)
            config = small_config(self.plan.config, self.plan.towers, scale)
            self._full_model = without_weights(self.plan.model_class, config)
        return {size for p in self._full_model.get_submodule(path).parameters() for size in p.shape}

    def _pairs(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, int, int]]:
        """(key, full, small) of the config's own numbers, and of configs inside it that have no width."""
        own = {path for path in self.plan.towers if path != self.tower.path}
        yield from _pairs(self.config, self.small, pattern, self.tower.path, own)

    def window(self, branch: Branch, longer: int | None) -> int | None:
        """A window follows the config's number with slope one, or one half where it is shared by both sides.

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
        """As the config says, where no list has a module for every block."""
        numbers = {v for k, v in self.config.to_dict().items() if DEPTH.match(k) and isinstance(v, int)}
        if len(numbers) != 1:
            raise BadInput(f"the number of blocks of {self.first.name} could not be found in the config.")
        return numbers.pop()

    def tokens(self) -> int | None:
        """Of an image as many as it has patches, and those beside them; None for what is no image."""
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
