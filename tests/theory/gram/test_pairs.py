"""Gaussian averages over pairs of tokens of unequal length, against closed forms and sampling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgewise.arrays import Array
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.gram.pairs import PairAverages
from edgewise.theory.gram.state import GramState, from_overlaps
from tests.support.some_tokens import geometry, tokens


def pair_mean(function: Any, first: Array, second: Array) -> float:
    """E f(w.x) f(w.y) by the trapezoid rule in the plane of x and y: independent of the library's panels."""
    z = np.linspace(-9, 9, 1801)
    weight = np.exp(-(z**2) / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    q, length = np.linalg.norm(first), np.linalg.norm(second)
    c = float(first @ second / q / length)
    along = length * (c * z[:, None] + math.sqrt(max(0.0, 1 - c**2)) * z)
    return float((weight * function(q * z)) @ (function(along) @ weight))


@pytest.mark.parametrize("name", ["tanh", "gelu", "silu"])
def test_pair_averages_of_unequal_variance(name: str) -> None:
    x, phi = tokens(), activation(name)
    values, slopes = PairAverages(phi, geometry(x)).values.overlaps, PairAverages(phi, geometry(x)).slopes()
    for a, b in ((0, 1), (2, 3), (4, 5), (1, 4)):
        assert float(values[a, b]) == pytest.approx(pair_mean(phi.function, x[a], x[b]), abs=1e-6)
        assert float(slopes[a, b]) == pytest.approx(pair_mean(phi.derivative, x[a], x[b]), abs=1e-6)


@pytest.mark.parametrize(("size", "tolerance"), [(0.1, 1e-6), (1.0, 1e-5), (10.0, 1e-5), (300.0, 2e-3)])
def test_pair_averages_of_erf_are_the_arc_sine_kernel(size: float, tolerance: float) -> None:
    """Steep or flat: (2/pi) asin(2 C_ab / sqrt((1 + 2 q_a)(1 + 2 q_b))), and the slopes by the determinant."""
    x = size * tokens(spread=1.5)
    c, q = x @ x.T, (x**2).sum(-1)
    larger = (1 + 2 * q[:, None]) * (1 + 2 * q)
    values = 2 / math.pi * np.arcsin(2 * c / np.sqrt(larger))
    np.testing.assert_allclose(
        PairAverages(activation("erf"), geometry(x)).values.overlaps, values, rtol=0, atol=tolerance
    )
    slopes = 4 / math.pi / np.sqrt(larger - 4 * c**2)
    np.testing.assert_allclose(
        PairAverages(activation("erf"), geometry(x)).slopes(), slopes, rtol=tolerance, atol=1e-9
    )


def test_pair_averages_of_relu_are_the_arc_cosine_kernel() -> None:
    x = tokens(spread=3.0)
    lengths = np.linalg.norm(x, axis=-1)
    theta = np.arccos(np.clip(x @ x.T / lengths[:, None] / lengths, -1, 1))
    np.fill_diagonal(theta, 0.0)
    kernel = lengths[:, None] * lengths * (np.sin(theta) + (math.pi - theta) * np.cos(theta)) / (2 * math.pi)
    np.testing.assert_allclose(
        PairAverages(activation("relu"), geometry(x)).values.overlaps, kernel, rtol=1e-5, atol=1e-7
    )
    slopes = PairAverages(activation("relu"), geometry(x)).slopes()
    np.testing.assert_allclose(slopes, (math.pi - theta) / (2 * math.pi), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
@pytest.mark.parametrize("growth", [1.0, 1.5])
def test_distances_keep_their_digits_near_collapse(name: str, growth: float) -> None:
    """E (phi(u) - phi(v))^2 / 2 -> |u - v|^2-part of the tangent map, at 1e-14 of the squares."""
    step = 1e-7
    first = np.array([growth, 0.0])
    second = first + step * np.array([0.6, 0.8])
    squares = np.array([first @ first, second @ second])
    state = GramState(squares, np.array([[0.0, 0.5], [0.5, 0.0]]) * step**2)
    phi = activation(name)
    # to first order phi(v) - phi(u) = phi'(u) du, du Gaussian with parts along and across u
    z, w = np.polynomial.hermite_e.hermegauss(181)
    w = w / w.sum()
    along = 0.6**2 * float(w @ (phi.derivative(growth * z) * z) ** 2)
    expected = step**2 * (along + 0.8**2 * float(w @ phi.derivative(growth * z) ** 2)) / 2
    assert float(PairAverages(phi, state).values.spreads[0, 1]) == pytest.approx(expected, rel=1e-3)


def test_rounding_in_a_start_matrix_does_not_make_a_distance_negative() -> None:
    """Two tokens that are equal but for the last digits."""
    gram = np.array([[1.0, 1.0 + 1e-9], [1.0 + 1e-9, 1.0]])
    assert from_overlaps(gram).spreads.tolist() == [[0.0, 0.0], [0.0, 0.0]]
