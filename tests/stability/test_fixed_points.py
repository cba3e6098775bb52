"""Maps with known fixed points: nothing about transformers."""

import numpy as np
import pytest

from edgewise.stability.fixed_points import bracketed_root, crossings, eigenvalues, fixed_point, jacobian
from edgewise.stability.lyapunov import _error, depth_scale, growth


def henon(x, a=1.4, b=0.3):
    return np.array([1 - a * x[0] ** 2 + x[1], b * x[0]])


def test_henon_fixed_point_and_eigenvalues():
    a, b = 1.4, 0.3
    x = (b - 1 + np.sqrt((1 - b) ** 2 + 4 * a)) / (2 * a)
    found = fixed_point(henon, np.array([0.5, 0.2]))
    assert found == pytest.approx([x, b * x], abs=1e-10)
    exact = np.linalg.eigvals(np.array([[-2 * a * x, 1], [b, 0]]))
    assert sorted(np.abs(eigenvalues(henon, found))) == pytest.approx(sorted(np.abs(exact)), rel=1e-6)


def test_no_fixed_point_is_none():
    assert fixed_point(lambda x: x + 1.0, np.array([0.0, 0.0])) is None


def test_crossings_finds_every_sign_change_once():
    found = crossings(lambda x: np.cos(x), np.linspace(0.1, 10, 50))
    assert found == pytest.approx([np.pi / 2, 3 * np.pi / 2, 5 * np.pi / 2], abs=1e-12)


def test_diagonal_map_has_the_entries_as_eigenvalues():
    entries = np.array([0.5, -2.0, 0.1])
    assert eigenvalues(lambda x: entries * x, np.zeros(3)) == pytest.approx([-2.0, 0.5, 0.1])


def test_logistic_map_at_four_has_exponent_log_two():
    x, slopes = 0.3, []
    for _ in range(200_000):
        slopes.append(4 * (1 - 2 * x))
        x = 4 * x * (1 - x)
    logs = np.cumsum(np.log(np.abs([1.0, *slopes])))
    assert growth(logs[None]).rate == pytest.approx(np.log(2), abs=2e-3)


def test_depth_scale():
    assert depth_scale(0.5) == 2.0
    assert depth_scale(0.0) == np.inf
    assert depth_scale(None) is None


def test_the_jacobian_of_a_linear_map_is_its_matrix():
    matrix = np.array([[0.5, 2.0, -1.0], [0.0, 0.1, 0.3], [4.0, 0.0, -0.2]])  # unlike its transpose
    assert jacobian(lambda x: matrix @ x, np.array([3.0, -2.0, 0.0])) == pytest.approx(matrix, abs=1e-7)


def test_a_damped_step_finds_what_a_full_one_overshoots():
    """Newton's step for arctan diverges from 2; half of it does not."""
    assert fixed_point(lambda x: x - np.arctan(x), np.array([2.0, -2.0])) == pytest.approx(
        [0.0, 0.0], abs=1e-8
    )


def test_bracketed_roots_are_the_nearest_ones_in_ratio():
    squares = np.array([0.3, 2.0, 9.0, 1e6])

    def parabola(x):
        return x**2 - (squares[:, None] if x.ndim == 2 else squares)

    roots = bracketed_root(parabola, np.array([1.0, 40.0, 0.2, 1.0]))
    assert roots[:3] == pytest.approx(np.sqrt(squares[:3]), rel=1e-11)
    assert np.isnan(roots[3])  # 1,000 is further than a factor 2^8

    def three(x):  # at 1/8, 3 and 100
        return np.log(8 * x) * np.log(x / 3) * np.log(x / 100)

    assert bracketed_root(three, np.array([0.2, 1.5, 70.0])) == pytest.approx([1 / 8, 3, 100], rel=1e-11)


def test_errors_of_growth_are_finite_width_or_scatter_of_seeds():
    """One network of depth L and width d scatters by sqrt(2 / (L d)); several by their standard error."""
    depth, width = 8, 50.0
    line = np.linspace(0.0, 1.6, depth + 1)
    alone = growth(line[None], width)
    assert (alone.rate, alone.error) == pytest.approx((0.2, np.sqrt(2 / (depth * width))))
    assert alone.change.error == pytest.approx(2 * np.sqrt(depth / width))
    several = growth(np.stack([line, 3 * line, 2 * line]))
    assert several.error == pytest.approx(1.6 / np.sqrt(3) / depth)
    assert several.change.error == pytest.approx(1.6 / np.sqrt(3))
    assert growth(np.stack([line, 3 * line]), width=1e-3).error == pytest.approx(np.sqrt(2 / (depth * 1e-3)))
    assert growth(line[None], sampled=False).change.error == 0.0


def test_the_late_change_of_an_odd_depth_is_that_of_its_later_half():
    logs = np.array([[0.0, 5.0, 6.0, 8.0, 11.0, 15.0]])  # five blocks: from the second on, 9 over 3 blocks
    assert growth(logs).change.scalar == pytest.approx(9.0 * 5 / 3)


def test_the_error_over_seeds_is_that_of_a_mean():
    """Unknown for one seed; an exponent that is infinite has none."""
    assert _error(np.array([1.0, 3.0])) == pytest.approx(1.0)
    assert np.isnan(_error(np.array([1.0])))
    assert _error(np.array([-np.inf, 1.0])) == 0.0 and _error(np.array([-np.inf])) == 0.0
