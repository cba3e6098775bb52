"""`plane`, `line`, `survey`: the loss over one or two directions in the space of weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.landscape.direction import Path as TrainingPath
from edgewise.landscape.direction import Wanted
from edgewise.landscape.evaluation import Batch, Loss
from edgewise.landscape.loss_grid import Grid, Reach, Roughness, Settings, compute_grid
from edgewise.progress import Tell


class Plane(Grid):
    """losses (rows, columns) at (x[column], y[row]); the center is the model."""

    @property
    def y(self) -> Array:
        return self.axes[1]


class LossLine(Grid):
    """losses (points,) at x; the center is the model."""


def plane(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    directions: Sequence[Wanted] | TrainingPath = ("queries", "keys"),
    *,
    points: int = 25,
    reach: Reach = 1.0,
    normalization: str = "filter",
    seed: int = 0,
    rebalance: bool = False,
    method: str = "auto",
    file: str | Path | None = None,
    progress: Tell | bool | None = None,
) -> Plane:
    """Return L(theta + x d_1 + y d_2) over a square around the model, which is not changed.

    loss           a function of (model, batch) that gives one number; None: the model's own, for batches with labels
    batch          one batch (tensor, tuple, dict), or a list of batches, whose mean loss is drawn
    directions     two of: "queries", "keys", "values", "outputs", a pattern of parameter names, an `Along` (by layer,
                   by head), a `Direction` (Hessian eigenvectors, toward another model); or a training path
    reach          how far, in units of the directions; one number or one per axis; "auto": until the loss has
                   changed by half. A path brings its own
    normalization  filter, layer, model or none, of directions that are drawn; a Direction stays as it is
    rebalance      draw around the same network with queries and keys of equal size (`rebalanced`)
    method         auto computes once what does not move; direct computes all at every point
    file           rows are stored here (.npz); a killed computation continues, another grid is rejected
    """
    settings = Settings(points, reach, normalization, seed, rebalance, method, file, progress)
    return _plane(model, loss, batch, directions, settings)


def _plane(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    directions: Sequence[Wanted] | TrainingPath,
    settings: Settings,
) -> Plane:
    path = directions if isinstance(directions, TrainingPath) else None
    if path is not None:
        settings = replace(settings, reach=path.reach if settings.reach == 1.0 else settings.reach)
    wanted = path.directions if path is not None else directions
    assert not isinstance(wanted, TrainingPath)
    if isinstance(wanted, str) or len(wanted) != 2:
        raise BadInput(f"directions must be two for a plane (use line for one), got {wanted!r}.")
    coordinates = None if path is None else path.coordinates
    return Plane.of(*compute_grid(model, loss, batch, wanted, settings), coordinates)


def line(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    direction: Wanted = "*",
    *,
    points: int = 51,
    reach: Reach = 1.0,
    normalization: str = "filter",
    seed: int = 0,
    rebalance: bool = False,
    method: str = "auto",
    file: str | Path | None = None,
    progress: Tell | bool | None = None,
) -> LossLine:
    """Return L(theta + x d) on both sides of the model; arguments as in `plane`, with one direction."""
    settings = Settings(points, reach, normalization, seed, rebalance, method, file, progress)
    return LossLine.of(*compute_grid(model, loss, batch, [direction], settings))


@dataclass(frozen=True, eq=False)
class Survey:
    """The same plane for several seeds of its directions: one picture is not evidence."""

    planes: tuple[Plane, ...]

    @property
    def roughness(self) -> tuple[Roughness, ...]:
        return tuple(plane.roughness for plane in self.planes)

    def mean(self, name: str) -> tuple[float, float]:
        """Return mean and standard error over seeds of range, residual, minima or sharpness."""
        values = np.array([float(getattr(each, name)) for each in self.roughness])
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        return float(values.mean()), float(error)

    def __str__(self) -> str:
        names = ("range", "sharpness", "residual", "minima")
        means = ", ".join("{} {:.3g} ± {:.2g}".format(name, *self.mean(name)) for name in names)
        return f"{' against '.join(self.planes[0].names)}, {len(self.planes)} direction seeds: {means}"


def survey(
    model: nn.Module,
    loss: Loss | None,
    batch: Batch,
    directions: Sequence[Wanted] = ("queries", "keys"),
    *,
    seeds: Iterable[int] = range(5),
    points: int = 25,
    reach: Reach = 1.0,
    normalization: str = "filter",
    rebalance: bool = False,
    method: str = "auto",
    progress: Tell | bool | None = None,
) -> Survey:
    """Return `plane` once for every seed of the directions; other arguments as there."""
    settings = Settings(points, reach, normalization, 0, rebalance, method, None, progress)
    planes = tuple(_plane(model, loss, batch, directions, replace(settings, seed=seed)) for seed in seeds)
    if not planes:
        raise BadInput("seeds is empty: give at least one.")
    return Survey(planes)
