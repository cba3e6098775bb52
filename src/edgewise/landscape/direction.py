"""A direction in the space of weights: one tensor for every parameter that it moves.

How long a direction is beside the weights it moves: by filter, by layer, by model [Li 2018].

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
TURNED = ("Conv1D", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")  # outputs in the second dimension


def normalized(
    model: nn.Module, direction: Mapping[str, Tensor], start: Mapping[str, Tensor], masks: Mapping[str, Tensor],
    kind: str,
) -> dict[str, Tensor]:  # fmt: skip
    """The direction (zero outside the masks) with lengths taken from the weights at the start."""
    if kind not in NORMALIZATIONS:
        raise BadInput(f"normalization = {kind!r} is not known: expected one of {', '.join(NORMALIZATIONS)}.")
    weights = {name: start[name] * masks[name] for name in direction}
    if kind == "none":
        return dict(direction)
    if kind == "model":
        factor = _ratio(_length(weights), _length(direction))
        return {name: d * factor.to(d.dtype) for name, d in direction.items()}
    kept = {name: filter_dimensions(model, name) if kind == "filter" else () for name in direction}
    return {name: d * _ratio(_norms(weights[name], kept[name]), _norms(d, kept[name])) for name, d in direction.items()}


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


def _norms(tensor: Tensor, kept: tuple[int, ...]) -> Tensor:
    others = [k for k in range(tensor.ndim) if k not in kept]
    return tensor.double().square().sum(others, keepdim=True).sqrt().to(tensor.dtype) if others else tensor.abs()


def _length(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([t.double().square().sum().cpu() for t in tensors.values()]).sum().sqrt()


def _ratio(wanted: Tensor, present: Tensor) -> Tensor:
    """wanted / present, zero where there is nothing to scale."""
    return torch.where(present > 0, wanted / present.clamp_min(torch.finfo(present.dtype).tiny), 0.0)


PARALLEL = 1 - 1e-6  # cosine above which two directions span a line and no plane


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
        raise BadInput(f"a direction was given as {type(along).__name__}: expected a name, an Along or a Direction.")
    masks = support(bare, along)
    weights = {name: p.detach() for name, p in bare.named_parameters()} | dict(start or {})
    drawn = {name: _drawn(weights[name], mask, seed, name) for name, mask in masks.items()}
    made = Direction(str(along), normalized(bare, drawn, weights, masks, normalization))
    if not made.length > 0 or not math.isfinite(made.length):
        raise BadInput(
            f"the direction {made.name!r} has length {made.length:g}: the weights it would be scaled to are zero or "
            'not finite. Use normalization="none", or move other weights.'
        )
    return made


def toward(model: nn.Module, state: Mapping[str, Tensor], name: str = "toward the other") -> Direction:
    """From this model's weights to those of a state dict: reach 1 is there."""
    bare = unwrap(model)
    found = {}
    for key, p in bare.named_parameters():
        if key not in state or state[key].shape != p.shape:
            shape = tuple(state[key].shape) if key in state else "nothing"
            raise BadInput(f"{key} is {tuple(p.shape)} in the model and {shape} in the state: not the same network.")
        if p.is_floating_point() and not torch.equal(state[key].to(p), p.detach()):
            found[key] = state[key].to(p) - p.detach()
    if not found:
        raise BadInput("the state is this model itself: there is no direction between them.")
    return Direction(name, found)


def prepared(
    model: nn.Module, wanted: Sequence[Wanted], seed: int, normalization: str, start: Mapping[str, Tensor]
) -> list[Direction]:
    """Directions as asked for: given ones are checked and kept, names are drawn, each axis from its own stream."""
    if isinstance(wanted, (str, Along, Direction)) or not all(isinstance(w, (str, Along, Direction)) for w in wanted):
        raise BadInput(f"directions = {wanted!r} is not possible: expected one name, Along or Direction per axis.")
    made = [
        _checked(model, w) if isinstance(w, Direction)
        else random_direction(model, w, seed=1000 * seed + axis, normalization=normalization, start=start)
        for axis, w in enumerate(wanted)
    ]  # fmt: skip
    if len(made) == 2:
        cosine = abs(made[0].dot(made[1])) / (made[0].length * made[1].length)
        if cosine > PARALLEL:
            raise BadInput(f"{made[0].name!r} and {made[1].name!r} are parallel (cosine {cosine:.6f}): use line.")
    return made


def _checked(model: nn.Module, direction: Direction) -> Direction:
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for name, tensor in direction.tensors.items():
        if shapes.get(name) != tensor.shape:
            raise BadInput(f"the direction {direction.name!r} moves {name} {tuple(tensor.shape)}; the model has none.")
    if not direction.length > 0 or not math.isfinite(direction.length):
        raise BadInput(f"the direction {direction.name!r} has length {direction.length:g}; it leads nowhere.")
    return direction


def _drawn(weight: Tensor, mask: Tensor, seed: int, name: str) -> Tensor:
    """The stream depends on seed and name alone, so that leaving out a parameter changes no other."""
    number = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")
    entries = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    return entries.to(weight) * mask
