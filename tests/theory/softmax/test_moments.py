"""Softmax moments: the table against converged quadrature, closed forms, identities and sampling."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit

from edgewise.errors import BadInput
from edgewise.theory.softmax.integrals import (
    converged_pair,
    converged_single,
    quadrature_moments,
    row_pair,
    single_row,
)
from edgewise.theory.softmax.moments import moment_table


def softmax_moments(variance, correlation, tokens):
    return moment_table(tokens).moments(variance, correlation)


CORNERS = [
    (1e-6, 0.5, 1_000_000),
    (0.01, 0.0, 3),
    (64.0, 0.0, 1_000_000),
    (64.0, 1.0, 2),
    (64.0, 1 - 1e-6, 3),
    (64.0, 1 - 1e-6, 1_000_000),
    (64.0, -0.05, 1_000_000),
    (5.0, 1.0, 1_000_000),  # the rare events that carry the fourth moment
    (256.0, 0.9, 1_000_000),
    (250.0, -0.04, 1_000_000),  # where the spline is coarsest
    (256.0, 0.3, 2),
]


def random_states(count: int, seed: int) -> list[tuple[float, float, int]]:
    """Variances to 64, correlations over the range and close to 1, tokens from 2 to 1e6 evenly in the logarithm."""
    rng = np.random.default_rng(seed)
    states = []
    for i in range(count):
        correlation = rng.random() if i % 2 else 1 - 10 ** (-6 * rng.random())
        variance = 64 * rng.random() ** (1 + i % 3)
        states.append((float(variance), float(correlation), round(2 * 500_000 ** rng.random())))
    return states


def worst_errors(states: list[tuple[float, float, int]]) -> dict[str, float]:
    """Largest relative error of the table against the quadrature, by moment."""
    worst: dict[str, float] = {}
    for state in states:
        exact, fast = asdict(quadrature_moments(*state)), asdict(softmax_moments(*state))
        for name in exact:
            worst[name] = max(worst.get(name, 0.0), abs(float(fast[name] / exact[name]) - 1))
    return worst


def test_table_agrees_with_quadrature():
    assert max(worst_errors(CORNERS + random_states(14, seed=1)).values()) < 1e-4


@pytest.mark.slow
def test_table_agrees_with_quadrature_at_many_states():
    worst = worst_errors(random_states(400, seed=2))
    print({name: f"{error:.1e}" for name, error in worst.items()})
    assert max(worst.values()) < 1e-4


@pytest.mark.parametrize(("v", "rho"), [(0.3, 0.5), (9.0, 0.3), (40.0, 0.97), (40.0, -0.2), (900.0, 0.999)])
def test_quadrature_no_longer_depends_on_its_step(v, rho):
    n = np.array([2.0, 50.0, 1e6])
    fine = row_pair(v, rho, n, 0.2) | {"row_" + name: x for name, x in single_row(v, n, 0.2).items()}
    used = converged_pair(v, rho, n) | {"row_" + name: x for name, x in converged_single(v, n).items()}
    for name in fine:
        np.testing.assert_allclose(used[name], fine[name], rtol=1e-7, err_msg=name)


def test_square_and_rotated_grids_agree():
    n = np.array([2.0, 100.0, 1e6])
    square, rotated = row_pair(15.999999, 0.6, n, 0.3), row_pair(16.000001, 0.6, n, 0.3)
    for name in square:
        np.testing.assert_allclose(square[name], rotated[name], rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("v", "rho", "n"), [(1.0, 0.5, 64), (4.0, 0.9, 16), (16.0, 0.8, 64), (30.0, -0.3, 5)]
)
def test_moments_agree_with_sampling(v, rho, n):
    rng = np.random.default_rng(3)
    shared, own, other = rng.standard_normal((3, 40_000, n))
    x = np.sqrt(v) * (np.sqrt(abs(rho)) * shared + np.sqrt(1 - abs(rho)) * own)
    y = np.sqrt(v) * (np.sign(rho) * np.sqrt(abs(rho)) * shared + np.sqrt(1 - abs(rho)) * other)
    s, t = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (x, y))
    square, cross = (s**2).sum(1), (s * t).sum(1)
    samples = {
        "s2": square,
        "s3": (s**3).sum(1),
        "ss": square**2,
        "s11": cross,
        "s21": (s**2 * t).sum(1),
        "oo": cross**2,
        "r2": square - 2 * (s**3).sum(1) + square**2,
        "t11": cross - (s**2 * t).sum(1) - (s * t**2).sum(1) + cross**2,
        "entropy": -(s * np.log(s)).sum(1),
        "chord": (square - cross) / (v * (1 - rho)),
    }
    exact = asdict(softmax_moments(v, rho, n))
    for name, sample in samples.items():
        error = sample.std() / np.sqrt(len(sample))
        assert abs(sample.mean() - exact[name]) < 4.5 * error, name


@pytest.mark.parametrize("v", [0.2, 3.0, 50.0, 1e4])
def test_two_tokens_reduce_to_a_logistic_integral(v):
    def mean(f):  # of an even function of the logit difference, which is N(0, 2v)
        integral = quad(lambda z: f(expit(np.sqrt(2 * v) * z)) * np.exp(-z * z / 2), 0, 12, limit=400)[0]
        return integral * np.sqrt(2 / np.pi)

    exact = quadrature_moments(v, 0.0, 2)
    assert exact.s2 == pytest.approx(mean(lambda s: s**2 + (1 - s) ** 2), rel=1e-8)
    assert exact.s3 == pytest.approx(mean(lambda s: s**3 + (1 - s) ** 3), rel=1e-8)
    assert exact.r2 == pytest.approx(mean(lambda s: 4 * s**2 * (1 - s) ** 2), rel=1e-7)
    assert exact.s11 == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 64, 5000, 1_000_000])
def test_closed_forms_at_the_ends_of_correlation(n):
    v = np.array([0.5, 7.0, 64.0, 200.0])
    independent, equal = softmax_moments(v, 0.0, n), softmax_moments(v, 1.0, n)
    s2 = independent.s2
    np.testing.assert_allclose(independent.s11, 1 / n, rtol=1e-14)
    np.testing.assert_allclose(independent.s21, s2 / n, rtol=1e-4)
    np.testing.assert_allclose(independent.oo, s2**2 / n + (1 - s2) ** 2 / (n * (n - 1)), rtol=1e-4)
    np.testing.assert_allclose(independent.t11, (1 - s2) ** 2 / (n - 1), rtol=1e-4)
    for pair, row in (("s11", "s2"), ("s21", "s3"), ("oo", "ss"), ("t11", "r2"), ("chord", "r2")):
        np.testing.assert_allclose(getattr(equal, pair), getattr(equal, row), rtol=1e-4, err_msg=pair)


@pytest.mark.parametrize("n", [2, 17, 1_000_000])
def test_small_variance(n):
    rho, v = np.array([0.0, 0.4, 1.0]), 1e-3
    moments = softmax_moments(v, rho, n)
    np.testing.assert_allclose(moments.s2 * n - 1, v * (1 - 1 / n), rtol=2e-3)
    np.testing.assert_allclose(moments.s11 * n - 1, rho * v * (1 - 1 / n), rtol=2e-3)
    zero = softmax_moments(0.0, rho, n)
    np.testing.assert_allclose(zero.s2, 1 / n, rtol=1e-14)
    np.testing.assert_allclose([zero.r2, zero.t11, zero.chord], (n - 1) / n**2, rtol=1e-6)
    np.testing.assert_allclose(zero.entropy, np.log(n), rtol=1e-6)


@pytest.mark.parametrize(("v", "n"), [(2.0, 10), (20.0, 1000), (60.0, 2)])
def test_price_theorem(v, n):
    """S11 grows with rho at the rate v T11; the chord is the mean of T11 over [rho, 1]."""
    rho, step = 0.7, 1e-3
    above, below = (quadrature_moments(v, rho + e, n).s11 for e in (step, -step))
    assert (above - below) / (2 * step) == pytest.approx(
        v * float(quadrature_moments(v, rho, n).t11), rel=1e-4
    )
    nodes, weights = np.polynomial.legendre.leggauss(24)
    mean = weights @ softmax_moments(v, rho + (1 - rho) * (nodes + 1) / 2, n).t11 / 2
    assert softmax_moments(v, rho, n).chord == pytest.approx(mean, rel=5e-5)


@pytest.mark.parametrize("n", [2, 64, 100_000])
def test_stein_identity_gives_the_entropy(n):
    """E entropy = log n + (1/2) int_0^v (1 - S2) - v (1 - S2): a second way to the entropy, from S2 alone."""
    v = 30.0
    integral = quad(lambda x: 1 - float(moment_table(n).overlaps(x, 1.0).s2), 0, v, epsrel=1e-9)[0]
    expected = np.log(n) + integral / 2 - v * (1 - softmax_moments(v, 1.0, n).s2)
    assert moment_table(n).entropy(v) == pytest.approx(float(expected), rel=1e-4)


@given(st.floats(0, 256), st.floats(0, 1), st.integers(2, 1_000_000))
def test_bounds_and_order(v, rho, n):
    m = softmax_moments(v, rho, n)
    assert 1 / n <= m.s11 <= m.s2 <= 1
    assert 0 < m.t11 <= m.r2 * (1 + 1e-4)
    assert m.t11 <= m.chord * (1 + 1e-4)
    assert m.chord <= m.r2 * (1 + 1e-4)
    assert 0 < m.entropy <= np.log(n) * (1 + 1e-6)
    assert float(m.s2 - m.s11) == pytest.approx(float(v * (1 - rho) * m.chord), rel=1e-6, abs=1e-14)


@pytest.mark.parametrize("n", [2, 200, 1_000_000])
def test_monotone_in_variance_and_correlation(n):
    v, rho = np.linspace(0, 256, 400), np.linspace(0.01, 1, 400)  # below 0 two tokens are even in rho
    along_v, along_rho = softmax_moments(v, 1.0, n), softmax_moments(20.0, rho, n)
    assert np.all(np.diff(along_v.s2) > 0)
    assert np.all(np.diff(along_v.entropy) < 0)
    for name in ("s11", "t11", "chord", "s21", "oo"):
        assert np.all(np.diff(getattr(along_rho, name)) > 0), name


def test_beyond_the_table_the_quadrature_answers():
    mixed = softmax_moments([1.0, 300.0, 1e8, 4.0], [0.5, 0.9, 0.9, -0.4], 50)
    for i, state in enumerate([(300.0, 0.9), (1e8, 0.9), (4.0, -0.4)], start=1):
        exact = quadrature_moments(*state, 50)
        assert mixed.s11[i] == exact.s11
        assert mixed.t11[i] == exact.t11
    assert mixed.s2[0] == softmax_moments(1.0, 0.5, 50).s2
    assert mixed.s2[2] == pytest.approx(1, abs=2e-3)  # hard attention
    many = softmax_moments(2.0, 0.5, 20_000_000)
    assert many.s2 == pytest.approx(np.exp(2) / 2e7, rel=1e-3)


def test_known_values():
    """Values quoted in the specification."""
    assert softmax_moments(9.0, 0.5, 256).s2 == pytest.approx(0.216, abs=5e-4)
    assert softmax_moments(16.0, 0.8, 64).s11 == pytest.approx(0.249, abs=5e-4)


def test_shapes_and_one_token():
    moments = moment_table(8).overlaps(np.ones((3, 1)), np.linspace(0, 1, 5))
    assert all(value.shape == (3, 5) for value in moments)
    one = softmax_moments([0.0, 3.0], 0.5, 1)
    np.testing.assert_array_equal([one.s2, one.s11, one.oo], 1.0)
    np.testing.assert_array_equal([one.t11, one.chord, one.entropy], 0.0)
    assert softmax_moments(1.0, 1 + 1e-12, 8).s11 == softmax_moments(1.0, 1.0, 8).s2


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ((-1.0, 0.5, 8), "variance must be finite and >= 0, got -1.0"),
        ((np.nan, 0.5, 8), "variance"),
        ((np.inf, 0.5, 8), "variance"),
        ((1.0, 1.1, 8), r"correlation must be in \[-1, 1\], got 1.1"),
        ((1.0, np.nan, 8), "correlation"),
        ((1.0, 0.5, 0), "tokens"),
        ((1.0, 0.5, 2.5), "tokens"),
    ],
)
def test_bad_states_are_refused(state, words):
    with pytest.raises(BadInput, match=words):
        softmax_moments(*state)
    with pytest.raises(BadInput):
        quadrature_moments(*state)
