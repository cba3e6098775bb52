"""The repeated stack of any module: the layers that follow each other, found by their class and shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from edgewise.errors import BadInput

# Classes that say nothing about what is inside: members must agree in their shapes, not in their class alone.
GENERIC = (nn.Sequential, nn.ModuleList, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
LEAST = 3


@dataclass(frozen=True)
class Layers:
    """Names of the layers. A `leaf` is a bare matrix or filter, its activation outside: its output is a stream."""

    names: tuple[str, ...]
    leaf: bool

    @property
    def depth(self) -> int:
        return len(self.names)


def repeated(model: nn.Module) -> Layers:
    """The largest family of like siblings, by parameters; the outermost of several of one size."""
    best: tuple[int, tuple[str, ...]] = (0, ())
    for name, module in model.named_modules():
        for family in _families(module):
            size = sum(p.numel() for key in family for p in module.get_submodule(key).parameters())
            if size > best[0]:  # not >=: the same parameters found further inside do not count
                best = size, tuple(f"{name}.{key}".lstrip(".") for key in family)
    if not best[1]:
        raise BadInput(
            f"{type(model).__name__} has no repeated stack: no {LEAST} siblings of one class and shape that hold "
            "matrices. A plan needs layers that follow each other."
        )
    first = model.get_submodule(best[1][0])
    return Layers(best[1], leaf=not any(True for _ in first.children()))


def _families(module: nn.Module) -> Iterator[list[str]]:
    groups: dict[object, list[str]] = {}
    for key, child in module.named_children():
        shapes = tuple((path, tuple(p.shape)) for path, p in child.named_parameters())
        if not any(len(shape) > 1 for _, shape in shapes):
            continue
        alike = (type(child), shapes) if isinstance(child, GENERIC) else type(child)
        groups.setdefault(alike, []).append(key)
    yield from (family for family in groups.values() if len(family) >= LEAST)
