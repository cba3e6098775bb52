"""Closed-form brackets of the extreme eigenvalues of J(s), and the condition number they give within a factor two."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.softmax_jacobian.invariants import log_rest, log_smallest
from edgewise.softmax_jacobian.rows import count, largest_two, smallest_two


@dataclass(frozen=True, eq=False)
class Brackets:
    """Closed-form bounds of the logarithms of both extreme eigenvalues, at most a factor two apart, each (...)."""

    largest: tuple[Tensor, Tensor]
    smallest: tuple[Tensor, Tensor]


def brackets(rows: Tensor) -> Brackets:
    """n/(n-1) m <= lambda_1 <= min(2m, s_(1), 1/2), lambda_1 >= s_(2), with m = s_max (1 - s_max);
    s_(n) <= lambda_{n-1} <= min(n/(n-1) s_(n) (1 - s_(n)), s_(n-1)), by Rayleigh, Gershgorin and interlacing.
    """
    n = count(rows).double()
    stretch = torch.log(n) - torch.log(n - 1)
    return Brackets(
        of_largest(largest_two(rows)[0], log_rest(rows), stretch), of_smallest(smallest_two(rows)[0], stretch)
    )


def of_largest(largest: Tensor, rest: Tensor, stretch: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds from the two largest entries (..., 2), log(1 - s_max) and log(n/(n-1))."""
    first, second = largest.unbind(-1)
    m = first + rest
    high = torch.minimum(m + math.log(2), first).clamp_max(math.log(0.5))
    return torch.minimum(torch.maximum(stretch + m, second), high), high


def of_smallest(smallest: Tensor, stretch: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds from the two smallest entries (..., 2) and log(n/(n-1))."""
    last, before = smallest.unbind(-1)
    top = torch.minimum(stretch + last + torch.log(-torch.expm1(last)), before)
    return last, torch.maximum(top, last)


def condition_estimate(rows: Tensor) -> Tensor:
    """log s_max + log(1 - s_max) - log s_min - log(1 - s_min): kappa(J) from below, within a factor two (+ o(1)).

    s_max (1 - s_max) / (s_min (1 - s_min)) <= kappa(J) <= 2 s_max (1 - s_max) / s_min; nan for a single key.
    """
    low = log_smallest(rows)
    found = rows.amax(-1) + log_rest(rows) - low - torch.log(-torch.expm1(low))
    return torch.where(count(rows) > 1, found, math.nan)
