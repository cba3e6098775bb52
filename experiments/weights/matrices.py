"""Random matrices of mean square 1 / fan-in by how they are drawn: independent entries of many kinds, and "
"structure."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Draw = Callable[[int, int, torch.Generator], Tensor]  # rows, columns; entries of mean square one


def _normal(rows: int, columns: int, g: torch.Generator) -> Tensor:
    return torch.randn(rows, columns, generator=g, dtype=torch.float64)


def _uniform(rows: int, columns: int, g: torch.Generator) -> Tensor:
    return math.sqrt(3) * (2 * torch.rand(rows, columns, generator=g, dtype=torch.float64) - 1)


def _sign(rows: int, columns: int, g: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (rows, columns), generator=g).double() * 2 - 1


def _sparse(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """One entry in ten is not zero."""
    kept = torch.rand(rows, columns, generator=g, dtype=torch.float64) < 0.1
    return _normal(rows, columns, g) * kept * math.sqrt(10)


def _heavy(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """Student's t with three degrees of freedom: the variance exists, the kurtosis does not."""
    squares = sum(_normal(rows, columns, g).square() for _ in range(3)) / 3
    return _normal(rows, columns, g) / squares.sqrt() / math.sqrt(3)  # type: ignore[union-attr]


def _orthogonal(rows: int, columns: int, g: torch.Generator) -> Tensor:
    long, short = max(rows, columns), min(rows, columns)
    q, r = torch.linalg.qr(_normal(long, short, g))
    q = q * r.diagonal().sign() * math.sqrt(long)
    return q if rows >= columns else q.T


def _circulant(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """Every row is the one above moved by one place; what is longer starts again with new numbers."""
    return _shifted(rows, columns, g, lambda i, j, n: (j - i) % n)


def _toeplitz(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """One number per diagonal."""
    return _shifted(rows, columns, g, lambda i, j, n: j - i + n - 1)


def _shifted(
    rows: int, columns: int, g: torch.Generator, place: Callable[[Tensor, Tensor, int], Tensor]
) -> Tensor:
    """Square tiles, each from its own numbers."""
    n = min(rows, columns)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    tiles = [[_normal(1, 2 * n, g)[0][place(i, j, n)] for _ in range(columns // n)] for _ in range(rows // n)]
    return torch.cat([torch.cat(row, 1) for row in tiles], 0)


def _low_rank(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """Half of the square from a product of rank n / 8, half from the diagonals of square tiles."""
    n = min(rows, columns)
    rank = max(n // 8, 1)
    product = _normal(rows, rank, g) @ _normal(rank, columns, g) / math.sqrt(rank)
    diagonal = torch.eye(n, dtype=torch.float64).repeat(rows // n, columns // n) * math.sqrt(n)
    return (product + diagonal * _sign(rows, columns, g)) / math.sqrt(2)


def _blocks(rows: int, columns: int, g: torch.Generator) -> Tensor:
    """Four blocks on the diagonal."""
    mask = torch.block_diag(*[torch.ones(rows // 4, columns // 4, dtype=torch.float64)] * 4)
    return 2 * mask * _normal(rows, columns, g)


INDEPENDENT: dict[str, Draw] = {
    "Gaussian": _normal,
    "uniform": _uniform,
    "sign": _sign,
    "sparse": _sparse,
    "heavy-tailed": _heavy,
}
STRUCTURED: dict[str, Draw] = {
    "orthogonal": _orthogonal,
    "circulant": _circulant,
    "Toeplitz": _toeplitz,
    "low rank + diagonal": _low_rank,
    "block diagonal": _blocks,
}
KINDS = INDEPENDENT | STRUCTURED


def redraw_(weight: Tensor, kind: str, g: torch.Generator) -> None:
    """New values of the same mean square, drawn in another way."""
    size = weight.square().mean().sqrt()
    weight.copy_(size * KINDS[kind](*weight.shape, g))
