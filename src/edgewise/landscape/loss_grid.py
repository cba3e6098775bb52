"""The grid of losses around a model that `line` and `plane` compute, its file, and its roughness.

The file is written whole after every row; an interrupted computation resumes from it, and another grid is rejected.

curvature   d²L at the center along the axes, second differences of the grid
residual    root mean square distance of the grid from its best quadratic, over the range of the grid
minima      grid points inside the picture that lie below all their neighbors
rounding    the last place of the loss: a range of a few of them shows arithmetic, not the network
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
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from edgewise.arrays import Array, in_double
from edgewise.errors import BadInput, MissingArray
from edgewise.files import LARGEST_ARRAYS, open_regular, read_arrays, whole_file
from edgewise.landscape import evaluation
from edgewise.landscape.direction import Direction, Wanted, directions_of
from edgewise.landscape.evaluation import Batch, Evaluate, Loss, Surface
from edgewise.landscape.support import check_unchanged, rebalanced
from edgewise.models.unwrap import unwrap
from edgewise.progress import Tell, progress_bar

Facts = Mapping[str, Any]  # what a grid is of, by name
Reach = float | str | Sequence[float]
RISE = 0.5  # of the loss at the center, at which an automatic reach ends
SMALLEST = 2.0**-8  # of the length of the weights, at which it begins
CLOSE = 1e-5  # relative: losses at the center on two machines
TEXTS, SWITCHES, COUNTS = ("normalization", "method"), ("rebalanced",), ("seed",)


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
    """Losses over one or two axes; the center is the model. losses[row, column] is at (x[column], y[row])."""

    axes: tuple[Array, ...]
    losses: Array
    names: tuple[str, ...]
    normalization: str
    seed: int
    rebalanced: bool
    method: str  # how it was computed
    path: Array | None = field(default=None, kw_only=True)  # (steps, axes): where training came from

    @property
    def x(self) -> Array:
        return self.axes[0]

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
        """Save as .npz, readable with `load`."""
        facts = self._facts()
        with whole_file(file) as opened:
            np.savez(opened, losses=self.losses, rows=len(self.losses), facts=json.dumps(facts))

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Return a saved grid, or the file that a finished computation left."""
        losses, rows, facts = read_grid(file)
        if rows < len(losses):
            raise BadInput(
                f"{file} holds {rows} of {len(losses)} rows. Compute it again with file=...: it continues."
            )
        axes, names, path = checked_axes(file, losses, facts)
        return cls.of(axes, losses, {**facts, "names": names}, path)

    @classmethod
    def of(cls, axes: tuple[Array, ...], losses: Array, facts: Facts, path: Array | None = None) -> Self:
        """Return the grid of some losses and the facts that they were computed with."""
        settings = (facts[name] for name in ("normalization", "seed", "rebalanced", "method"))
        return cls(axes, losses, tuple(facts["names"]), *settings, path=path)

    def _facts(self) -> Facts:
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
    model: nn.Module, loss: Loss | None, batch: Batch, wanted: Sequence[Wanted], settings: Settings
) -> tuple[tuple[Array, ...], Array, Facts]:
    """Return axes, losses and the facts of a grid around the model."""
    _refuse(model, settings)
    bare, loss, batches = unwrap(model), loss or evaluation.own_loss, evaluation.batches_of(batch)
    start = rebalanced(bare) if settings.rebalance else {}
    directions = directions_of(bare, wanted, settings.seed, settings.normalization, start)
    surface = Surface(bare, loss, batches, directions, start)
    centre = surface.at([0.0] * len(surface.directions))
    if not math.isfinite(centre):
        raise BadInput(f"the loss of the model itself is {centre}, which has no landscape around it.")
    if start:
        plain = Surface(bare, surface.module.function[0], surface.batches, surface.directions, {})
        check_unchanged(plain.at([0.0] * len(surface.directions)), centre, surface.dtype)
    scaled = settings.normalization != "none" and not any(isinstance(w, Direction) for w in wanted)
    reach = _reach(settings.reach, surface, centre, 1.0 if scaled else _longest(surface))
    axes = tuple(np.linspace(-r, r, settings.points) for r in reach)
    evaluate, method = evaluation.shortest_way(surface, max(reach), settings.method)
    grid = {
        "grid": [axis.tolist() for axis in axes],
        "seed": settings.seed,
        "rebalanced": settings.rebalance,
        "normalization": settings.normalization,
    }
    names = {"names": [d.name for d in directions], "path": None}
    facts = {**facts_of(bare, loss, batches, directions, centre, grid), **names}
    losses = _losses(evaluate, axes, facts, method, settings)
    return axes, losses, {**facts, "method": method}


