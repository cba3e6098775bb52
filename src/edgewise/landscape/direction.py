"""Directions in the space of weights: random and scaled to the filters [Li 2018], toward a state, of a path.

    filter  d_i <- d_i |w_i| / |d_i| for every output row i (filter of a convolution, row of an embedding)
    layer   the same for every parameter as a whole          model   the same for all that moves

A row whose weights are zero does not move. Reach 1 then means: as far as the weights are long.

A training run brings two directions of its own, the plane it moved in: principal components of its weights, relative
to its end. Of the rows theta_t - theta_end (T, parameters) the Gram matrix (T, T) gives the components without
the large one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgewise.arrays import in_double
from edgewise.errors import BadInput
from edgewise.landscape.support import Along, support
from edgewise.models.model_map import ModelMap
from edgewise.models.unwrap import unwrap

NORMALIZATIONS = ("filter", "layer", "model", "none")
PARALLEL = 1 - 1e-6  # cosine above which two directions span a line and no plane
# outputs in the second dimension
TURNED = ("Conv1D", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
MARGIN = 1.2  # of the picture around the path


@dataclass(frozen=True, eq=False)
class Direction:
    """theta + a d: `tensors` by parameter name; what is not named stays."""

    name: str
    tensors: dict[str, Tensor]

    @property
    def length(self) -> float:
        return math.sqrt(sum(float(in_double(t).square().sum()) for t in self.tensors.values()))

    def dot(self, other: Direction) -> float:
        shared = self.tensors.keys() & other.tensors.keys()
        return sum(
            float((in_double(self.tensors[n]) * in_double(other.tensors[n])).sum()) for n in sorted(shared)
        )


Wanted = str | Along | Direction


def random_direction(
    model: nn.Module | ModelMap,
    along: str | Along = "*",
    *,
    seed: int = 0,
    normalization: str = "filter",
    start: Mapping[str, Tensor] | None = None,
) -> Direction:
    """Draw independent N(0, 1) entries for what `along` moves, scaled to the weights.

    Numbers depend on seed and parameter name alone: two models with parameters of the same names get the same draw.
    """
    where = ModelMap.of(model)
    bare = where.model
    along = Along(along) if isinstance(along, str) else along
    if not isinstance(along, Along):
        raise BadInput(f"a direction must be a name, an Along or a Direction, got {type(along).__name__}.")
    masks = support(where, along)
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
    """Return the direction from this model's weights to those of a state dict; reach 1 is there."""
    bare = unwrap(model)
    difference = {}
    for key, p in bare.named_parameters():
        if key not in state or state[key].shape != p.shape:
            shape = tuple(state[key].shape) if key in state else "nothing"
            raise BadInput(
                f"{key} is {tuple(p.shape)} in the model and {shape} in the state: not the same network."
            )
        if p.is_floating_point() and not torch.equal(state[key].to(p), p.detach()):
            difference[key] = state[key].to(p) - p.detach()
    if not difference:
        raise BadInput("the state equals this model, so no direction leads from one to the other.")
    return Direction(name, difference)


def directions_of(
    model: nn.Module, wanted: Sequence[Wanted], seed: int, normalization: str, start: Mapping[str, Tensor]
) -> list[Direction]:
    """Return the directions asked for: each is checked, or drawn by its name from the stream of its axis."""
    if isinstance(wanted, (str, Along, Direction)) or not all(
        isinstance(w, (str, Along, Direction)) for w in wanted
    ):
        raise BadInput(f"directions must be one name, Along or Direction per axis, got {wanted!r}.")
    where = ModelMap(model)  # one reading for all axes
    directions = [
        _check(model, w)
        if isinstance(w, Direction)
        else random_direction(where, w, seed=1000 * seed + axis, normalization=normalization, start=start)
        for axis, w in enumerate(wanted)
    ]
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
    """Return the stream depends on seed and name alone, so that leaving out a parameter changes no other."""
    number = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:7], "big")
    entries = torch.randn(weight.shape, generator=torch.Generator().manual_seed(number))
    return entries.to(weight) * mask


def normalize(
    model: nn.Module,
    direction: Mapping[str, Tensor],
    start: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    kind: str,
) -> dict[str, Tensor]:
    """Return the direction (zero outside the masks) with lengths taken from the weights at the start."""
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
    """Return the dimensions that number the filters of a parameter; a vector is one filter."""
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
    return in_double(tensor).square().sum(others, keepdim=True).sqrt().to(tensor) if others else tensor.abs()


def _length(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([in_double(t).square().sum().cpu() for t in tensors.values()]).sum().sqrt()


def _ratio(wanted: Tensor, present: Tensor) -> Tensor:
    """wanted / present, zero if there is nothing to scale."""
    return torch.where(present > 0, wanted / present.clamp_min(torch.finfo(present.dtype).tiny), 0.0)


@dataclass(frozen=True, eq=False)
class Path:
    """Two orthogonal unit directions, the places of training in them (steps, 2), and their shares of its movement."""

    directions: tuple[Direction, Direction]
    coordinates: NDArray[np.float64]
    shares: tuple[float, float]

    @property
    def reach(self) -> tuple[float, float]:
        """Far enough on both sides to show every step; a component that hardly moved gets a tenth of the other."""
        x, y = (MARGIN * float(np.abs(column).max()) for column in self.coordinates.T)
        return max(x, y / 10), max(y, x / 10)


class Recorder:
    """Keeps copies of the weights along a run: call it whenever a step should be recorded."""

    def __init__(self, model: nn.Module) -> None:
        self.model = unwrap(model)
        self.states: list[dict[str, Tensor]] = []
        self()

    def __call__(self) -> None:
        self.states.append({name: p.detach().cpu().clone() for name, p in self.model.named_parameters()})


def training_path(model: nn.Module, states: Recorder | Sequence[Mapping[str, Tensor]]) -> Path:
    """Return the path of a recorder, or of state dicts in the order of time; the model is its end and the center."""
    bare = unwrap(model)
    points = states.states if isinstance(states, Recorder) else list(states)
    end = {name: p.detach() for name, p in bare.named_parameters() if p.is_floating_point()}
    if len(points) < 3:
        raise BadInput(f"a plane needs at least three states along the path, got {len(points)}.")
    for number, state in enumerate(points):
        wrong = next((n for n, p in end.items() if n not in state or state[n].shape != p.shape), None)
        if wrong is not None:
            raise BadInput(
                f"state {number} has no {wrong} of shape {tuple(end[wrong].shape)}: another network."
            )
    rows = torch.stack(
        [torch.cat([in_double(s[n].to(p) - p).flatten() for n, p in end.items()]) for s in points]
    )
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    if not values[1] > 1e-12 * values[0]:
        raise BadInput(
            "the states lie on one line (or one point), not in a plane. Use line with toward(...)."
        )
    flat = vectors[:, :2].T @ rows / values[:2].sqrt()[:, None]
    sign = torch.where((rows @ flat.T)[0] < 0, -1.0, 1.0)  # training comes from the right and from above
    flat = flat * sign[:, None].to(flat)
    shares = [float(v / values.sum()) for v in values[:2]]
    names = [f"component {k + 1} of the path ({share:.0%})" for k, share in enumerate(shares)]
    axes = [Direction(name, _unflatten(row, end)) for name, row in zip(names, flat, strict=True)]
    return Path((axes[0], axes[1]), (rows @ flat.T).cpu().numpy(), (shares[0], shares[1]))


def _unflatten(row: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    sizes = [t.numel() for t in like.values()]
    parts = zip(like.items(), row.split(sizes), strict=True)
    return {name: part.view(t.shape).to(t) for (name, t), part in parts}
