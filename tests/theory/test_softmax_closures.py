"""The closures: wrong at finite n as the specification says, right in their own limits."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.theory.simplex.closures import (
    Condensation,
    condensation_ratio,
    condensation_regime,
    large_n,
    random_energy,
)
from edgewise.theory.softmax.moments import softmax_moments
from edgewise.theory.softmax.quadrature import quadrature_moments


def test_large_n_errors_at_64_tokens():
    v = np.array([1.0, 4.0])
    ratio = large_n(v, 0.5, 64).s2 / softmax_moments(v, 0.5, 64).s2
    assert ratio[0] == pytest.approx(1.095, abs=2e-3)
    assert ratio[1] == pytest.approx(5.3, abs=0.1)


@pytest.mark.parametrize("name", ["s2", "s3", "ss", "s11", "s21", "oo", "chord", "r2", "t11", "entropy"])
def test_large_n_becomes_exact(name):
    gaps = [
        abs(float(getattr(large_n(0.5, 0.6, n), name) / getattr(quadrature_moments(0.5, 0.6, n), name)) - 1)
        for n in (1000, 100_000)
    ]
    assert gaps[1] < 1e-3
    assert gaps[1] < gaps[0] / 50  # the error falls like 1/n


def test_large_n_obeys_price():
    v, rho, step = 3.0, 0.4, 1e-5
    slope = (large_n(v, rho + step, 50).s11 - large_n(v, rho - step, 50).s11) / (2 * step)
    assert slope == pytest.approx(v * large_n(v, rho, 50).t11, rel=1e-8)
    assert large_n(v, 1.0, 50).chord == pytest.approx(np.exp(v) / 50)


def test_random_energy_is_approached_by_the_exact_moments():
    """At v = 12 log n (x^2 = 1/6) the gap of every one-row moment to the limit shrinks as n grows."""
    for name in ("s2", "s3", "ss", "r2", "entropy"):
        gaps = []
        for n in (30, 10_000_000):
            v = 12 * np.log(n)
            limit, exact = random_energy(v, 0.5, n), quadrature_moments(v, 0.5, n)
            gaps.append(abs(float(getattr(limit, name) / getattr(exact, name)) - 1))
        assert gaps[1] < gaps[0], name
        assert gaps[1] < 0.2, name  # corrections fall only like 1 / log n


def test_random_energy_is_far_off_at_finite_n():
    assert random_energy(9.0, 0.5, 256).s2 == 0
    assert random_energy(16.0, 0.8, 64).s11 == 0
    assert softmax_moments(9.0, 0.5, 256).s2 > 0.2
    assert softmax_moments(16.0, 0.8, 64).s11 > 0.2


def test_random_energy_is_consistent():
    m = random_energy([30.0, 64.0], [1.0, 0.5], 64)
    np.testing.assert_allclose(m.r2, m.s2 - 2 * m.s3 + m.ss, rtol=1e-12)
    assert m.s11[0] == m.s2[0]
    assert m.t11[0] == m.r2[0]
    assert m.chord[1] == pytest.approx(m.s2[1] / (64 * 0.5))


def test_regimes_are_named():
    log_n = np.log(1000)
    assert condensation_ratio(2 * log_n, 1000) == pytest.approx(1)
    assert condensation_regime(0.4 * log_n, 1000) is Condensation.SPREAD
    assert condensation_regime(1.0 * log_n, 1000) is Condensation.RARE
    assert condensation_regime(3.0 * log_n, 1000) is Condensation.CONDENSED


@pytest.mark.parametrize("state", [(-1.0, 0.5, 8), (1.0, 2.0, 8), (1.0, 0.5, 1), (np.nan, 0.5, 8)])
def test_bad_states_are_refused(state):
    for closure in (large_n, random_energy):
        with pytest.raises(BadInput, match="closure"):
            closure(*state)