def _losses(evaluate: Evaluate, axes: tuple[Array, ...], facts: Facts, method: str, how: Settings) -> Array:
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
                file.write(*((losses, i + 1) if len(axes) == 2 else (losses[0], len(columns))))
    return losses if len(axes) == 2 else losses[0]


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
    """Return the smallest reach, doubling, at which the loss on the edge differs by RISE of the center; at most `most`.

    A loss that is zero at the center has no scale of its own: then `most` is taken.
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
    """Return how long the moved weights are beside the longest direction."""
    weights = math.sqrt(sum(float(in_double(t).square().sum()) for t in surface.moved.values()))
    return weights / max(direction.length for direction in surface.directions)


def _refuse(model: object, settings: Settings) -> None:
    if not isinstance(model, nn.Module):
        raise BadInput(f"expected a torch.nn.Module, got {type(model).__name__}.")
    if not isinstance(settings.points, int) or settings.points < 5 or settings.points % 2 == 0:
        raise BadInput(f"points must be an odd number of at least 5, got {settings.points!r}.")


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return 16 digits that change with any name, shape or number."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def facts_of(
    model: nn.Module,
    loss: Loss,
    batches: list[Batch],
    directions: list[Direction],
    centre: float,
    grid: Facts,
) -> Facts:
    """Return everything that decides the numbers of a grid, by the name an error uses."""
    state = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    leaves = [
        leaf for batch in batches for leaf in tree_leaves(evaluation.plain(batch)) if isinstance(leaf, Tensor)
    ]
    return {
        "model": fingerprint(state),
        "batch": fingerprint({str(k): t for k, t in enumerate(leaves)}),
        "loss": f"{getattr(loss, '__module__', '')}.{getattr(loss, '__qualname__', type(loss).__name__)}",
        "loss at the centre": centre,
        "directions": [f"{d.name} {fingerprint(d.tensors)}" for d in directions],
        **grid,
    }


class GridFile:
    """losses (rows, ...) with NaN where not done, the number of finished rows, and what they are of."""

    def __init__(self, path: str | Path, facts: Facts) -> None:
        self.path, self.facts = Path(path), dict(facts)
        if self.path.suffix != ".npz" or not self.path.parent.is_dir():
            raise BadInput(f"file must be a name ending in .npz in a folder that exists, got {str(path)!r}.")

    def read(self) -> tuple[Array, int] | None:
        """Return what is finished, or None; a file of something else is rejected, saying what differs."""
        if not self.path.exists():
            return None
        losses, rows, facts = read_grid(self.path)
        for name, value in self.facts.items():
            if not _same(facts.get(name), value):
                raise BadInput(
                    f"{self.path} holds the grid of another {name}: {_short(facts.get(name))} there, {_short(value)} "
                    "here. Give another file, or remove it."
                )
        return losses, rows

    def write(self, losses: Array, rows: int) -> None:
        with whole_file(self.path) as file:
            np.savez(file, losses=losses, rows=rows, facts=json.dumps(self.facts))


def read_grid(path: str | Path) -> tuple[Array, int, Facts]:
    """Return losses, finished rows and facts of a file; anything but a landscape is rejected."""
    try:
        with open_regular(path, LARGEST_ARRAYS) as file:
            arrays = read_arrays(file, ("losses", "rows", "facts"))
        losses, rows, facts = arrays["losses"], int(arrays["rows"]), json.loads(str(arrays["facts"]))
    except MissingArray as error:
        error.args = (f"{path} cannot be read as a landscape: {error}",)
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read as a landscape: {error}") from error
    if losses.dtype.kind != "f" or losses.ndim not in (1, 2) or not isinstance(facts, dict):
        raise BadInput(
            f"{path} cannot be read as a landscape: its losses are {losses.dtype} of shape {losses.shape}."
        )
    return losses, rows, facts


def checked_axes(
    file: str | Path, losses: Array, facts: Facts
) -> tuple[tuple[Array, ...], tuple[str, ...], Array | None]:
    """Return axes, names and path of a file that others may have written, or raise with the name of the fact."""
    axes = tuple(_numbers(file, "grid", axis, 1) for axis in _items(file, "grid", facts))
    if tuple(map(len, axes)) != losses.shape[::-1]:
        raise _refusal(
            file, "grid", f"{[len(axis) for axis in axes]} points for losses of shape {losses.shape}"
        )
    names = tuple(_items(file, "names", facts))
    if len(names) != len(axes) or not all(isinstance(name, str) for name in names):
        raise _refusal(file, "names", _short(list(names)))
    for kind, keys in ((str, TEXTS), (bool, SWITCHES), (int, COUNTS)):
        for key in keys:
            if not isinstance(facts.get(key), kind):
                raise _refusal(file, key, _short(facts.get(key)))
    path = None if facts.get("path") is None else _numbers(file, "path", facts["path"], 2)
    if path is not None and path.shape[1] != len(axes):
        raise _refusal(file, "path", f"points with {path.shape[1]} coordinates on {len(axes)} axes")
    return axes, names, path


def _items(file: str | Path, key: str, facts: Facts) -> list[Any]:
    items = facts.get(key)
    if not isinstance(items, list) or not 1 <= len(items) <= 2:
        raise _refusal(file, key, _short(items))
    return items


def _numbers(file: str | Path, key: str, values: object, dimensions: int) -> Array:
    try:
        numbers = np.array(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise _refusal(file, key, _short(values)) from None
    if numbers.ndim != dimensions or not np.isfinite(numbers).all():
        raise _refusal(file, key, _short(values))
    return numbers


def _refusal(file: str | Path, key: str, value: str) -> BadInput:
    return BadInput(
        f"{file} cannot be read as a landscape: its {key} is {value}. Compute it again, or save it again."
    )


def _same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=1e-12)
    return bool(one == other)


def _short(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) < 60 else text[:57] + "..."


NOISE = 1e-6, 8  # of the range, and roundings of the loss: a dip below it is arithmetic
VISIBLE = 100  # roundings that a range must have before its shape is the network's


@dataclass(frozen=True)
class Roughness:
    """What one grid says. `finite`: share of points with a finite loss; the others are left out."""

    centre: float
    range: float
    curvature: tuple[tuple[float, ...], ...]  # Hessian at the center in the plane's own coordinates
    residual: float
    minima: int
    finite: float
    rounding: float = 0.0

    @property
    def visible(self) -> bool:
        """True if the grid shows the network and not the last digits of its loss."""
        return self.range > VISIBLE * self.rounding

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue of the curvature in absolute value."""
        return float(np.abs(np.linalg.eigvalsh(np.array(self.curvature))).max())

    def __str__(self) -> str:
        values = " ".join(f"{v:.3g}" for v in np.linalg.eigvalsh(np.array(self.curvature)))
        lost = "" if self.finite == 1 else f", {1 - self.finite:.1%} of points not finite"
        if not self.visible:
            return (
                f"range {self.range:.2g}, below {VISIBLE} roundings of the loss ({self.rounding:.1g}): the shape is "
                f"that of the arithmetic. Reach farther, or use float64{lost}"
            )
        return (
            f"range {self.range:.4g}, curvature {values}, residual from the best quadratic {self.residual:.2%} of the "
            f"range, {self.minima} interior minim{'um' if self.minima == 1 else 'a'}{lost}"
        )


