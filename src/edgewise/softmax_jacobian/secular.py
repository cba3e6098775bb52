"""One root of the secular equation between two neighbouring poles, many rows at once.

The nonzero eigenvalues of diag(s) - s s^T solve g(lambda) = sum_i s_i / (s_i - lambda) = 0, one between each pair of
neighbouring entries. Scaled by the lower of the two, x = lambda / s_low, the root lies in (1, n/k) when k entries are
above, because each of those contributes at least 1: nothing overflows, however small the row's entries are.

Shapes: below (..., a) holds s_i/s_low <= 1 of the entries up to s_low, above (..., b) holds s_low/s_i of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

RATIONAL, HALVINGS = 12, 60  # steps; quadratic convergence needs about five, what is left is bisected
EXACT = 2.3e-16  # relative, one unit in the last place


@dataclass(frozen=True, eq=False)
class Gap:
    """Poles on both sides of one gap; `surplus` counts the zeros in `above` that stand for no entry."""

    below: Tensor
    above: Tensor
    surplus: Tensor | float
    nearest: Tensor  # largest entry of `above`: s_low/s_high, so that the gap is (1, 1/nearest)

    def values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """psi, psi', phi, phi': the sums over the poles below and above, with their derivatives in x."""
        apart = x[..., None] - self.below
        falling = self.below / apart
        rising = 1 / (1 - x[..., None] * self.above)
        psi, phi = -falling.sum(-1), rising.sum(-1) - self.surplus
        return psi, (falling / apart).sum(-1), phi, (self.above * rising.square()).sum(-1)

    def only(self, rows: Tensor) -> Gap:
        """The same gap for a subset of the rows, flattened."""
        surplus = self.surplus[rows] if isinstance(self.surplus, Tensor) else self.surplus
        below, above = (t.expand(*rows.shape, -1)[rows] for t in (self.below, self.above))
        return Gap(below, above, surplus, self.nearest[rows])


def root(gap: Gap, low: Tensor, high: Tensor, tolerance: float = EXACT) -> Tensor:
    """x with g(x) = 0 in [low, high], relative error about `tolerance`: rational steps, then bisection where needed.

    Each step replaces both sums by one pole each, matched in value and slope, and solves the quadratic; it converges
    quadratically and from one side [Bunch, Nielsen and Sorensen 1978]. A step that leaves the bracket is a bisection.
    """
    x, step = 0.5 * (low + high), math.sqrt(tolerance)  # the error after a step is about the square of its length
    for _ in range(RATIONAL):
        sums = gap.values(x)
        left = sums[0] + sums[2] < 0  # g increases: the root is to the right
        low, high = torch.where(left, x, low), torch.where(left, high, x)
        new = _step(gap, x, *sums)
        room = torch.minimum(new - 1, 1 / gap.nearest - new)
        close = (new - x).abs() <= torch.maximum(step * room, 4 * EXACT * x)
        inside = close | ((new > low) & (new < high))  # false where the step is nan
        new = torch.where(inside, torch.minimum(torch.maximum(new, low), high), 0.5 * (low + high))
        settled = close | (high - low <= 2 * EXACT * x)
        x = new
        if bool(settled.all()):
            return x
    slow = ~settled
    x[slow] = _bisected(gap.only(slow), low[slow], high[slow])
    return x


def _step(gap: Gap, x: Tensor, psi: Tensor, psi_slope: Tensor, phi: Tensor, phi_slope: Tensor) -> Tensor:
    """The zero of c - b/u + phi + phi' D (u - v)/(E - u w), with u = x_new - 1, v = x - 1."""
    v, w = x - 1, gap.nearest
    E, D = 1 - w, 1 - x * w
    b, c = psi_slope * v.square(), psi + psi_slope * v + phi
    second, first, zeroth = phi_slope * D - c * w, c * E + b * w - phi_slope * D * v, -b * E
    discriminant = (first.square() - 4 * second * zeroth).clamp_min(0).sqrt()
    stable = -2 * zeroth / (first + discriminant)  # no cancellation where the linear term is positive
    return 1 + torch.where(first >= 0, stable, (discriminant - first) / (2 * second))


def _bisected(gap: Gap, low: Tensor, high: Tensor) -> Tensor:
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        psi, _, phi, _ = gap.values(middle)
        left = psi + phi < 0
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    return 0.5 * (low + high)
