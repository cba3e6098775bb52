"""Softmax rows s and their Jacobian J(s) = diag(s) - s s^T: eigenvalues, products, and numbers that need neither.

A row is log-probabilities (..., n) in double precision, masked keys at -inf, rejected unless it is a distribution. The
extreme eigenvalues take O(n), all of them O(n^2) time and O(n) memory.

The nonzero eigenvalues solve the secular equation g(lambda) = sum_i s_i / (s_i - lambda) = 0 of a rank-one change, one
between each pair of neighboring entries [Golub 1973; Bunch, Nielsen and Sorensen 1978]. Scaled by the lower of the
two, x = lambda / s_low, the root lies in (1, n/k) when k entries are above, because each of those contributes at least
1: nothing overflows, however small the row's entries are. Brackets of the extreme roots are in closed form.

Logarithms in, logarithms out; in a gap, below (..., a) holds s_i/s_low <= 1 of the entries up to s_low, above (..., b)
holds s_low/s_i of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from edgewise.arrays import in_double
from edgewise.errors import BadInput

RATIONAL, HALVINGS = 12, 60  # steps; quadratic convergence needs about five, what is left is bisected
EXACT = 2.3e-16  # relative, one unit in the last place
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

    log_probabilities (..., n), mask (..., n) True where attended; raises unless every row is a distribution.
    """
    return extremes_of_rows(checked(log_probabilities, mask))


def extremes_of_rows(rows: Tensor, tolerance: float = EXACT) -> Extremes:
    """Do the same for rows already checked, to a relative `tolerance` of the eigenvalues (monitors: 1e-2 is enough).

    Two keys give 2 s_1 s_2, ties give the tied entry, one key has no eigenvalue (nan).
    """
    keys = count(rows)
    n = in_double(keys)
    stretch = torch.log(n) - torch.log(n - 1)
    values, places = smallest_two(rows)
    last, before = values.unbind(-1)
    ratios = (last[..., None] - rows).exp()
    above = torch.where(torch.isneginf(rows), 0.0, ratios).scatter(-1, places[..., :1], 0.0)
    surplus = in_double(rows.shape[-1] - keys + 1)
    gap = Gap(torch.ones_like(above[..., :1]), above, surplus, (last - before).exp())
    low, high = ((bound - last).exp() for bound in of_smallest(values, stretch))
    largest, smallest = _largest(rows, stretch, tolerance), last + _logarithm(gap, low, high, tolerance)
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


def _logarithm(gap: Gap, low: Tensor, high: Tensor, tolerance: float) -> Tensor:
    """log of the root; a gap without width (tied entries) has its end for a root."""
    low, high = (low * (1 - ROOM)).clamp_min(1), torch.minimum(high * (1 + ROOM), 1 / gap.nearest)
    tied = ~((low < high) & (gap.nearest < 1))
    x = root(gap, torch.where(tied, 1.0, low), torch.where(tied, 1.0, high), tolerance)
    return torch.where(tied, 0.0, x.log())