def roughness(axes: tuple[Array, ...], losses: Array) -> Roughness:
    """Return the roughness of a line (losses (P,)) or a plane (losses (P, P), rows along the second axis)."""
    ok = np.isfinite(losses)
    middle = tuple(size // 2 for size in losses.shape)
    span, rounding = np.nan, 0.0
    if (
        ok.any()
    ):  # rounding: one last place of the largest loss, of float32 if every value is one, else of float64
        single = bool((losses[ok].astype(np.float32) == losses[ok]).all())
        span = float(np.ptp(losses[ok]))
        rounding = float(np.finfo(np.float32 if single else np.float64).eps * np.abs(losses[ok]).max())
    inner = losses[tuple(slice(1, -1) for _ in losses.shape)]
    noise = max(NOISE[0] * span, NOISE[1] * rounding)
    lowest = np.ones(inner.shape, bool)
    for shift in np.ndindex(*(3 for _ in losses.shape)):
        if any(s != 1 for s in shift):
            around = tuple(slice(s, s + size) for s, size in zip(shift, inner.shape, strict=True))
            lowest &= inner < losses[around] - noise
    return Roughness(
        centre=float(losses[middle]),
        range=span,
        curvature=_curvature(axes, losses, middle),
        residual=_residual(axes, losses, ok, span),
        minima=int(lowest.sum()),
        finite=float(ok.mean()),
        rounding=rounding,
    )


def _curvature(axes: tuple[Array, ...], L: Array, middle: tuple[int, ...]) -> tuple[tuple[float, ...], ...]:
    """Second differences over the three grid points around the center."""
    if L.ndim == 1:
        (m,), h = middle, axes[0][1] - axes[0][0]
        return ((float((L[m + 1] - 2 * L[m] + L[m - 1]) / h**2),),)
    (i, j), hx, hy = middle, axes[0][1] - axes[0][0], axes[1][1] - axes[1][0]
    xx = (L[i, j + 1] - 2 * L[i, j] + L[i, j - 1]) / hx**2
    yy = (L[i + 1, j] - 2 * L[i, j] + L[i - 1, j]) / hy**2
    xy = (L[i + 1, j + 1] - L[i + 1, j - 1] - L[i - 1, j + 1] + L[i - 1, j - 1]) / (4 * hx * hy)
    return ((float(xx), float(xy)), (float(xy), float(yy)))


def _residual(axes: tuple[Array, ...], losses: Array, ok: NDArray[np.bool_], span: float) -> float:
    """Least squares with all monomials up to degree two."""
    scaled = [axis / max(np.abs(axis).max(), 1e-300) for axis in axes]
    grids = np.meshgrid(*scaled)
    monomials = [np.ones_like(grids[0]), *grids]
    monomials += [a * b for k, a in enumerate(grids) for b in grids[k:]]
    design = np.stack([m[ok] for m in monomials], 1)
    if len(design) <= design.shape[1] or not span > 0:
        return 0.0
    fitted = design @ np.linalg.lstsq(design, losses[ok], rcond=None)[0]
    return float(np.sqrt(np.mean((losses[ok] - fitted) ** 2)) / span)
