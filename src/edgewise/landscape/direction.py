"""A direction in the space of weights: one tensor for every parameter that it moves, as long as the weights [Li 2018].

    filter  d_i <- d_i |w_i| / |d_i| for every output row i (filter of a convolution, row of an embedding)
    layer   the same for every parameter as a whole          model   the same for all that moves

A row whose weights are zero does not move. Reach 1 then means: as far as the weights are long.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgewise.adapters.unwrap import unwrap
from edgewise.errors import BadInput
from edgewise.landscape.support import Along, support

NORMALIZATIONS = ("filter", "layer", "model", "none")
PARALLEL = 1 - 1e-6  # cosine above which two directions span a line and no plane
TURNED = ("Conv1D", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")  # outputs in the second dimension


@dataclass(frozen=True, eq=False)
class Direction:
    """theta + a d: `tensors` by parameter name; what is not named stays."""

    name: str
    tensors: dict[str, Tensor]

    @property
    def length(self) -> float:
        return math.sqrt(sum(float(t.double().square().sum()) for t in self.tensors.values()))

    def dot(self, other: Direction) -> float:
        shared = self.tensors.keys() & other.tensors.keys()
        return sum(float((self.tensors[n].double() * other.tensors[n].double()).sum()) for n in sorted(shared))


Wanted = str | Along | Direction


def random_direction(
    model: nn.Module, along: str | Along = "*", *, seed: int = 0, normalization: str = "filter",
    start: Mapping[str, Tensor] | None = None,
) -> Direction:  # fmt: skip
    """Independent N(0, 1) entries where `along` says, scaled to the weights.

    Numbers depend on seed and parameter name alone: two models with parameters of the same names get the same draw.
    """
    bare = unwrap(model)
    along = Along(along) if isinstance(along, str) else along
    if not isinstance(along, Along):
        raise BadInput(f"a direction must be a name, an Along or a Direction, got {type(along).__name__}.")
    masks = support(bare, along)
    weights = {name: p.detach() for name, p in bare.named_parameters()} | dict(start or {})
    entries = {name: _draw(weights[name], mask, seed, name) for name, mask in masks.items()}
    direction = Direction(str(along), normalize(bare, entries, weights, masks, normalization))
    if not direction.length > 0 or not math.isfinite(direction.length):
        raise BadInput(
            f"the direction {direction.name!r} has length {direction.length:g}: the weights that it is scaled to are "
            'zero or not finite. Use normalization="none", or move other weights.'
        )
    return direction


def toward(model: nn.Module, state: Mapping[str, Tensor], name: str = "toward the other") -> Direction:
    """From this model's weights to those of a state dict: reach 1 is there."""
    bare = unwrap(model)
    difference = {}
    for key, p in bare.named_parameters():
        if key not in state or state[key].shape != p.shape:
            shape = tuple(state[key].shape) if key in state else "nothing"
            raise BadInput(f"{key} is {tuple(p.shape)} in the model and {shape} in the state: not the same network.")
        if p.is_floating_point() and not torch.equal(state[key].to(p), p.detach()):
            difference[key] = state[key].to(p) - p.detach()
    if not difference:
        raise BadInput("the state equals this model: there is no direction between them.")
    return Direction(name, difference)


def directions_of(
    model: nn.Module, wanted: Sequence[Wanted], seed: int, normalization: str, start: Mapping[str, Tensor]
) -> list[Direction]:
    """The directions asked for: each is checked, or drawn by its name from the stream of its axis."""
    if isinstance(wanted, (str, Along, Direction)) or not all(isinstance(w, (str, Along, Direction)) for w in wanted):
        raise BadInput(f"directions must be one name, Along or Direction per axis, got {wanted!r}.")
    directions = [
        _check(model, w) if isinstance(w, Direction)
        else random_direction(model, w, seed=1000 * seed + axis, normalization=normalization, start=start)
        for axis, w in enumerate(wanted)
    ]  # fmt: skip
    if len(directions) == 2:
        cosine = abs(directions[0].dot(directions[1])) / (directions[0].length * directions[1].length)
        if cosine > PARALLEL:
            one, other = (direction.name for direction in directions)
            raise BadInput(f"{one!r} and {other!r} are parallel (cosine {cosine:.6f}): use line.")
    return directions


def _check(model: nn.Module, direction: Direction) -> Direction:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for name, tensor in direction.tensors.items():
        if shapes.get(name) != tensor.shape:
            moved = f"{name} {tuple(tensor.shape)}"
            raise BadInput(f"the direction {direction.name!r} moves {moved}, which the model does not have.")
    if not direction.length > 0 or not math.isfinite(direction.length):
        raise BadInput(f"the direction {direction.name!r} has length {direction.length:g}.")
    return direction


def _draw(weight: Tensor, mask: Tensor, seed: int, name: str) -> Tensor:
    """The stream depends on seed and name alone, so that leaving out a parameter changes no other."""
    number = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")
    entries = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    return entries.to(weight) * mask


def normalize(
    model: nn.Module, direction: Mapping[str, Tensor], start: Mapping[str, Tensor], masks: Mapping[str, Tensor],
    kind: str,
) -> dict[str, Tensor]:  # fmt: skip
    """The direction (zero outside the masks) with lengths taken from the weights at the start."""
    if kind not in NORMALIZATIONS:
        raise BadInput(f"normalization must be one of {', '.join(NORMALIZATIONS)}, got {kind!r}.")
    weights = {name: start[name] * masks[name] for name in direction}
    if kind == "none":
        return dict(direction)
    if kind == "model":
        factor = _ratio(_length(weights), _length(direction))
        return {name: d * factor.to(d.dtype) for name, d in direction.items()}
    filters = {name: filter_dimensions(model, name) if kind == "filter" else () for name in direction}
    return {
        name: d * _ratio(_norms(weights[name], filters[name]), _norms(d, filters[name]))
        for name, d in direction.items()
    }


def filter_dimensions(model: nn.Module, name: str) -> tuple[int, ...]:
    """The dimensions that number the filters of a parameter; a vector is one filter."""
    owner = model.get_submodule(name.rpartition(".")[0])
    parameter = model.get_parameter(name)
    if parameter.ndim < 2:
        return ()
    if type(owner).__name__ in TURNED:
        return (1,)
    convolution = isinstance(owner, nn.modules.conv._ConvNd)
    return (0, 1) if parameter.ndim == 3 and not convolution else (0,)  # experts: (expert, out, in)


def _norms(tensor: Tensor, filters: tuple[int, ...]) -> Tensor:
    others = [k for k in range(tensor.ndim) if k not in filters]
    return tensor.double().square().sum(others, keepdim=True).sqrt().to(tensor.dtype) if others else tensor.abs()


def _length(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([t.double().square().sum().cpu() for t in tensors.values()]).sum().sqrt()


def _ratio(wanted: Tensor, present: Tensor) -> Tensor:
    """wanted / present, zero where there is nothing to scale."""
    return torch.where(present > 0, wanted / present.clamp_min(torch.finfo(present.dtype).tiny), 0.0)
