"""One grid of losses around a model: what `line` and `plane` have in common.

On disk it is written row by row, whole each time, continued after a kill, and refused for another grid.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from edgewise.arrays import Array
from edgewise.errors import BadInput
from edgewise.files import whole_file
from edgewise.landscape.direction import Direction, Wanted, directions_of
from edgewise.landscape.evaluation import Evaluate, Loss, Surface, batches_of, own_loss, plain, shortest_way
from edgewise.landscape.grid_file import GridFile, checked_axes, read_grid
from edgewise.landscape.rebalance import check_unchanged, rebalanced
from edgewise.landscape.roughness import Roughness, roughness
from edgewise.models.unwrap import unwrap
from edgewise.progress import Tell, progress_bar

Reach = float | str | Sequence[float]
RISE = 0.5  # of the loss at the centre, at which an automatic reach ends
SMALLEST = 2.0**-8  # of the length of the weights, at which it begins


@dataclass(frozen=True)
class Settings:
    """How to look; the same for a line and a plane."""

    points: int = 25
    reach: Reach = 1.0
    normalization: str = "filter"
    seed: int = 0
    rebalance: bool = False
    method: str = "auto"
    file: str | Path | None = None
    progress: Tell | bool | None = None


@dataclass(frozen=True, eq=False)
class Grid:
    """Losses over one or two axes; the centre is the model. losses[row, column] is at (x[column], y[row])."""

    axes: tuple[Array, ...]
    losses: Array
    names: tuple[str, ...]
    normalization: str
    seed: int
    rebalanced: bool
    method: str  # how it was computed
    path: Array | None = field(default=None, kw_only=True)  # (steps, axes): where training came from

    @property
    def centre(self) -> float:
        return float(self.losses[tuple(size // 2 for size in self.losses.shape)])

    @property
    def reach(self) -> tuple[float, ...]:
        return tuple(float(axis[-1]) for axis in self.axes)

    @property
    def roughness(self) -> Roughness:
        return roughness(self.axes, self.losses)

    def __str__(self) -> str:
        size = " x ".join(str(len(axis)) for axis in self.axes)
        far = " x ".join(f"{r:g}" for r in self.reach)
        return f"{' against '.join(self.names)}: {size} points to reach {far}, loss {self.centre:.4g}; {self.roughness}"

    def save(self, file: str | Path) -> None:
        """As .npz, readable with `load`."""
        facts = self._facts()
        with whole_file(file) as opened:
            np.savez(opened, losses=self.losses, rows=len(self.losses), facts=json.dumps(facts))

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """A saved grid, or the file that a finished computation left."""
        losses, rows, facts = read_grid(file)
        if rows < len(losses):
            raise BadInput(
                f"{file} holds {rows} of {len(losses)} rows. Compute it again with file=...: it continues."
            )
        axes, names, path = checked_axes(file, losses, facts)
        return cls(
            axes,
            losses,
            names,
            facts["normalization"],
            facts["seed"],
            facts["rebalanced"],
            facts["method"],
            path=path,
        )

    def _facts(self) -> dict[str, Any]:
        path = None if self.path is None else self.path.tolist()
        return {
            "grid": [a.tolist() for a in self.axes],
            "names": list(self.names),
            "seed": self.seed,
            "path": path,
            "normalization": self.normalization,
            "rebalanced": self.rebalanced,
            "method": self.method,
        }


def compute_grid(
    model: nn.Module, loss: Loss | None, batch: Any, wanted: Sequence[Wanted], settings: Settings
) -> tuple[tuple[Array, ...], Array, dict[str, Any]]:
    """Axes, losses and the facts of a grid around the model."""
    _refuse(model, settings)
    bare, loss, batches = unwrap(model), loss or own_loss, batches_of(batch)
    start = rebalanced(bare) if settings.rebalance else {}
    directions = directions_of(bare, wanted, settings.seed, settings.normalization, start)
    surface = Surface(bare, loss, batches, directions, start)
    centre = _centre(surface, bare, start)
    scaled = settings.normalization != "none" and not any(isinstance(w, Direction) for w in wanted)
    reach = _reach(settings.reach, surface, centre, 1.0 if scaled else _longest(surface))
    axes = tuple(np.linspace(-r, r, settings.points) for r in reach)
    evaluate, method = shortest_way(surface, max(reach), settings.method)
    grid = {
        "grid": [axis.tolist() for axis in axes],
        "seed": settings.seed,
        "rebalanced": settings.rebalance,
        "normalization": settings.normalization,
    }
    facts = facts_of(bare, loss, batches, directions, centre, grid)
    facts |= {"names": [d.name for d in directions], "path": None}
    losses = _losses(evaluate, axes, facts, method, settings)
    return axes, losses, facts | {"method": method}


def _losses(
    evaluate: Evaluate, axes: tuple[Array, ...], facts: Mapping[str, Any], method: str, how: Settings
) -> Array:
    """Row by row; finished rows of the file are not computed again."""
    columns, rows = axes[0], axes[1] if len(axes) == 2 else np.zeros(1)
    file = None if how.file is None else GridFile(how.file, facts)
    stored = None if file is None else file.read()
    losses, done = stored if stored is not None else (np.full((len(rows), len(columns)), np.nan), 0)
    losses = losses.reshape(len(rows), len(columns))
    if file is not None:
        file.facts["method"] = method
    with progress_bar(how.progress, "landscape") as tell:
        for i in range(done, len(rows)):
            for j, x in enumerate(columns):
                losses[i, j] = evaluate([float(x), float(rows[i])][: len(axes)])
                tell((i * len(columns) + j + 1) / losses.size)
            if file is not None:
                file.write(
                    losses if len(axes) == 2 else losses[0], (i + 1) if len(axes) == 2 else len(columns)
                )
    return losses if len(axes) == 2 else losses[0]


def _centre(surface: Surface, model: nn.Module, start: Mapping[str, Tensor]) -> float:
    """The loss where the model is; refused when it is not finite, or when rebalancing has changed it."""
    centre = surface.at([0.0] * len(surface.directions))
    if not math.isfinite(centre):
        raise BadInput(f"the loss of the model itself is {centre}: there is no landscape around it.")
    if start:
        plain = Surface(model, surface.module.function[0], surface.batches, surface.directions, {})
        check_unchanged(plain.at([0.0] * len(surface.directions)), centre, surface.dtype)
    return centre


def _reach(wanted: Reach, surface: Surface, centre: float, most: float) -> list[float]:
    axes = len(surface.directions)
    if wanted == "auto":
        return [_automatic_reach(surface.at, axes, centre, most)] * axes
    values = [wanted] * axes if isinstance(wanted, (int, float)) else wanted
    fine = not isinstance(values, str) and len(values) == axes
    if not fine or not all(isinstance(v, (int, float)) and math.isfinite(v) and v > 0 for v in values):
        raise BadInput(f"reach must be a number above 0, one per axis, or 'auto', got {wanted!r}.")
    return [float(v) for v in values]


def _automatic_reach(evaluate: Evaluate, axes: int, centre: float, most: float) -> float:
    """The smallest reach, doubling, at which the loss on the edge differs by RISE of the centre; at most `most`.

    A loss that is zero at the centre has no scale of its own: then `most` is taken.
    """
    edge = [c for c in product((-1.0, 0.0, 1.0), repeat=axes) if any(c)]
    wanted, before = RISE * abs(centre), 0.0
    reach = SMALLEST * most
    if not wanted > 0:
        return most
    while reach < most:
        change = max(_change(evaluate([reach * c for c in point]), centre) for point in edge)
        if change >= wanted:
            return _between(reach, before, change, wanted)
        before, reach = change, 2 * reach
    return most


def _change(loss: float, centre: float) -> float:
    return abs(loss - centre) if math.isfinite(loss) else math.inf


def _between(reach: float, before: float, change: float, wanted: float) -> float:
    """Between reach/2 and reach, in the logarithm; two digits, so that rounding does not change the grid."""
    if before <= 0 or not math.isfinite(change):
        return float(f"{reach / 2:.2g}")
    share = math.log(wanted / before) / math.log(change / before)
    return float(f"{reach * 2 ** (share - 1):.2g}")


def _longest(surface: Surface) -> float:
    """How long the moved weights are beside the longest direction."""
    weights = math.sqrt(sum(float(t.double().square().sum()) for t in surface.moved.values()))
    return weights / max(direction.length for direction in surface.directions)


def _refuse(model: object, settings: Settings) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"expected a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(settings.points, int) or settings.points < 5 or settings.points % 2 == 0:
        raise BadInput(f"points must be an odd number of at least 5, got {settings.points!r}.")


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """16 digits that change with any name, shape or number."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def facts_of(
    model: nn.Module,
    loss: Any,
    batches: list[Any],
    directions: list[Direction],
    centre: float,
    grid: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that decides the numbers of a grid, by the name a refusal uses."""
    state = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    leaves = [leaf for batch in batches for leaf in tree_leaves(plain(batch)) if isinstance(leaf, Tensor)]
    return {
        "model": fingerprint(state),
        "batch": fingerprint({str(k): t for k, t in enumerate(leaves)}),
        "loss": f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}",
        "loss at the centre": centre,
        "directions": [f"{d.name} {fingerprint(d.tensors)}" for d in directions],
        **grid,
    }
