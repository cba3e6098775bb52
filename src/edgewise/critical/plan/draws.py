"""Random matrices of a given root mean square: normal, uniform, orthogonal, mirrored; drawn in float32.

Shapes: a matrix is (out, in) with any leading dimensions (experts); a filter is (out, in, *kernel).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from edgewise.critical.plan.mirrored import halves, reflected
from edgewise.errors import BadInput

Draw = Callable[[tuple[int, ...], float, torch.Generator, int], Tensor]


def draw(kind: str, shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int = 1) -> Tensor:
    """A tensor of this shape with root mean square `std`, on the CPU."""
    if kind not in DRAWS:
        raise BadInput(f"draw = {kind!r} is not known: expected one of {', '.join(DRAWS)}.")
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
    found = torch.zeros((*centre.shape, *kernel))
    middle: tuple[Any, ...] = (..., *(size // 2 for size in kernel))
    found[middle] = centre
    return found


def _mirrored(rows: bool, columns: bool) -> Draw:
    """An orthogonal matrix with its negatives below (rows), beside (columns), or both."""

    def made(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
        *copies, out, into = shape
        part = _orthogonal((*copies, *halves(out, into, rows, columns)), std, generator, 1)
        return reflected(part, out, into)

    return made


def _delta_mirrored(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:
    """A filter whose centre is mirrored in rows and columns, per group."""
    rows, columns, *kernel = shape
    part = (groups, *halves(rows // groups, columns, True, True))
    drawn = _orthogonal(part, std * math.sqrt(math.prod(kernel)), generator, 1)
    return _centred(reflected(drawn, rows // groups, columns).reshape(rows, columns), kernel)


def _zero(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.zeros(shape)


def _constant(shape: tuple[int, ...], std: float, generator: torch.Generator, groups: int) -> Tensor:  # noqa: ARG001
    return torch.full(shape, std)


DRAWS: dict[str, Draw] = {
    "normal": _normal, "uniform": _uniform, "orthogonal": _orthogonal, "delta-orthogonal": _delta, "zero": _zero,
    "constant": _constant, "mirrored": _mirrored(True, True), "mirrored rows": _mirrored(True, False),
    "mirrored columns": _mirrored(False, True), "delta-mirrored": _delta_mirrored,
}  # fmt: skip
