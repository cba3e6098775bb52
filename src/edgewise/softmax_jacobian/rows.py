"""What a softmax row is: log-probabilities (..., n) in double precision, masked keys at -inf, refused unless sound.

And what needs no eigenvalue: its entries (the largest, the smallest, those that carry its mass), products with
J(s) = diag(s) - s s^T and numbers of it. Shapes: rows (..., n).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.errors import BadInput


def checked(log_probabilities: Tensor, mask: Tensor | None = None, tolerance: float = 1e-4) -> Tensor:
    """The rows in double precision with masked keys at -inf; refused unless each is a distribution.

    mask: True where a key is attended to, broadcast against the rows; without it, -inf marks what is masked.
    """
    rows = log_probabilities.detach().double()
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise BadInput(
            f"softmax rows of shape {tuple(rows.shape)} have no keys. Give log-probabilities (..., keys)."
        )
    if mask is not None:
        rows = rows.masked_fill(~_fitting(mask, rows), -math.inf)
    total = torch.logsumexp(rows, -1)
    worst = float(total.abs().max()) if total.numel() else 0.0
    if not worst <= tolerance:  # also where it is nan or infinite
        _refuse(rows, total)
    return rows


def _fitting(mask: Tensor, rows: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise BadInput(f"the mask holds {mask.dtype}, expected booleans: True where a key is attended to.")
    try:
        return mask.expand_as(rows)
    except RuntimeError:
        shapes = f"{tuple(mask.shape)} against rows {tuple(rows.shape)}"
        raise BadInput(
            f"the mask does not broadcast to the rows: {shapes}. Its last dimension is the keys."
        ) from None


def _refuse(rows: Tensor, total: Tensor) -> None:
    """Say which of the things that can be wrong is wrong."""
    if torch.isnan(rows).any():
        raise BadInput("a softmax row holds NaN. Take log_softmax of finite logits.")
    if torch.isneginf(rows).all(-1).any():
        raise BadInput("a softmax row has no key left: its mask is empty. Leave such rows out.")
    worst = float(total.flatten()[total.abs().argmax()])
    raise BadInput(
        f"a softmax row sums to {math.exp(min(worst, 700.0)):.6g}, expected 1. "
        "Give log-probabilities (log_softmax of the logits), with masked keys left out of the sum."
    )


def count(rows: Tensor) -> Tensor:
    """Number of keys of each row that are not masked."""
    return (rows > -math.inf).sum(-1)


def largest_two(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The two largest entries and their places, (..., 2); a row of one key has -inf for its second."""
    top = F.pad(rows, (0, 1), value=-math.inf).topk(2, dim=-1)
    return top.values, top.indices


def smallest_two(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The two smallest entries that are not masked, ascending, and their places; +inf for a missing second."""
    visible = torch.where(torch.isneginf(rows), math.inf, rows)
    bottom = F.pad(visible, (0, 1), value=math.inf).topk(2, dim=-1, largest=False)
    return bottom.values, bottom.indices


def log_rest(rows: Tensor) -> Tensor:
    """log(1 - s_max), summed from the other entries: 1 - s_max itself rounds to zero in a saturated row."""
    others = rows.scatter(-1, rows.argmax(-1, keepdim=True), -math.inf)
    return torch.logsumexp(others, -1)


def log_smallest(rows: Tensor) -> Tensor:
    """log s_min over the keys that are not masked."""
    return smallest_two(rows)[0][..., 0]


def mass_carrying(rows: Tensor, left_out: float = 1e-3) -> Tensor:
    """The fewest largest entries that together hold at least 1 - left_out, renormalized; the others masked."""
    if not 0 <= left_out < 1:
        raise BadInput(f"left_out must be a share of the mass in [0, 1), got {left_out!r}.")
    ordered = rows.sort(-1).values  # ascending: what is dropped is summed from the smallest
    tail = torch.logcumsumexp(ordered, -1)
    dropped = (tail <= (math.log(left_out) if left_out else -math.inf)).sum(-1, keepdim=True)
    least = ordered.gather(-1, dropped.clamp_max(rows.shape[-1] - 1))
    return torch.log_softmax(rows.masked_fill(rows < least, -math.inf), -1)


SATURATED = 1e-2  # a row whose largest entry leaves less than this to all others


def product(probabilities: Tensor, vectors: Tensor) -> Tensor:
    """J(s) a = s * (a - s.a), for probabilities and vectors (..., n) that broadcast; differentiable, O(n)."""
    return probabilities * (vectors - (probabilities * vectors).sum(-1, keepdim=True))


def helmert(n: int) -> Tensor:
    """An orthonormal basis of {u : sum u = 0}, columns of (n, n - 1)."""
    k = torch.arange(1, n, dtype=torch.float64)
    Q = torch.triu(torch.ones(n, n - 1, dtype=torch.float64))
    Q[torch.arange(1, n), torch.arange(n - 1)] = -k
    return Q / (k * (k + 1)).sqrt()


def tangent_hessian(x: Tensor, hessian: Tensor) -> Tensor:
    """Q^T J H J Q (..., n - 1, n - 1): the Hessian of l(softmax(z)) at a stationary point, off its null direction.

    Dense, for small n: probabilities x (..., n) and the Hessian H of l, (..., n, n).
    """
    J = torch.diag_embed(x) - x[..., :, None] * x[..., None, :]
    Q = helmert(x.shape[-1])
    return (J @ Q).transpose(-1, -2) @ hessian @ (J @ Q)


def entropy(rows: Tensor) -> Tensor:
    """-sum s log s, in nats; exp of it is the effective number of keys."""
    return -(rows.exp() * rows.clamp_min(-1e300)).sum(-1).clamp_max(0.0)


def saturated(rows: Tensor, limit: float = SATURATED) -> Tensor:
    """True where the largest entry leaves less than `limit` to all other keys."""
    return log_rest(rows) < math.log(limit)


def _complements(rows: Tensor) -> Tensor:
    """1 - s_i, the one of the largest entry summed from the others."""
    rest = log_rest(rows).exp()[..., None]
    return (-torch.expm1(rows)).scatter(-1, rows.argmax(-1, keepdim=True), rest)


def trace(rows: Tensor) -> Tensor:
    """tr J = sum s_i (1 - s_i) = 1 - sum s^2."""
    return (rows.exp() * _complements(rows)).sum(-1)


def frobenius(rows: Tensor) -> Tensor:
    """|J|_F, with |J|_F^2 = sum_i s_i^2 (1 - s_i)^2 + sum_{i != j} s_i^2 s_j^2, the last summed as
    sum_i s_i^2 (sum_j s_j^2 - s_i^2); without the cancellation of sum s^2 - 2 sum s^3 + (sum s^2)^2 in a sharp row.
    """
    s = rows.exp()
    square = s.square()
    top = rows.argmax(-1, keepdim=True)
    below = square.scatter(-1, top, 0.0)
    first = square.gather(-1, top)[..., 0]
    rest = below.sum(-1)
    off = 2 * first * rest + (below * (rest[..., None] - below)).sum(-1)
    return ((s * _complements(rows)).square().sum(-1) + off).sqrt()


def log_determinant(rows: Tensor) -> Tensor:
    """log of the product of the n - 1 nonzero eigenvalues, log n + sum log s_i; nan for a single key."""
    keys = count(rows)
    total = torch.where(torch.isneginf(rows), 0.0, rows).sum(-1) + torch.log(keys.double())
    return torch.where(keys > 1, total, math.nan)
