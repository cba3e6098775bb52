"""Condition number of J H J on the tangent space: the corrected bound never fails, the original one does."""

from __future__ import annotations

import math

import pytest
import torch

from edgewise.laboratory.replicator import condition_bounds, random_cases
from edgewise.softmax_jacobian import helmert, tangent_hessian


@pytest.mark.parametrize("n", [2, 3, 7])
def test_helmert_is_an_orthonormal_basis_of_the_tangent_space(n: int) -> None:
    Q = helmert(n)
    torch.testing.assert_close(Q.T @ Q, torch.eye(n - 1, dtype=torch.float64))
    torch.testing.assert_close(Q.sum(0), torch.zeros(n - 1, dtype=torch.float64), atol=1e-14, rtol=0)


@pytest.mark.parametrize("curvature", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 16])
def test_corrected_bound_in_ten_thousand_cases(n: int, curvature: float) -> None:
    """700 cases here, 10,500 over all parameters: sharp and flat rows, H = I to badly conditioned; no violation."""
    for sharpness in (0.3, 1.0, 3.0, 0.0 if n == 2 else 2.0):
        log_x, H = random_cases(175, n, sharpness, curvature, seed=int(10 * sharpness) + n)
        found = condition_bounds(log_x, H)
        assert not found.violated("corrected").any()
        assert not found.violated("spectral").any()
        assert (found.corrected <= found.spectral + 1e-9).all()


@pytest.mark.parametrize("n", [3, 6])
def test_exact_value_is_that_of_the_dense_matrix(n: int) -> None:
    log_x, H = random_cases(30, n, 0.7, 1.0, seed=3)
    dense = torch.linalg.eigvalsh(tangent_hessian(log_x.exp(), H))
    expected = (dense[:, -1] / dense[:, 0]).log()
    torch.testing.assert_close(condition_bounds(log_x, H).exact, expected, rtol=1e-8, atol=1e-8)


def test_original_bound_fails_for_two_tokens_and_one_hot_rows() -> None:
    """n = 2 has one eigenvalue, kappa = 1; a one-hot row of eight with rest 1e-4 has 64, not 1e8."""
    pair = condition_bounds(torch.tensor([0.1, 0.9]).double().log(), torch.eye(2).double())
    assert pair.exact.item() == pytest.approx(0.0, abs=1e-12)
    assert pair.original.exp().item() == pytest.approx(81, rel=1e-6)
    row = torch.full((8,), 1e-4).double()
    row[2] = 1 - 7e-4
    peaked = condition_bounds(row.log(), 3 * torch.eye(8).double())
    assert peaked.exact.exp().item() == pytest.approx(64, rel=2e-3)
    assert peaked.original.exp().item() > 9e7
    assert peaked.violated("original") and not peaked.violated("corrected")
    assert peaked.exact.item() - peaked.corrected.item() < 2 * math.log(2)


def test_gradient_descent_follows_the_exact_value() -> None:
    """Steps to 1e-6 on the quadratic z.JHJ.z/2 at the best step: those of kappa 64, not of 1e8."""
    row = torch.full((8,), 1e-4).double()
    row[2] = 1 - 7e-4
    M = tangent_hessian(row, torch.eye(8).double())
    values = torch.linalg.eigvalsh(M)
    step = 2 / (values[0] + values[-1])
    error, steps = torch.ones(7).double(), 0
    while error.norm() > 1e-6 * math.sqrt(7):
        error, steps = error - step * (M @ error), steps + 1
    kappa = math.exp(condition_bounds(row.log(), torch.eye(8).double()).exact.item())
    predicted = math.log(1e6) / -math.log((kappa - 1) / (kappa + 1))
    assert steps == pytest.approx(predicted, rel=0.15)
