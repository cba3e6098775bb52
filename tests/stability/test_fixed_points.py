"""Maps with known fixed points: nothing about transformers."""

import numpy as np
import pytest

from edgewise.stability.fixed_points import crossings, eigenvalues, fixed_point
from edgewise.stability.lyapunov import depth_scale, growth


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
