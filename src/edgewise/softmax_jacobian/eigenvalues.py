"""Eigenvalues of J(s) = diag(s) - s s^T per row: the extreme ones in O(n), all of them in O(n^2) time, O(n) memory.

Roots of the secular equation (secular.py) from closed-form brackets; logarithms in, logarithms out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edgewise.softmax_jacobian.brackets import of_largest, of_smallest
from edgewise.softmax_jacobian.invariants import mass_carrying
from edgewise.softmax_jacobian.rows import checked, count, largest_two, smallest_two
from edgewise.softmax_jacobian.secular import EXACT, Gap, root

CHUNK = 2**19  # numbers held at a time while all eigenvalues are found
ROOM = 1e-12  # brackets are widened by this, so that rounding cannot exclude the root


@dataclass(frozen=True, eq=False)
class Extremes:
    """Logarithms of the extreme nonzero eigenvalues of J, each (...); nan where a row has one key and J = 0."""

    largest: Tensor
    smallest: Tensor

    @property
    def condition(self) -> Tensor:
        """log kappa(J) = log lambda_1 - log lambda_{n-1}."""
        return self.largest - self.smallest


def extremes(log_probabilities: Tensor, mask: Tensor | None = None) -> Extremes:
    """log lambda_1 and log lambda_{n-1}, the largest and the smallest nonzero eigenvalue of J, per row.

    log_probabilities (..., n), mask (..., n) True where attended; refused unless every row is a distribution.
    """
    return extremes_of_rows(checked(log_probabilities, mask))


def extremes_of_rows(rows: Tensor, tolerance: float = EXACT) -> Extremes:
    """The same for rows already checked, to a relative `tolerance` of the eigenvalues (for monitors, 1e-2 is enough).

    Two keys give 2 s_1 s_2, ties give the tied entry, one key has no eigenvalue (nan).
    """
    keys = count(rows)
    n = keys.double()
    stretch = torch.log(n) - torch.log(n - 1)
    largest, smallest = _largest(rows, stretch, tolerance), _smallest(rows, stretch, keys, tolerance)
    pair = math.log(2) + torch.where(torch.isneginf(rows), 0.0, rows).sum(-1)
    largest, smallest = (torch.where(keys == 2, pair, value) for value in (largest, smallest))
    return Extremes(*(torch.where(keys > 1, value, math.nan) for value in (largest, smallest)))


def _largest(rows: Tensor, stretch: Tensor, tolerance: float) -> Tensor:
    values, places = largest_two(rows)
    first, second = values.unbind(-1)
    below = (rows - second[..., None]).exp().scatter(-1, places[..., :1], 0.0)
    rest = second + below.sum(-1).log()
    nearest = (second - first).exp()
    gap = Gap(below, nearest[..., None], 0.0, nearest)
    low, high = ((bound - second).exp() for bound in of_largest(values, rest, stretch))
    return second + _logarithm(gap, low, high, tolerance)


def _smallest(rows: Tensor, stretch: Tensor, keys: Tensor, tolerance: float) -> Tensor:
    values, places = smallest_two(rows)
    last, before = values.unbind(-1)
    ratios = (last[..., None] - rows).exp()
    above = torch.where(torch.isneginf(rows), 0.0, ratios).scatter(-1, places[..., :1], 0.0)
    surplus = (rows.shape[-1] - keys + 1).double()
    gap = Gap(torch.ones_like(above[..., :1]), above, surplus, (last - before).exp())
    low, high = ((bound - last).exp() for bound in of_smallest(values, stretch))
    return last + _logarithm(gap, low, high, tolerance)


def _logarithm(gap: Gap, low: Tensor, high: Tensor, tolerance: float) -> Tensor:
    """log of the root; a gap without width (tied entries) has its end for a root."""
    low, high = (low * (1 - ROOM)).clamp_min(1), torch.minimum(high * (1 + ROOM), 1 / gap.nearest)
    tied = ~((low < high) & (gap.nearest < 1))
    found = root(gap, torch.where(tied, 1.0, low), torch.where(tied, 1.0, high), tolerance)
    return torch.where(tied, 0.0, found.log())


def spectrum(log_probabilities: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logarithms of all n - 1 nonzero eigenvalues, descending, (..., n - 1); nan where masked keys leave fewer.

    O(n^2) operations, never an n x n matrix: the gaps are taken a few at a time.
    """
    rows = checked(log_probabilities, mask)
    n = rows.shape[-1]
    ordered = rows.sort(-1, descending=True).values.reshape(-1, n)
    step = max(1, CHUNK // n)
    gaps = [(row, k) for row in range(len(ordered)) for k in range(1, int(count(ordered[row])))]
    found = torch.full((len(ordered), n - 1), math.nan, dtype=ordered.dtype, device=ordered.device)
    for start in range(0, len(gaps), step):
        row, k = torch.tensor(gaps[start : start + step], device=ordered.device).T
        found[row, k - 1] = _between(ordered[row], k)
    return found.reshape(*rows.shape[:-1], n - 1)


def _between(ordered: Tensor, k: Tensor) -> Tensor:
    """log of the eigenvalue between the k-th and the (k+1)-th entry of each row (rows descending, k from 1)."""
    n = count(ordered).double()
    high, low = (ordered.gather(-1, place[:, None])[:, 0] for place in (k - 1, k))
    upper = torch.arange(ordered.shape[-1], device=k.device) < k[:, None]
    below = torch.where(upper, 0.0, (ordered - low[:, None]).exp())
    above = torch.where(upper, (low[:, None] - ordered).exp(), 0.0)
    gap = Gap(below, above, (~upper).sum(-1).double(), (low - high).exp())
    return low + _logarithm(gap, torch.ones_like(n), n / k, EXACT)


def effective_condition(rows: Tensor, left_out: float = 1e-3) -> Tensor:
    """log kappa(J) of the entries that carry all but `left_out` of the mass, renormalized.

    Long rows have a huge kappa for a harmless reason, their tiny tail; this one does not see it.
    """
    return extremes_of_rows(mass_carrying(rows, left_out)).condition
