"""Softmax Jacobians: against dense eigenvalues, closed forms and sixty-digit arithmetic."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch

from edgewise import BadInput
from edgewise import softmax_jacobian as jacobian
from edgewise.softmax_jacobian.jacobian import Gap, _bisected, root


def rows(count: int, keys: int, scale: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, keys, generator=generator, dtype=torch.float64)
    return torch.log_softmax(logits, -1)


@pytest.mark.parametrize("keys", [2, 3, 8, 64])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0])
def test_extremes_are_those_of_the_dense_matrix(keys: int, scale: float) -> None:
    s = rows(20, keys, scale).exp()
    dense = torch.linalg.eigvalsh(torch.diag_embed(s) - s[:, :, None] * s[:, None, :])
    found = jacobian.extremes(s.log())
    torch.testing.assert_close(found.largest.exp(), dense[:, -1], rtol=1e-12, atol=0)
    torch.testing.assert_close(found.smallest.exp(), dense[:, 1], rtol=1e-6, atol=1e-15)


def test_jacobian_is_that_of_autograd() -> None:
    """diag(s) - s s^T is what torch differentiates softmax to, so its trace and eigenvalues are ours."""
    z = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    J = torch.autograd.functional.jacobian(lambda x: torch.softmax(x, -1), z)
    row = jacobian.checked(torch.log_softmax(z, -1))
    assert float(jacobian.trace(row)) == pytest.approx(float(J.trace()), rel=1e-13)
    largest = float(jacobian.extremes_of_rows(row).largest.exp())
    assert largest == pytest.approx(float(torch.linalg.eigvalsh(J)[-1]), rel=1e-12)


@pytest.mark.parametrize("keys", [2, 5, 100])
def test_uniform_rows(keys: int) -> None:
    row = jacobian.checked(torch.full((1, keys), -math.log(keys)))
    found = jacobian.extremes_of_rows(row)
    assert found.largest.exp().item() == pytest.approx(1 / keys, rel=1e-6)
    assert found.condition.item() == pytest.approx(0.0, abs=1e-6)
    assert jacobian.entropy(row).item() == pytest.approx(math.log(keys), rel=1e-6)


def sixty_digits(row: torch.Tensor) -> list[mpmath.mpf]:
    """log of every nonzero eigenvalue, descending: bisection of the secular equation in log lambda, sixty digits."""
    with mpmath.workdps(60):
        s = sorted((mpmath.exp(mpmath.mpf(float(value))) for value in row), reverse=True)
        found = []
        for high, low in itertools.pairwise(s):
            for _ in range(70):
                middle = mpmath.sqrt(low * high)
                below = sum(value / (value - middle) for value in s) < 0
                low, high = (middle, high) if below else (low, middle)
            found.append(mpmath.log(low))
        return found


@pytest.mark.parametrize("smallest", [1e-3, 1e-12, 1e-45, 1e-300])
@pytest.mark.parametrize("keys", [3, 8, 20])
def test_every_eigenvalue_against_sixty_digits(keys: int, smallest: float) -> None:
    """Relative errors below 1e-12, whether the row is spread evenly over its decades or has one tiny entry."""
    drawn = torch.rand(keys, dtype=torch.float64, generator=torch.Generator().manual_seed(keys))
    spread = (drawn - drawn.min()) / (drawn.max() - drawn.min()) * math.log(1 / smallest)
    lonely = torch.cat([drawn[1:], torch.tensor([math.log(smallest)], dtype=torch.float64)])
    for z in (spread, lonely):
        row = torch.log_softmax(z, -1)
        exact = sixty_digits(row)
        found, ends = jacobian.spectrum(row), jacobian.extremes(row)
        limit = 1e-12
        assert max(abs(mpmath.mpf(float(a)) - b) for a, b in zip(found, exact, strict=True)) < limit
        assert abs(mpmath.mpf(float(ends.largest)) - exact[0]) < limit
        assert abs(mpmath.mpf(float(ends.smallest)) - exact[-1]) < limit


def test_near_ties_and_ties_among_other_entries() -> None:
    """Poles one unit in the last place apart: the root is between them, and the product of all is n prod s."""
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(400, 13, generator=generator, dtype=torch.float64).round()  # many exact ties
    z += z.abs() * 1e-15 * (torch.rand(400, 13, generator=generator, dtype=torch.float64) * 12).exp()
    row = torch.log_softmax(z, -1)
    every, ends = jacobian.spectrum(row), jacobian.extremes(row)
    torch.testing.assert_close(every[:, 0], ends.largest, rtol=0, atol=1e-14)
    torch.testing.assert_close(every[:, -1], ends.smallest, rtol=0, atol=1e-14)
    torch.testing.assert_close(every.sum(-1), jacobian.log_determinant(row), rtol=1e-13, atol=0)
    assert (every.diff(dim=-1) <= 0).all()


def test_a_coarse_tolerance_is_kept() -> None:
    row = rows(500, 40, 4.0, seed=2)
    exact, coarse = jacobian.extremes_of_rows(row), jacobian.extremes_of_rows(row, 1e-2)
    assert (exact.largest - coarse.largest).abs().max() < 1e-2
    assert (exact.smallest - coarse.smallest).abs().max() < 1e-2


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_numbers_without_eigenvalues(scale: float) -> None:
    """Product, trace, Frobenius norm and determinant are those of the dense matrix and of the eigenvalues."""
    row = rows(6, 9, scale, seed=4)
    s = row.exp()
    J = torch.diag_embed(s) - s[:, :, None] * s[:, None, :]
    a = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(jacobian.product(s, a), (J @ a[..., None])[..., 0])
    torch.testing.assert_close(jacobian.trace(row), J.diagonal(dim1=-2, dim2=-1).sum(-1))
    torch.testing.assert_close(jacobian.frobenius(row), torch.linalg.matrix_norm(J), rtol=1e-13, atol=0)
    eigenvalues = jacobian.spectrum(row).exp()
    torch.testing.assert_close(eigenvalues.sum(-1), jacobian.trace(row), rtol=1e-13, atol=0)
    torch.testing.assert_close(
        eigenvalues.square().sum(-1).sqrt(), jacobian.frobenius(row), rtol=1e-13, atol=0
    )
    torch.testing.assert_close(eigenvalues.log().sum(-1), jacobian.log_determinant(row), rtol=1e-12, atol=0)


def test_norms_of_a_saturated_row_do_not_cancel() -> None:
    """One entry 1e-30, the other the rest: J = 1e-30 [[1, -1], [-1, 1]], where 1 - sum s^2 would be zero."""
    row = torch.tensor([[math.log(1e-30), 0.0]], dtype=torch.float64)
    assert jacobian.trace(row).item() == pytest.approx(2e-30, rel=1e-12)
    assert jacobian.frobenius(row).item() == pytest.approx(2e-30, rel=1e-12)


def test_the_entries_that_carry_the_mass() -> None:
    """A long tail of 1e-9: kappa is that of the tail, the effective one that of the four entries that matter."""
    head = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    tail = torch.full((1000,), 1e-9, dtype=torch.float64)
    row = torch.cat([head * (1 - tail.sum()), tail]).log()
    short = jacobian.extremes(head.log())
    assert jacobian.effective_condition(row).item() == pytest.approx(short.condition.item(), rel=1e-12)
    assert jacobian.extremes(row).condition.item() > math.log(1e8)
    assert jacobian.count(jacobian.mass_carrying(row, 0.25)).item() == 3  # 0.4 + 0.3 < 0.75
    whole = jacobian.mass_carrying(row, 0.0)
    torch.testing.assert_close(whole, row)
    with pytest.raises(BadInput, match="left_out"):
        jacobian.mass_carrying(row, 1.0)


def test_one_hot_rows_are_flat_not_badly_conditioned() -> None:
    """n - 1 equal small entries: kappa tends to n while every eigenvalue vanishes with them."""
    keys, small = 8, 1e-12
    s = torch.full((keys,), small, dtype=torch.float64)
    s[3] = 1 - (keys - 1) * small
    found = jacobian.extremes(s.log())
    assert found.condition.exp().item() == pytest.approx(keys, rel=1e-6)
    assert found.largest.exp().item() == pytest.approx(keys * small, rel=1e-6)
    assert jacobian.saturated(s.log()).item()


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 30.0])
def test_brackets_and_estimate_hold(scale: float) -> None:
    row = jacobian.checked(rows(200, 12, scale, seed=3))
    bounds, exact = jacobian.brackets(row), jacobian.extremes_of_rows(row)
    for (low, high), value in ((bounds.largest, exact.largest), (bounds.smallest, exact.smallest)):
        assert (low <= value + 1e-12).all() and (value <= high + 1e-12).all()
        assert (high - low <= math.log(2) + 1e-12).all()
    gap = exact.condition - jacobian.condition_estimate(row)
    assert (gap >= -1e-9).all() and (gap <= math.log(2) + 1e-9).all()


def test_masked_keys_are_removed() -> None:
    row = torch.log_softmax(
        torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), -1
    )
    wide = torch.cat([row, torch.full((5, 3), 7.0)], -1)
    mask = torch.tensor([True] * 6 + [False] * 3)
    short, long = jacobian.checked(row), jacobian.checked(wide, mask)
    for name in ("entropy", "trace", "frobenius", "log_determinant", "condition_estimate", "log_rest"):
        torch.testing.assert_close(getattr(jacobian, name)(long), getattr(jacobian, name)(short))
    torch.testing.assert_close(jacobian.extremes(wide, mask).condition, jacobian.extremes(row).condition)


def test_one_two_and_tied_keys() -> None:
    alone = jacobian.extremes(torch.tensor([[0.0, -math.inf]]))
    assert torch.isnan(alone.largest).all() and torch.isnan(alone.condition).all()
    pair = jacobian.extremes(torch.tensor([0.3, 0.7], dtype=torch.float64).log())
    assert pair.largest.exp().item() == pytest.approx(2 * 0.3 * 0.7, rel=1e-14)
    assert pair.condition.item() == 0.0
    tied = jacobian.extremes(torch.tensor([0.4, 0.4, 0.1, 0.1], dtype=torch.float64).log())
    assert tied.largest.exp().item() == pytest.approx(0.4, rel=1e-14)
    assert tied.smallest.exp().item() == pytest.approx(0.1, rel=1e-14)


@pytest.mark.parametrize(
    "bad, word",
    [
        (torch.tensor([0.1, 0.2]), "sums to"),
        (torch.tensor([math.nan, 0.0]), "NaN"),
        (torch.tensor([-math.inf, -math.inf]), "empty"),
        (torch.zeros(3, 0), "no keys"),
    ],
)
def test_what_is_no_distribution_is_refused(bad: torch.Tensor, word: str) -> None:
    for function in (jacobian.checked, jacobian.extremes, jacobian.spectrum):
        with pytest.raises(BadInput, match=word):
            function(bad)


def test_masks_that_do_not_fit_are_refused() -> None:
    row = torch.log_softmax(torch.zeros(4, 6), -1)
    with pytest.raises(BadInput, match="broadcast"):
        jacobian.extremes(row, torch.ones(5, dtype=torch.bool))
    with pytest.raises(BadInput, match="booleans"):
        jacobian.extremes(row, torch.ones(6))
    with pytest.raises(BadInput, match="empty"):
        jacobian.extremes(row, torch.zeros(6, dtype=torch.bool))


def test_masked_rows_have_fewer_eigenvalues() -> None:
    row = rows(3, 5, 1.0)
    wide = torch.cat([row, torch.full((3, 2), -math.inf, dtype=torch.float64)], -1)
    found = jacobian.spectrum(wide)
    torch.testing.assert_close(found[:, :4], jacobian.spectrum(row))
    assert torch.isnan(found[:, 4:]).all()


def test_rows_of_any_shape_are_rows() -> None:
    """(sequences, heads, queries, keys), of sizes that all differ, against the same rows one after the other."""
    flat = jacobian.checked(rows(30, 7, 2.0))
    shaped = flat.reshape(2, 3, 5, 7)
    for verb in (
        jacobian.trace,
        jacobian.entropy,
        jacobian.condition_estimate,
        jacobian.effective_condition,
        jacobian.mass_carrying,
        jacobian.spectrum,
        jacobian.saturated,
        jacobian.frobenius,
    ):
        assert torch.equal(verb(shaped).flatten(0, 2), verb(flat)), verb.__name__
    for one, other in zip(jacobian.brackets(shaped).smallest, jacobian.brackets(flat).smallest, strict=True):
        assert torch.equal(one.flatten(), other)
    carried = jacobian.mass_carrying(flat, 0.2).exp()
    ordered = flat.exp().sort(-1, descending=True).values
    fewest = ((ordered.cumsum(-1) < 0.8).sum(-1) + 1).tolist()  # that hold four fifths
    assert (carried > 0).sum(-1).tolist() == fewest
    torch.testing.assert_close(carried.sum(-1), torch.ones(30, dtype=torch.float64))


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_halving_alone_finds_the_roots_that_the_steps_find(spread: float) -> None:
    """Both sides of the gap, in rows of three: the zero of psi + phi between 1 and 1/nearest."""
    s = rows(40, 3, spread).exp().sort(-1, descending=True).values
    below, above = torch.ones(40, 1, dtype=torch.float64), s[:, 1:] / s[:, :1]
    gap = Gap(below, above, 0.0, above.max(-1).values)
    low, high = torch.ones(40, dtype=torch.float64), 1 / gap.nearest
    found = _bisected(gap, low, high)
    psi, psi_slope, phi, phi_slope = gap.values(found)
    assert ((psi + phi).abs() <= 1e-9 * (psi_slope + phi_slope) * found).all()
    torch.testing.assert_close(found, root(gap, low, high), rtol=1e-9, atol=0)