def spectrum(log_probabilities: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logarithms of all n - 1 nonzero eigenvalues, descending, (..., n - 1); nan where masked keys leave fewer.

    O(n^2) operations, never an n x n matrix: the gaps are taken a few at a time.
    """
    rows = checked(log_probabilities, mask)
    n = rows.shape[-1]
    ordered = rows.sort(-1, descending=True).values.reshape(-1, n)
    step = max(1, CHUNK // n)
    gaps = [(row, k) for row in range(len(ordered)) for k in range(1, int(count(ordered[row])))]
    eigenvalues = torch.full((len(ordered), n - 1), math.nan, dtype=ordered.dtype, device=ordered.device)
    for start in range(0, len(gaps), step):
        row, k = torch.tensor(gaps[start : start + step], device=ordered.device).T
        eigenvalues[row, k - 1] = _between(ordered[row], k)
    return eigenvalues.reshape(*rows.shape[:-1], n - 1)


def _between(ordered: Tensor, k: Tensor) -> Tensor:
    """log of the eigenvalue between the k-th and the (k+1)-th entry of each row (rows descending, k from 1)."""
    n = in_double(count(ordered))
    high, low = (ordered.gather(-1, place[:, None])[:, 0] for place in (k - 1, k))
    upper = torch.arange(ordered.shape[-1], device=k.device) < k[:, None]
    below = torch.where(upper, 0.0, (ordered - low[:, None]).exp())
    above = torch.where(upper, (low[:, None] - ordered).exp(), 0.0)
    gap = Gap(below, above, in_double((~upper).sum(-1)), (low - high).exp())
    return low + _logarithm(gap, torch.ones_like(n), n / k, EXACT)


def effective_condition(rows: Tensor, left_out: float = 1e-3) -> Tensor:
    """log kappa(J) of the entries that carry all but `left_out` of the mass, renormalized.

    Long rows have a huge kappa for a harmless reason, their tiny tail; this one does not see it.
    """
    return extremes_of_rows(mass_carrying(rows, left_out)).condition


@dataclass(frozen=True, eq=False)
class Brackets:
    """Closed-form bounds of the logarithms of both extreme eigenvalues, at most a factor two apart, each (...)."""

    largest: tuple[Tensor, Tensor]
    smallest: tuple[Tensor, Tensor]


def brackets(rows: Tensor) -> Brackets:
    """n/(n-1) m <= lambda_1 <= min(2m, s_(1), 1/2), lambda_1 >= s_(2), with m = s_max (1 - s_max);
    s_(n) <= lambda_{n-1} <= min(n/(n-1) s_(n) (1 - s_(n)), s_(n-1)), by Rayleigh, Gershgorin and interlacing.
    """
    n = in_double(count(rows))
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
    estimate = rows.amax(-1) + log_rest(rows) - low - torch.log(-torch.expm1(low))
    return torch.where(count(rows) > 1, estimate, math.nan)


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
        """Return the same gap for a subset of the rows, flattened."""
        surplus = self.surplus[rows] if isinstance(self.surplus, Tensor) else self.surplus
        below, above = (t.expand(*rows.shape, -1)[rows] for t in (self.below, self.above))
        return Gap(below, above, surplus, self.nearest[rows])


def root(gap: Gap, low: Tensor, high: Tensor, tolerance: float = EXACT) -> Tensor:
    """x with g(x) = 0 in [low, high], relative error about `tolerance`: rational steps, then bisection where needed.

    Each step replaces both sums by one pole each, matched in value and slope, and solves the quadratic; it converges
    quadratically and from one side [Bunch, Nielsen and Sorensen 1978]. A step that leaves the bracket is a bisection.
    """
    # the error after a step is about the square of its length
    x, step = 0.5 * (low + high), math.sqrt(tolerance)
    for _ in range(RATIONAL):
        sums = gap.values(x)
        left = sums[0] + sums[2] < 0  # g increases: the root is to the right
        low, high = torch.where(left, x, low), torch.where(left, high, x)
        new = _step(gap, x, *sums)
        room = torch.minimum(new - 1, 1 / gap.nearest - new)
        close = (new - x).abs() <= torch.maximum(step * room, 4 * EXACT * x)
        inside = close | ((new > low) & (new < high))  # false if the step is nan
        new = torch.where(inside, torch.minimum(torch.maximum(new, low), high), 0.5 * (low + high))
        settled = close | (high - low <= 2 * EXACT * x)
        x = new
        if bool(settled.all()):
            return x
    slow = ~settled
    x[slow] = _bisected(gap.only(slow), low[slow], high[slow])
    return x


def _step(gap: Gap, x: Tensor, psi: Tensor, psi_slope: Tensor, phi: Tensor, phi_slope: Tensor) -> Tensor:
    """Return the zero of c - b/u + phi + phi' D (u - v)/(E - u w), with u = x_new - 1, v = x - 1."""
    v, w = x - 1, gap.nearest
    E, D = 1 - w, 1 - x * w
    b, c = psi_slope * v.square(), psi + psi_slope * v + phi
    second, first, zeroth = phi_slope * D - c * w, c * E + b * w - phi_slope * D * v, -b * E
    discriminant = (first.square() - 4 * second * zeroth).clamp_min(0).sqrt()
    stable = -2 * zeroth / (first + discriminant)  # no cancellation if the linear term is positive
    return 1 + torch.where(first >= 0, stable, (discriminant - first) / (2 * second))


def _bisected(gap: Gap, low: Tensor, high: Tensor) -> Tensor:
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        psi, _, phi, _ = gap.values(middle)
        left = psi + phi < 0
        low, high = torch.where(left, middle, low), torch.where(left, high, middle)
    return 0.5 * (low + high)


def checked(log_probabilities: Tensor, mask: Tensor | None = None, tolerance: float = 1e-4) -> Tensor:
    """Return the rows in double precision with masked keys at -inf; raise unless each is a distribution.

    mask: True where a key is attended to, broadcast against the rows; without it, -inf marks what is masked.
    """
    rows = in_double(log_probabilities.detach())
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise BadInput(
            f"softmax rows of shape {tuple(rows.shape)} have no keys. Give log-probabilities (..., keys)."
        )
    if mask is not None:
        rows = rows.masked_fill(~_fitting(mask, rows), -math.inf)
    total = torch.logsumexp(rows, -1)
    worst = float(total.abs().max()) if total.numel() else 0.0
    if not worst <= tolerance:  # also if it is nan or infinite
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
    """Return the number of keys of each row that are not masked."""
    return (rows > -math.inf).sum(-1)


def largest_two(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two largest entries and their places, (..., 2); a row of one key has -inf for its second."""
    top = F.pad(rows, (0, 1), value=-math.inf).topk(2, dim=-1)
    return top.values, top.indices


def smallest_two(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two smallest entries that are not masked, ascending, and their places; +inf for a missing second."""
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
    """Return the fewest largest entries that together hold at least 1 - left_out, renormalized; the others masked."""
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
    """Return an orthonormal basis of {u : sum u = 0}, columns of (n, n - 1)."""
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
    """Return True for rows whose largest entry leaves less than `limit` to all other keys."""
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
    total = torch.where(torch.isneginf(rows), 0.0, rows).sum(-1) + torch.log(in_double(keys))
    return torch.where(keys > 1, total, math.nan)
