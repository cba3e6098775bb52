"""Softmax Jacobians: against dense eigenvalues, closed forms and sixty-digit arithmetic."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from edgewise import BadInput
from edgewise import softmax_jacobian as jacobian


def rows(count: int, keys: int, scale: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(count, keys, generator=generator, dtype=torch.float64)
    return torch.log_softmax(logits, -1)


@pytest.mark.parametrize("keys", [2, 3, 8, 64])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 3.0])
def test_extremes_are_those_of_the_dense_matrix(keys: int, scale: float) -> None:
    s = rows(20, keys, scale).exp()
    dense = torch.linalg.eigvalsh(torch.diag_embed(s) - s[:, :, None] * s[:, None, :])
    found = jacobian.spectrum(jacobian.checked(s.log()))
    torch.testing.assert_close(found.largest.exp(), dense[:, -1], rtol=1e-12, atol=0)
    torch.testing.assert_close(found.smallest.exp(), dense[:, 1], rtol=1e-6, atol=1e-15)


def test_jacobian_is_that_of_autograd() -> None:
    """diag(s) - s s^T is what torch differentiates softmax to, so its trace and eigenvalues are ours."""
    z = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    J = torch.autograd.functional.jacobian(lambda x: torch.softmax(x, -1), z)
    row = jacobian.checked(torch.log_softmax(z, -1))
    assert float(jacobian.trace(row)) == pytest.approx(float(J.trace()), rel=1e-13)
    assert float(jacobian.spectrum(row).largest.exp()) == pytest.approx(float(torch.linalg.eigvalsh(J)[-1]), rel=1e-12)


@pytest.mark.parametrize("keys", [2, 5, 100])
def test_uniform_rows(keys: int) -> None:
    row = jacobian.checked(torch.full((1, keys), -math.log(keys)))
    found = jacobian.spectrum(row)
    assert found.largest.exp().item() == pytest.approx(1 / keys, rel=1e-6)
    assert found.condition.item() == pytest.approx(0.0, abs=1e-6)
    assert jacobian.entropy(row).item() == pytest.approx(math.log(keys), rel=1e-6)


def test_sharp_rows_need_logarithms() -> None:
    """Logits spread over 200: the smallest entry is 1e-87 and its eigenvalue still right, against 60 digits."""
    z = torch.linspace(0, 200, 7, dtype=torch.float64)
    found = jacobian.spectrum(jacobian.checked(torch.log_softmax(z, -1)))
    with mpmath.workdps(60):
        powers = [mpmath.e ** mpmath.mpf(float(value)) for value in z]
        s = sorted(p / sum(powers) for p in powers)
        for low, high, ours in ((s[-2], s[-1], found.largest), (s[0], s[1], found.smallest)):
            for _ in range(220):  # bisection in log lambda, in sixty digits
                middle = mpmath.sqrt(low * high)
                below = sum(value / (value - middle) for value in s) < 0
                low, high = (middle, high) if below else (low, middle)
            assert abs(mpmath.mpf(ours.item()) - mpmath.log(low)) < 1e-12


def test_one_hot_rows_are_flat_not_badly_conditioned() -> None:
    """n - 1 equal small entries: kappa tends to n while every eigenvalue vanishes with them."""
    keys, small = 8, 1e-12
    s = torch.full((keys,), small, dtype=torch.float64)
    s[3] = 1 - (keys - 1) * small
    found = jacobian.spectrum(jacobian.checked(s.log()))
    assert found.condition.exp().item() == pytest.approx(keys, rel=1e-6)
    assert found.largest.exp().item() == pytest.approx(keys * small, rel=1e-6)
    assert jacobian.saturated(s.log()).item()


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 30.0])
def test_brackets_and_estimate_hold(scale: float) -> None:
    row = jacobian.checked(rows(200, 12, scale, seed=3))
    bounds, exact = jacobian.brackets(row), jacobian.spectrum(row)
    for (low, high), value in ((bounds.largest, exact.largest), (bounds.smallest, exact.smallest)):
        assert (low <= value + 1e-12).all() and (value <= high + 1e-12).all()
        assert (high - low <= math.log(2) + 1e-12).all()
    gap = exact.condition - jacobian.condition_estimate(row)
    assert (gap >= -1e-9).all() and (gap <= math.log(2) + 1e-9).all()


def test_masked_keys_are_removed() -> None:
    row = torch.log_softmax(torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), -1)
    wide = torch.cat([row, torch.full((5, 3), 7.0)], -1)
    mask = torch.tensor([True] * 6 + [False] * 3)
    short, long = jacobian.checked(row), jacobian.checked(wide, mask)
    for name in ("entropy", "trace", "condition_estimate", "log_rest"):
        torch.testing.assert_close(getattr(jacobian, name)(long), getattr(jacobian, name)(short))
    torch.testing.assert_close(jacobian.spectrum(long).condition, jacobian.spectrum(short).condition)


def test_one_two_and_tied_keys() -> None:
    alone = jacobian.spectrum(jacobian.checked(torch.tensor([[0.0, -math.inf]])))
    assert torch.isnan(alone.largest).all() and torch.isnan(alone.condition).all()
    pair = jacobian.spectrum(jacobian.checked(torch.tensor([0.3, 0.7], dtype=torch.float64).log()))
    assert pair.largest.exp().item() == pytest.approx(2 * 0.3 * 0.7, rel=1e-14)
    assert pair.condition.item() == 0.0
    tied = jacobian.spectrum(jacobian.checked(torch.tensor([0.4, 0.4, 0.1, 0.1], dtype=torch.float64).log()))
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
    with pytest.raises(BadInput, match=word):
        jacobian.checked(bad)
