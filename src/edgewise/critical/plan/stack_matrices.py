"""Changes for the parameters of a stack that are known by their path in a layer only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from edgewise.adapters.projections import Projection
from edgewise.critical.plan.constraints import Kept
from edgewise.critical.plan.plan import Change
from edgewise.critical.plan.stack import Layers


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
