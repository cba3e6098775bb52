"""Uniform cubic splines: exact on cubics up to the ends, fourth order on smooth functions."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.theory.splines import spline_coefficients, spline_values


def interpolate(function, counts, positions):
    grids = np.meshgrid(*(np.linspace(0, 1, count) for count in counts), indexing="ij")
    values = function(*grids)
    for axis in range(len(counts)):
        values = spline_coefficients(values, axis)
    return spline_values(values[None], positions)[0]


def test_cubics_are_exact_everywhere():
    x, y = np.random.default_rng(0).random((2, 50_000))  # more points than one chunk
    x[:2], y[:2] = (0, 1), (1, 0)

    def cubic(x, y):
        return 1 + x - 3 * y + x**3 * y**2 - 2 * x * y**3

    np.testing.assert_allclose(interpolate(cubic, (9, 6), (x, y)), cubic(x, y), atol=1e-12)
    np.testing.assert_allclose(interpolate(lambda t: t**3, (7,), (x,)), x**3, atol=1e-13)


def test_error_falls_with_the_fourth_power_of_the_step():
    x = np.linspace(0, 1, 1001)
    errors = [
        np.abs(interpolate(lambda t: np.sin(5 * t), (count,), (x,)) - np.sin(5 * x)).max()
        for count in (21, 41)
    ]
    assert errors[0] / errors[1] == pytest.approx(16, rel=0.4)
