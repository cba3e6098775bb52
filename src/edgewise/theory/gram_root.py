"""Gaussian features whose covariance is a given geometry, accurate relative to the distances between tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.theory.gram_geometry import Geometry


def square_root(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Scales s (n,) and a lower triangular L (n, n) with diag(s) L L^T diag(s) = matrix, positive up to rounding.

    The jitter that rounding makes necessary is relative to each diagonal entry, hence the scales.
    """
    scales = matrix.diagonal().clamp_min(0.0).sqrt()
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    correlations = (matrix * inverse[:, None] * inverse).fill_diagonal_(1.0)
    for jitter in (1e-13, 1e-11, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3):
        lower, failed = torch.linalg.cholesky_ex(correlations.diagonal_scatter(correlations.diagonal() + jitter))
        if not failed:
            return scales, lower
    raise ArithmeticError("a Gram matrix of the recursion is not positive: please report the architecture.")


@dataclass(frozen=True)
class Root:
    """Features f_a = f + g_a with g = R z and f = w.z + t z': covariance U exactly, small g kept apart from f."""

    apart: Tensor  # R (n, n), square root of the centred overlaps
    shared: Tensor  # w (n,)
    rest: float  # t

    def draw(self, heads: int, width: int, generator: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """f (h, 1, k) and g (h, n, k), one independent feature per head and coordinate."""
        n = len(self.shared)
        z = torch.randn(n, heads * width, generator=generator, dtype=dtype)
        alone = torch.randn(heads * width, generator=generator, dtype=dtype)
        g = (self.apart.to(dtype) @ z).reshape(n, heads, width).transpose(0, 1)
        f = self.shared.to(dtype) @ z + self.rest * alone
        return f.reshape(heads, 1, width), g


def geometry_root(state: Geometry) -> Root:
    """Centre the tokens, x_a = m + y_a: the overlaps of y are the doubly centred -H, those with m follow from q."""
    mean_spread = state.spreads.mean(-1)
    centred = mean_spread[:, None] + mean_spread - mean_spread.mean() - state.spreads
    along = (state.squares - state.squares.mean()) / 2 - (mean_spread - mean_spread.mean())  # m . y_a
    scales, lower = square_root(centred)
    relative = torch.where(scales > 0, along / scales, 0.0)
    shared = torch.linalg.solve_triangular(lower, relative[:, None], upper=False)[:, 0]
    square = float(state.squares.mean() - mean_spread.mean())  # |m|^2
    return Root(scales[:, None] * lower, shared, max(0.0, square - float(shared @ shared)) ** 0.5)
