"""Gaussian features whose covariance is a given geometry, accurate relative to the distances between tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.theory.gram.geometry import Geometry


def square_root(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scales s (n,) and a lower triangular L (n, n) with diag(s) L L^T diag(s) = matrix, positive up to rounding.

    The jitter that products in `dtype` make necessary is relative to each diagonal entry, hence the scales.
    """
    scales = matrix.diagonal().clamp_min(0.0).sqrt()
    inverse = torch.where(scales > 0, 1 / scales, 0.0)
    correlations = matrix * inverse[:, None] * inverse
    jitter = max(torch.finfo(dtype).eps * len(matrix) ** 0.5, 1e-12)
    while jitter < 0.01:
        lower, failed = torch.linalg.cholesky_ex(correlations.fill_diagonal_(1.0 + jitter))
        if not failed:
            return scales, lower
        jitter *= 30
    # Deep in collapse distances differ by more digits than a double has: keep what is positive of the correlations.
    values, vectors = torch.linalg.eigh(correlations.fill_diagonal_(1.0))
    positive = (vectors * values.clamp_min(0.0)) @ vectors.T
    norms = positive.diagonal().clamp_min(1e-300).sqrt()
    nearest = positive / norms[:, None] / norms
    return scales, torch.linalg.cholesky(nearest.fill_diagonal_(1.0 + 1e-6))


@dataclass(frozen=True)
class Root:
    """Features f_a = f + g_a with g = R z and f = w.z + t z': covariance U exactly, small g kept apart from f."""

    apart: Tensor  # R (n, n), square root of the centred overlaps
    shared: Tensor  # w (n,)
    rest: float  # t

    def draw(self, heads: int, width: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """f (h, 1, k) and g (h, n, k), one independent feature per head and coordinate."""
        n, dtype = len(self.shared), self.shared.dtype
        z = torch.randn(n, heads * width, generator=generator, dtype=dtype)
        alone = torch.randn(heads * width, generator=generator, dtype=dtype)
        g = (self.apart @ z).reshape(n, heads, width).transpose(0, 1)
        f = self.shared @ z + self.rest * alone
        return f.reshape(heads, 1, width), g


def geometry_root(state: Geometry, dtype: torch.dtype) -> Root:
    """Centre the tokens, x_a = m + y_a: the overlaps of y are the doubly centred -H, those with m follow from q."""
    mean_spread = state.spreads.mean(-1)
    centred = mean_spread[:, None] + mean_spread - mean_spread.mean() - state.spreads
    along = (state.squares - state.squares.mean()) / 2 - (mean_spread - mean_spread.mean())  # m . y_a
    scales, lower = square_root(centred, dtype)
    relative = torch.where(scales > 0, along / scales, 0.0)
    shared = torch.linalg.solve_triangular(lower, relative[:, None], upper=False)[:, 0]
    square = float(state.squares.mean() - mean_spread.mean())  # |m|^2
    rest = max(0.0, square - float(shared @ shared)) ** 0.5
    return Root((scales[:, None] * lower).to(dtype), shared.to(dtype), rest)
