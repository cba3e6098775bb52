"""What a plan may not touch: parameters the user keeps, and ties that reach beyond the blocks.

The repeated stack of any module: the layers that follow each other, found by their class and shapes.

Changes for the parameters of a stack that are known by their path in a layer only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from edgewise.adapters.roles.record import Projection
from edgewise.errors import BadInput
from edgewise.repair.plan import Change

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


def matrix_changes(
    model: nn.Module, layers: Layers, paths: Sequence[str], kept: Kept, draw: str, reason: str, unit: bool = False
) -> tuple[Change, ...]:
    """A change for each of these matrices in every layer, at its own standard deviation, or at gain one (`unit`)."""
    made = []
    for name, path in _named(layers, paths, kept):
        parameter = model.get_parameter(name)
        fan_in = math.prod(parameter.shape[1:])
        old = _rms(parameter)
        kind = f"delta-{draw}" if draw in ("orthogonal", "mirrored") and parameter.ndim > 2 else draw
        place = Projection(path.removesuffix(".weight"), (name,), fan_in, parameter.shape[0])
        new = 1 / math.sqrt(fan_in) if unit else old
        made.append(Change(place, old, new, kind, reason, _groups(model, name)))
    return tuple(made)


def norm_changes(
    model: nn.Module, layers: Layers, offsets: Mapping[str, float], kept: Kept, reason: str
) -> tuple[Change, ...]:
    """Gains of norms (path: what the module adds to them), all entries at their present root mean square."""
    made = []
    for name, path in _named(layers, tuple(offsets), kept):
        gain = _rms(model.get_parameter(name).detach() + offsets[path])
        change = _vector(model, name, path, gain, "constant", reason)
        made.append(replace(change, old_std=gain, offset=offsets[path]))
    return tuple(made)


def zero_biases(model: nn.Module, layers: Layers, paths: Sequence[str], kept: Kept) -> tuple[Change, ...]:
    """Biases that are not zero become so: they add the same vector to every item."""
    reason = "adds the same vector to every item"
    return tuple(
        _vector(model, name, path, 0.0, "zero", reason)
        for name, path in _named(layers, paths, kept)
        if bool(model.get_parameter(name).detach().any())
    )


def copied(model: nn.Module, layers: Layers, paths: Sequence[str]) -> list[str]:
    """Matrices equal to the first layer's without being the same parameter: layers made by copying one."""
    found = []
    for path in paths:
        first = model.get_parameter(f"{layers.names[0]}.{path}")
        for layer in layers.names[1:]:
            other = model.get_parameter(f"{layer}.{path}")
            if other is not first and bool(first.any()) and torch.equal(first, other):
                found.append(f"{layer}.{path}")
    return found


def _named(layers: Layers, paths: Sequence[str], kept: Kept) -> list[tuple[str, str]]:
    names = [(f"{layer}.{path}", path) for path in paths for layer in layers.names]
    return [(name, path) for name, path in names if kept.allows(name) and kept.first(name)]


def _vector(model: nn.Module, name: str, path: str, value: float, draw: str, reason: str) -> Change:
    parameter = model.get_parameter(name)
    place = Projection(path, (name,), 1, parameter.numel())
    return Change(place, _rms(parameter), value, draw, reason)


def _rms(parameter: Tensor) -> float:
    return float(parameter.detach().double().square().mean().sqrt())


def _groups(model: nn.Module, name: str) -> int:
    return int(getattr(model.get_submodule(name.rpartition(".")[0]), "groups", 1))


@dataclass
class Kept:
    """Names to be left alone: whole parameters, modules (all below them) or patterns with * (fnmatch)."""

    names: frozenset[str]
    tied: dict[str, tuple[str, ...]]  # parameter: all its names
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module, keep: Sequence[str]) -> Kept:
        """Refuses a name that is nowhere: a typing error would silently change what was to be kept."""
        if isinstance(keep, str):
            raise BadInput(f"keep = {keep!r} is one text; expected a list of names, for example keep=[{keep!r}].")
        names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        found: set[str] = set()
        for pattern in keep:
            hit = {n for n in names if n == pattern or n.startswith(f"{pattern}.") or fnmatch(n, pattern)}
            if not hit:
                raise BadInput(f"keep names {pattern!r}, which is no parameter, module or pattern of this model.")
            found |= hit
        return cls(frozenset(found), _ties(model))

    def allows(self, name: str) -> bool:
        """Not kept under any of its names."""
        return not any(other in self.names for other in self.tied.get(name, (name,)))

    def first(self, name: str) -> bool:
        """True for the one name under which a shared parameter is listed."""
        return self.tied.get(name, (name,))[0] == name


def _ties(model: nn.Module) -> dict[str, tuple[str, ...]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}
