"""The dense state of n tokens: their squares and their mutual distances, accurate however close they are.

q_a = |x_a|^2 / d and H_ab = |x_a - x_b|^2 / 2d carry the Gram matrix C_ab = (q_a + q_b)/2 - H_ab without
its cancellation: under rank collapse H falls to 1e-12 of q and keeps all its digits.
`Root` draws Gaussian features with this covariance, accurate relative to the distances between tokens.
Shapes: n tokens; everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput


@dataclass(frozen=True)
class Geometry:
    """Squares q (n,) and spreads H (n, n), both per coordinate."""

    squares: Tensor
    spreads: Tensor

    @property
    def tokens(self) -> int:
        return len(self.squares)

    @property
    def overlaps(self) -> Tensor:
        """The Gram matrix C (n, n)."""
        return mean_of_pair(self.squares) - self.spreads

    @property
    def norm(self) -> float:
        return float(self.squares.mean())

    @property
    def separation(self) -> float:
        """Mean of 1 - cosine over pairs of different tokens."""
        return float(self.separations().sum()) / (self.tokens * (self.tokens - 1))

    def separations(self) -> Tensor:
        """1 - cosine = (H - (sqrt q_a - sqrt q_b)^2 / 2) / sqrt(q_a q_b), free of cancellation (n, n)."""
        lengths = self.squares.sqrt()
        apart = self.spreads - (lengths[:, None] - lengths).square() / 2
        return (apart / (lengths[:, None] * lengths)).clamp(0.0, 2.0).fill_diagonal_(0.0)

    def scaled(self, factor: float) -> Geometry:
        return Geometry(self.squares * factor, self.spreads * factor)

    def plus(self, other: Geometry) -> Geometry:
        return Geometry(self.squares + other.squares, self.spreads + other.spreads)


def mean_of_pair(values: Tensor) -> Tensor:
    """(v_a + v_b) / 2 for a vector v (n, n)."""
    return (values[:, None] + values) / 2


def simplex(tokens: int, norm: float, overlap: float) -> Geometry:
    """Every token of square q, every pair at the same cosine."""
    spreads = torch.full((tokens, tokens), norm * (1.0 - overlap), dtype=torch.float64).fill_diagonal_(0.0)
    return Geometry(torch.full((tokens,), norm, dtype=torch.float64), spreads)


def from_overlaps(gram: Tensor) -> Geometry:
    """The state of a measured Gram matrix x_a.x_b / d, refused unless it can be one."""
    gram = gram.to(torch.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise BadInput(f"the start Gram matrix has shape {tuple(gram.shape)}; expected (tokens, tokens).")
    if not bool(torch.isfinite(gram).all()):
        raise BadInput("the start Gram matrix has entries that are not finite numbers; expected x_a.x_b / width.")
    squares = gram.diagonal().clone()
    if bool((squares <= 0).any()):
        token = int(squares.argmin())
        raise BadInput(f"token {token} of the start Gram matrix has square {float(squares[token])}; leave it out.")
    largest = float(squares.max())
    if float((gram - gram.T).abs().max()) > 1e-6 * largest:
        raise BadInput("the start Gram matrix is not symmetric; expected x_a.x_b / width for every pair of tokens.")
    lowest = float(torch.linalg.eigvalsh((gram + gram.T) / 2)[0])
    if lowest < -1e-6 * float(squares.sum()):
        raise BadInput(f"the start Gram matrix has the eigenvalue {lowest:g}; overlaps of vectors have none below 0.")
    spreads = (mean_of_pair(squares) - (gram + gram.T) / 2).clamp_min(0.0).fill_diagonal_(0.0)
    return Geometry(squares, spreads)


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
