"""The closures: wrong at finite n as the specification says, right in their own limits."""

from __future__ import annotations

import numpy as np
import pytest

import edgewise
from edgewise.errors import BadInput
from edgewise.theory.gram import step as gram_step
from edgewise.theory.simplex import drive
from edgewise.theory.softmax.integrals import quadrature_moments
from edgewise.theory.softmax.moments import condensation_ratio, large_n, moment_table, random_energy


def test_large_n_errors_at_64_tokens():
    v = np.array([1.0, 4.0])
    ratio = large_n(v, 0.5, 64).s2 / moment_table(64).moments(v, 0.5).s2
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
    assert moment_table(256).moments(9.0, 0.5).s2 > 0.2
    assert moment_table(64).moments(16.0, 0.8).s11 > 0.2


def test_random_energy_is_consistent():
    m = random_energy([30.0, 64.0], [1.0, 0.5], 64)
    np.testing.assert_allclose(m.r2, m.s2 - 2 * m.s3 + m.ss, rtol=1e-12)
    assert m.s11[0] == m.s2[0]
    assert m.t11[0] == m.r2[0]
    assert m.chord[1] == pytest.approx(m.s2[1] / (64 * 0.5))


def test_the_condensation_ratio_is_one_at_the_freezing_point():
    log_n = np.log(1000)
    assert condensation_ratio(2 * log_n, 1000) == pytest.approx(1)
    np.testing.assert_allclose(condensation_ratio([0.0, log_n, np.nan], [1000, 1000, 8]), [0, 0.5, np.nan])
    for variance, tokens in ((-1.0, 8), (1.0, 1)):
        with pytest.raises(BadInput, match="condensation"):
            condensation_ratio(variance, tokens)


@pytest.mark.parametrize(("module", "knobs"), [(drive, {}), (gram_step, {"causal": True})])
def test_both_recursions_use_the_one_condensation_ratio(module, knobs, monkeypatch):
    network = edgewise.transformer(depth=2, width=64, heads=2, tokens=8, **knobs)
    ratio = edgewise.predict(network).statistics["condensation"]
    assert np.nanmax(ratio) < 1
    monkeypatch.setattr(module, "condensation_ratio", lambda variance, tokens: 0 * variance + 7.0)
    patched = edgewise.predict(network).statistics["condensation"]
    np.testing.assert_array_equal(patched, np.where(np.isnan(ratio), np.nan, 7.0))


def test_without_positions_the_ratio_is_that_of_the_logit_variance():
    trace = edgewise.predict(edgewise.transformer(depth=3, width=64, heads=2, tokens=16, score_gain=3.0))
    variance, ratio = (trace.statistics[name] for name in ("logit_variance", "condensation"))
    np.testing.assert_array_equal(ratio, condensation_ratio(variance, 16))


@pytest.mark.parametrize("state", [(-1.0, 0.5, 8), (1.0, 2.0, 8), (1.0, 0.5, 1), (np.nan, 0.5, 8)])
def test_bad_states_are_refused(state):
    for closure in (large_n, random_energy):
        with pytest.raises(BadInput, match="closure"):
            closure(*state)
