"""The plane a training run moved in: principal components of its weights, relative to where it ended.

    rows theta_t - theta_end (T, parameters); their Gram matrix (T, T) gives the components without the large one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edgewise.adapters.unwrap import unwrap
from edgewise.errors import BadInput
from edgewise.landscape.direction import Direction

MARGIN = 1.2  # of the picture around the path


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
    """The path of a recorder, or of state dicts in the order of time; the model is its end and the centre."""
    bare = unwrap(model)
    points = states.states if isinstance(states, Recorder) else list(states)
    end = {name: p.detach() for name, p in bare.named_parameters() if p.is_floating_point()}
    if len(points) < 3:
        raise BadInput(f"a plane needs at least three states along the path, got {len(points)}.")
    for number, state in enumerate(points):
        wrong = next((n for n, p in end.items() if n not in state or state[n].shape != p.shape), None)
        if wrong is not None:
            raise BadInput(f"state {number} has no {wrong} of shape {tuple(end[wrong].shape)}: another network.")
    rows = torch.stack([torch.cat([(s[n].to(p) - p).double().flatten() for n, p in end.items()]) for s in points])
    return _components(rows, end)


def _components(rows: Tensor, end: Mapping[str, Tensor]) -> Path:
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    if not values[1] > 1e-12 * values[0]:
        raise BadInput("the states lie on one line (or one point): there is no plane. Use line with toward(...).")
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
