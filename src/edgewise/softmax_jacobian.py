"""The spectrum of a softmax row's Jacobian, J(s) = diag(s) - s s^T, from log-probabilities and without ever forming J.

Everything is in logarithms: the smallest entry of a row underflows long before its eigenvalue stops mattering.
Masked keys are removed (log-probability -inf), they are not zeros. Shapes: rows (..., n); one number per row (...).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.errors import BadInput

SATURATED = 1e-2  # a row whose largest entry leaves less than this to all others
FULL = 60  # bisection steps to double precision, from a bracket of at most a factor two


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Logarithms of the extreme nonzero eigenvalues of J, each (...); nan where a row has one key and J = 0."""

    largest: Tensor
    smallest: Tensor

    @property
    def condition(self) -> Tensor:
        """log kappa(J) = log lambda_1 - log lambda_{n-1}."""
        return self.largest - self.smallest


@dataclass(frozen=True, eq=False)
class Brackets:
    """Closed-form bounds of the logarithms of both extreme eigenvalues, at most a factor two apart, each (...)."""

    largest: tuple[Tensor, Tensor]
    smallest: tuple[Tensor, Tensor]


def checked(log_probabilities: Tensor, mask: Tensor | None = None, tolerance: float = 1e-4) -> Tensor:
    """The rows in double precision with masked keys at -inf; refused unless each is a distribution.

    mask: True where a key is attended to, broadcast against the rows; without it, -inf marks what is masked.
    """
    rows = log_probabilities.detach().double()
    if mask is not None:
        rows = rows.masked_fill(~mask.expand_as(rows), -math.inf)
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise BadInput(f"softmax rows of shape {tuple(rows.shape)} have no keys. Give log-probabilities (..., keys).")
    if torch.isnan(rows).any():
        raise BadInput("a softmax row holds NaN. Take log_softmax of finite logits.")
    if torch.isneginf(rows).all(-1).any():
        raise BadInput("a softmax row has no key left: its mask is empty. Leave such rows out.")
    total = torch.logsumexp(rows, -1)
    worst = float(total.abs().max()) if total.numel() else 0.0
    if worst > tolerance:
        raise BadInput(
            f"a softmax row sums to {math.exp(float(total.flatten()[total.abs().argmax()])):.6g}, expected 1. "
            "Give log-probabilities (log_softmax of the logits), with masked keys left out of the sum."
        )
    return rows


def count(rows: Tensor) -> Tensor:
    """Number of keys of each row that are not masked."""
    return torch.isfinite(rows).sum(-1)


def entropy(rows: Tensor) -> Tensor:
    """-sum s log s, in nats; exp of it is the effective number of keys."""
    return -(rows.exp() * rows.clamp_min(-1e300)).sum(-1).clamp_max(0.0)


def trace(rows: Tensor) -> Tensor:
    """tr J = sum s_i (1 - s_i) = 1 - sum s^2."""
    return (rows.exp() * -torch.expm1(rows)).sum(-1)


def log_rest(rows: Tensor) -> Tensor:
    """log(1 - s_max), summed from the other entries: 1 - s_max itself rounds to zero in a saturated row."""
    others = rows.scatter(-1, rows.argmax(-1, keepdim=True), -math.inf)
    return torch.logsumexp(others, -1)


def saturated(rows: Tensor, limit: float = SATURATED) -> Tensor:
    """True where the largest entry leaves less than `limit` to all other keys."""
    return log_rest(rows) < math.log(limit)


def condition_estimate(rows: Tensor) -> Tensor:
    """log s_max + log(1 - s_max) - log s_min - log(1 - s_min): kappa(J) from below, within a factor two (+ o(1)).

    s_max (1 - s_max) / (s_min (1 - s_min)) <= kappa(J) <= 2 s_max (1 - s_max) / s_min; nan for a single key.
    """
    low = _smallest_two(rows)[..., 0]
    found = rows.amax(-1) + log_rest(rows) - low - torch.log(-torch.expm1(low))
    return torch.where(count(rows) > 1, found, math.nan)


def brackets(rows: Tensor) -> Brackets:
    """n/(n-1) m <= lambda_1 <= min(2m, s_(1), 1/2), lambda_1 >= s_(2), with m = s_max (1 - s_max);
    s_(n) <= lambda_{n-1} <= min(n/(n-1) s_(n) (1 - s_(n)), s_(n-1)), by Rayleigh, Gershgorin and interlacing.
    """
    n = count(rows).double()
    stretch = torch.log(n) - torch.log(n - 1)
    first, second = _largest_two(rows).unbind(-1)
    m = first + log_rest(rows)
    high = torch.minimum(m + math.log(2), first).clamp_max(math.log(0.5))
    low = torch.minimum(torch.maximum(stretch + m, second), high)
    last, before = _smallest_two(rows).unbind(-1)
    top = torch.minimum(stretch + last + torch.log(-torch.expm1(last)), before)
    return Brackets((low, high), (last, torch.maximum(top, last)))


def spectrum(rows: Tensor, steps: int = FULL, smallest_steps: int | None = None) -> Spectrum:
    """Extreme eigenvalues of J: roots of g(lambda) = sum_i s_i / (s_i - lambda) between the two outermost poles.

    Bisection in log lambda (g increases between poles), O(n) per step; the error of a logarithm is at most
    log 2 / 2^steps, and the bracket of the smallest is only n/(n-1) wide, so that it needs fewer steps. Two keys give
    2 s_1 s_2 exactly, ties give the tied entry, one key has no eigenvalue (nan).
    """
    bounds = brackets(rows)
    largest = _bisect(rows, *bounds.largest, steps)
    smallest = _bisect(rows, *bounds.smallest, steps if smallest_steps is None else smallest_steps)
    keys = count(rows)
    pair = math.log(2) + torch.where(torch.isfinite(rows), rows, 0.0).sum(-1)
    largest, smallest = (torch.where(keys == 2, pair, value) for value in (largest, smallest))
    return Spectrum(*(torch.where(keys > 1, value, math.nan) for value in (largest, smallest)))


def _bisect(rows: Tensor, low: Tensor, high: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        middle = 0.5 * (low + high)
        g = -(1.0 / torch.expm1(middle[..., None] - rows)).sum(-1)  # s/(s - x) = -1/(e^{log x - log s} - 1)
        below = g < 0
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def _largest_two(rows: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(rows, (0, 1), value=-math.inf)  # a row of one key has no second
    return padded.topk(2, dim=-1).values


def _smallest_two(rows: Tensor) -> Tensor:
    kept = torch.where(torch.isneginf(rows), math.inf, rows)
    padded = torch.nn.functional.pad(kept, (0, 1), value=math.inf)
    return padded.topk(2, dim=-1, largest=False).values
