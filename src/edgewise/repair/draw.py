"""New values of parameters: random matrices of a given root mean square, drawn in float32 from (seed, name).

The same seed and name give the same values, whatever the order or the shards. Shapes: a matrix is (out, in) with any
leading dimensions (experts); a filter is (out, in, *kernel).

Mirrored pairs of units make a layer linear at the start: [V; -V] makes (phi(v), phi(-v)) and [U, -U] reads
U (phi(v) - phi(-v)), exactly U v for ReLU, GELU and SiLU, twice the function for odd ones such as tanh
[Shang 2016, Balduzzi 2017]. A unit left over by an odd size has no mirror image.

Published schemes as goals: the standard deviation that each gives to a matrix, so that they can be compared.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from edgewise.errors import BadInput
from edgewise.models.names.record import Projection
from edgewise.probe.gradients import rows_of
from edgewise.repair.plan import Change


@dataclass(frozen=True)
class Matrix:
    """What a scheme needs to know: sizes, whether it writes into the stream, whether it makes attention scores."""

    fan_in: int
    fan_out: int
    depth: int
    writes: bool
    scores: bool


@dataclass(frozen=True)
class Scheme:
    """std of a matrix, how it is drawn, its source, and what of it weights alone cannot do."""

    std: Callable[[Matrix], float]
    draw: str
    reason: str
    note: Callable[[int], str] = lambda depth: ""
    zero_biases: bool = True


def _xavier(m: Matrix) -> float:
    return math.sqrt(2 / (m.fan_in + m.fan_out))


def _deepnorm(m: Matrix) -> float:
    return _xavier(m) * (1.0 if m.scores else (8 * m.depth) ** -0.25)


def _deepnorm_note(depth: int) -> str:
    return (
        f"DeepNorm also multiplies the skips by (2L)^(1/4) = {(2 * depth) ** 0.25:.3g}; the plan leaves the skips "
        "alone, so this is the half of it that weights can do."
    )


SCHEMES: dict[str, Scheme] = {
    "deepnorm": Scheme(
        _deepnorm,
        "normal",
        "DeepNorm [Wang 2022]: Xavier, times (8L)^(-1/4) but for queries and keys",
        _deepnorm_note,
    ),
    "depth-mup": Scheme(
        lambda m: (m.depth**-0.5 if m.writes else 1.0) / math.sqrt(m.fan_in),
        "normal",
        "depth-muP [Yang 2023, Bordelon 2023]: gain 1, branches over sqrt(L)",
    ),
    "gpt2": Scheme(
        lambda m: 0.02 * ((2 * m.depth) ** -0.5 if m.writes else 1.0),
        "normal",
        "GPT-2 [Radford 2019]: 0.02, branches over sqrt(2L)",
    ),
    "xavier": Scheme(_xavier, "normal", "Xavier [Glorot 2010]: 2 / (fan_in + fan_out)"),
    "torch": Scheme(
        lambda m: 1 / math.sqrt(3 * m.fan_in),
        "uniform",
        "torch.nn.Linear: uniform within 1/sqrt(fan_in)",
        zero_biases=False,
    ),
    "orthogonal": Scheme(
        lambda m: 1 / math.sqrt(m.fan_in),
        "orthogonal",
        "orthogonal [Saxe 2014], delta-orthogonal filters [Xiao 2018]",
    ),
}
GOALS = ("critical", *SCHEMES)


def refuse_goal(goal: str) -> None:
    if goal not in GOALS:
        raise BadInput(f"goal must be one of {', '.join(GOALS)}, got {goal!r}.")


Draw = Callable[[tuple[int, ...], float, torch.Generator, int], Tensor]
# phi(v) - phi(-v) = v for these, whatever the size of v, and 2 phi(v) for those
LINEAR = ("relu", "gelu", "gelu_tanh", "quick_gelu", "silu")
ODD = ("tanh", "erf", "linear")


def draw(
    kind: str, shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int = 1
) -> Tensor:
    """A tensor of this shape with root mean square `std`, on the CPU."""
    if kind not in DRAWS:
        raise BadInput(f"draw must be one of {', '.join(DRAWS)}, got {kind!r}.")
    return DRAWS[kind](shape, std, generator, groups)


def _normal(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.randn(shape, generator=generator) * std


def _uniform(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return (2 * torch.rand(shape, generator=generator) - 1) * (std * math.sqrt(3))


def orthogonal(rows: int, columns: int, generator: torch.Generator, copies: tuple[int, ...] = ()) -> Tensor:
    """Haar orthonormal rows or columns, whichever are fewer: Q of a Gaussian matrix, signs from R [Mezzadri 2007]."""
    long, short = max(rows, columns), min(rows, columns)
    q, r = torch.linalg.qr(torch.randn((*copies, long, short), generator=generator))
    q = q * torch.diagonal(r, dim1=-2, dim2=-1).sign()[..., None, :]
    return q if rows >= columns else q.transpose(-1, -2)


def _orthogonal(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    """W W^T or W^T W proportional to one; entries have root mean square std [Saxe 2014]."""
    *copies, rows, columns = shape
    return orthogonal(rows, columns, generator, tuple(copies)) * (std * math.sqrt(max(rows, columns)))


def _delta(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:
    """Zero but for the centre of the kernel, which is orthogonal, per group [Xiao 2018]: an isometry of images."""
    rows, columns, *kernel = shape
    centre = orthogonal(rows // groups, columns, generator, (groups,)).reshape(rows, columns)
    return _centred(centre, kernel) * (std * math.sqrt(max(rows // groups, columns) * math.prod(kernel)))


def _centred(centre: Tensor, kernel: Sequence[int]) -> Tensor:
    """A filter that is this matrix in the centre of its kernel and zero elsewhere."""
    values = torch.zeros((*centre.shape, *kernel))
    middle: tuple[Any, ...] = (..., *(size // 2 for size in kernel))
    values[middle] = centre
    return values


def _halves(out: int, into: int, rows: bool, columns: bool) -> tuple[int, int]:
    """The shape of the part that is random."""
    return (out + 1) // 2 if rows else out, (into + 1) // 2 if columns else into


def _reflected(part: Tensor, out: int, into: int) -> Tensor:
    """The part with its negatives beside and below it, cut to (..., out, into)."""
    wide = torch.cat([part, -part], -1)[..., :into]
    return torch.cat([wide, -wide], -2)[..., :out, :]


def _mirrored(rows: bool, columns: bool) -> Draw:
    """An orthogonal matrix with its negatives below (rows), beside (columns), or both."""

    def function(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
        *copies, out, into = shape
        part = _orthogonal((*copies, *_halves(out, into, rows, columns)), std, generator, 1)
        return _reflected(part, out, into)

    return function


def _delta_mirrored(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:
    """A filter whose centre is mirrored in rows and columns, per group."""
    rows, columns, *kernel = shape
    part = (groups, *_halves(rows // groups, columns, True, True))
    half = _orthogonal(part, std * math.sqrt(math.prod(kernel)), generator, 1)
    return _centred(_reflected(half, rows // groups, columns).reshape(rows, columns), kernel)


def _zero(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.zeros(shape)


def _constant(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.full(shape, std)


DRAWS: dict[str, Draw] = {
    "normal": _normal,
    "uniform": _uniform,
    "orthogonal": _orthogonal,
    "delta-orthogonal": _delta,
    "zero": _zero,
    "constant": _constant,
    "mirrored": _mirrored(True, True),
    "mirrored rows": _mirrored(True, False),
    "mirrored columns": _mirrored(False, True),
    "delta-mirrored": _delta_mirrored,
}


def new_values(model: nn.Module, changes: Sequence[Change], seed: int) -> Iterator[tuple[str, Tensor]]:
    """(name, its new values in float32, whole) for every parameter; rows without a change stay as they are."""
    by_name: dict[str, list[Change]] = {}
    for change in changes:
        for name in change.projection.parameters:
            by_name.setdefault(name, []).append(change)
    for name, listed in by_name.items():
        yield name, _parameter(model.get_parameter(name), name, listed, seed)


def _parameter(parameter: Tensor, name: str, listed: Sequence[Change], seed: int) -> Tensor:
    if any(change.projection.rows is not None or change.projection.index is not None for change in listed):
        values = whole(parameter).detach().float().clone()
    else:
        values = torch.empty(parameter.shape)
    for change in listed:
        part = rows_of(values, change.projection)
        index = change.projection.index  # of a layer, in a parameter that holds all
        key = f"{seed}/{name}/{change.role}" + ("" if index is None else f"/{index}")
        generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        shape = _matrix_shape(part, change)
        fresh = draw(change.draw, shape, change.new_std, generator, change.groups) - change.offset
        part.copy_(fresh.reshape(part.shape))
        if change.zero_row is not None:
            values[change.zero_row] = 0.0
    return values


def _matrix_shape(part: Tensor, change: Change) -> tuple[int, ...]:
    """(..., out, in): the groups of a fused matrix are joined, so that an orthogonal one is orthogonal as a whole."""
    if change.projection.rows is None:
        return tuple(part.shape)
    *front, groups, rows, columns = part.shape
    return (*front, groups * rows, columns)


def whole(parameter: Tensor) -> Tensor:
    """The full values of a parameter on this device, gathered where it is sharded (every rank must call)."""
    gather = getattr(parameter, "full_tensor", None)
    return gather() if callable(gather) else parameter


def root_mean_square(parameter: Tensor, projection: Projection) -> float:
    part = rows_of(parameter.detach(), projection)
    return float(part.double().square().mean().sqrt())
