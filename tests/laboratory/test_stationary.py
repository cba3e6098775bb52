"""Stationary points of the replicator flow: KKT, stability by H alone, speed by J, and the 1/t law at the boundary."""

from __future__ import annotations

import pytest
import torch

from edgewise import BadInput
from edgewise.laboratory.replicator import Standing, decoupled, follow, judge_point, missing_entries


def quadratic(n: int, seed: int, shift: float = 1.0) -> torch.Tensor:
    A = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return A.T @ A + shift * torch.eye(n, dtype=torch.float64)


def test_interior_points_where_the_flow_stops_are_kkt() -> None:
    """The flow of l(x) = (x - c).H.(x - c)/2 with c on the simplex ends at c; the judge calls it stable."""
    H, c = quadratic(4, 0), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)

    def slope(x: torch.Tensor) -> torch.Tensor:
        return H @ (x - c) + 5.0  # a constant is invisible

    start = torch.full((4,), 0.25, dtype=torch.float64)
    end = follow(slope, start, [400.0]).exp()[0]
    torch.testing.assert_close(end, c, atol=1e-8, rtol=0)
    found = judge_point(end, slope(end), H, tolerance=1e-6)
    assert found.standing is Standing.STABLE and found.kkt and found.interior
    assert found.multiplier == pytest.approx(5.0, abs=1e-6)
    assert judge_point(start, slope(start), H).standing is Standing.MOVING


def test_rates_are_those_of_the_derivative_and_of_the_logit_hessian() -> None:
    H, c = quadratic(5, 1), torch.softmax(torch.arange(5, dtype=torch.float64), -1)
    field = decoupled(lambda x: H @ (x - c))
    derivative = torch.autograd.functional.jacobian(field, c)
    tangent = torch.eye(5, dtype=torch.float64) - 0.2
    rates = torch.linalg.eigvals(derivative @ tangent).real.sort().values
    found = judge_point(c, H @ (c - c), H)
    torch.testing.assert_close(rates[:4], -found.eigenvalues.flip(0), atol=1e-12, rtol=1e-9)
    logits = torch.autograd.functional.hessian(
        lambda z: 0.5 * (torch.softmax(z, -1) - c) @ H @ (torch.softmax(z, -1) - c), c.log()
    )
    torch.testing.assert_close(torch.linalg.eigvalsh(logits)[1:], found.eigenvalues, atol=1e-12, rtol=1e-9)
    assert found.condition == pytest.approx(float(rates[0] / rates[3]))  # the fastest to the slowest


@pytest.mark.parametrize("seed", range(20))
def test_stability_is_the_sign_of_the_hessian_not_of_the_row(seed: int) -> None:
    """Sylvester: J H J and H have the same signs on the tangent space, however sharp the row is."""
    H = quadratic(4, seed, shift=-2.0)
    Q = torch.linalg.qr(torch.eye(4, dtype=torch.float64)[:, :3] - 0.25)[0]
    expected = bool((torch.linalg.eigvalsh(Q.T @ H @ Q) > 0).all())
    for sharpness in (0.1, 3.0):
        drawn = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        x = torch.softmax(sharpness * drawn, -1)
        found = judge_point(x, torch.zeros(4, dtype=torch.float64), H, tolerance=1e-12)
        assert (found.standing is Standing.STABLE) == expected
        assert found.standing in (Standing.STABLE, Standing.UNSTABLE)


def test_vertices_faces_and_gaps() -> None:
    H = torch.eye(3, dtype=torch.float64)
    vertex = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    good = judge_point(vertex, torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), H)
    assert good.standing is Standing.STABLE and good.kkt and not good.interior
    assert good.gaps.tolist() == [1.0, 2.0] and len(good.eigenvalues) == 0
    bad = judge_point(vertex, torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64), H)
    assert bad.standing is Standing.UNSTABLE and not bad.kkt
    level = judge_point(vertex, torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64), H)
    assert level.standing is Standing.MARGINAL and level.kkt


@pytest.mark.parametrize(("n", "face"), [(2, 1), (4, 2), (5, 3), (5, 2)])
def test_missing_entries_die_like_one_over_t(n: int, face: int) -> None:
    """x_k gap t n / |S| tends to one: measured at t = 1e4, strictly convex loss on the face; natural: exponential."""
    centre = torch.cat([torch.full((face,), 1 / face), torch.zeros(n - face)]).double()
    gaps = torch.cat([torch.zeros(face), 1.0 + torch.arange(n - face)]).double()

    def slope(x: torch.Tensor) -> torch.Tensor:
        return 4 * torch.where(centre > 0, x - centre, 0.0) + gaps

    start = torch.softmax(torch.linspace(0, 0.3, n, dtype=torch.float64), -1)
    end = follow(slope, start, [1e4]).exp()[0]
    law = missing_entries(centre, gaps, 1e4)
    torch.testing.assert_close(end[face:], law[face:], rtol=0.02, atol=0)
    natural = follow(slope, start, [20.0], squared=False).exp()[0]
    assert float(natural[face:].amax()) < 1e-7


def test_ties_of_a_linear_loss_polarize_with_another_constant() -> None:
    """Nothing balances the face: one vertex of S takes all, and t gap x_k tends to 1/(1 + |S^c|) = 1/3."""
    gaps = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    start = torch.tensor([0.3, 0.25, 0.22, 0.23], dtype=torch.float64)
    before, end = follow(lambda x: gaps, start, [1e5, 1e6]).exp()
    torch.testing.assert_close(
        1e6 * end[2:], torch.full((2,), 1 / 3, dtype=torch.float64), rtol=0.005, atol=0
    )
    loser = float(end[1] / before[1])
    assert loser == pytest.approx(
        10 ** (-2 / 3), rel=0.01
    )  # the other tied entry dies even more slowly, t^(-2/3)


def test_what_is_no_point_of_the_simplex_is_refused() -> None:
    H = torch.eye(2, dtype=torch.float64)
    with pytest.raises(BadInput, match="simplex"):
        judge_point(torch.tensor([0.4, 0.4]).double(), torch.zeros(2).double(), H)
    with pytest.raises(BadInput, match="shapes"):
        judge_point(torch.tensor([0.5, 0.5]).double(), torch.zeros(3).double(), H)
    with pytest.raises(BadInput, match="KKT"):
        missing_entries(torch.tensor([1.0, 0.0]).double(), torch.tensor([1.0, 0.0]).double(), 10.0)


def test_one_reason_is_enough_to_refuse() -> None:
    x, slope, H = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, 1.0, 2.0]), torch.eye(3)
    for point in (
        torch.tensor([0.7, 0.7, -0.4]),
        torch.tensor([0.5, 0.4, 0.0]),
    ):  # a sum of 1, no negative entry
        with pytest.raises(BadInput, match="simplex"):
            judge_point(point, slope, H)
    assert missing_entries(x, slope, 10.0)[2] == pytest.approx(2 / (3 * 10.0))
    for gradient, time in ((slope, 0.0), (torch.ones(3), 10.0)):
        with pytest.raises(BadInput, match="KKT point"):
            missing_entries(x, gradient, time)
