"""Perceptron theory against closed forms, against its own iteration, and against random networks."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.nouns.architecture import Perceptron
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.perceptron import drive, edge_of_chaos, maps, step

TANH, ERF, RELU, GELU = (activation(name) for name in ("tanh", "erf", "relu", "gelu"))


# Random networks, written apart from the library ------------------------------------------------------------


def simulate(perceptrons, slopes, q0, c0, inputs=12, seed=0):
    """Equally correlated inputs through random networks and random output gradients back; all with the same draws.

    Per network and layer: mean q, mean cosine over pairs, and the mean of log |g_l|^2/|g_L|^2.
    """
    depth, width = perceptrons[0].depth, perceptrons[0].width
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((width, inputs + 1)))[0].T
    start = np.sqrt(width * q0) * (np.sqrt(c0) * basis[0] + np.sqrt(1 - c0) * basis[1:])
    draws = [(rng.standard_normal((width, width)), rng.standard_normal(width)) for _ in range(depth)]
    last = rng.standard_normal((inputs, width))
    last /= np.linalg.norm(last, axis=1, keepdims=True)
    pairs = zip(perceptrons, slopes, strict=True)
    return np.stack([_simulated(p, *functions, start, draws, last) for p, functions in pairs])


def _simulated(perceptron, function, slope, start, draws, last):
    scale, bias = np.sqrt(perceptron.weight_variance / perceptron.width), np.sqrt(perceptron.bias_variance)
    states = [start]
    for weights, biases in draws:
        states.append(scale * function(states[-1]) @ weights.T + bias * biases)
    g, growth = last, [0.0]
    for (weights, _), h in zip(draws[::-1], states[-2::-1], strict=True):
        g = (scale * g @ weights) * slope(h)
        growth.append(np.mean(np.log(np.sum(g**2, axis=1))))
    return np.array([[np.mean(h**2) for h in states], [mean_cosine(h) for h in states], growth[::-1]])


def mean_cosine(h):
    unit = h / np.linalg.norm(h, axis=1, keepdims=True)
    n = len(h)
    return (np.sum(unit.sum(axis=0) ** 2) - n) / (n * (n - 1))


CASES = [  # smooth and kinked, ordered, near critical and chaotic
    ("tanh", 1.3, 0.1, np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    ("tanh", 2.5, 0.3, np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    ("tanh", 4.0, 0.05, np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    ("relu", 2.0, 0.0, lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
    ("relu", 1.5, 0.1, lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
]


@pytest.fixture(scope="module")
def simulations():
    """(seeds, cases, 3, layers) from 8 sets of weights."""
    perceptrons = [Perceptron(*case[:3], depth=10) for case in CASES]
    return np.stack(
        [simulate(perceptrons, [case[3:] for case in CASES], 1.0, 0.4, seed=seed) for seed in range(8)]
    )


@pytest.mark.parametrize(
    "case", range(len(CASES)), ids=[f"{name}-{sw2}-{sb2}" for name, sw2, sb2, *_ in CASES]
)
def test_orbit_against_random_networks(case, simulations):
    """Width 1000, 8 seeds, 10 layers: within the specification's 2 % of q, 0.012 of c and 0.8 % of chi_1 per
    layer, or three standard errors of the seeds (one layer of ReLU scatters q by sqrt(5/width) = 7 %)."""
    p, c0, runs = Perceptron(*CASES[case][:3], depth=10), 0.4, simulations[:, case]
    (q, c, growth), (dq, dc, dg) = runs.mean(axis=0), runs.std(axis=0, ddof=1) / np.sqrt(len(runs))
    orbit = drive.propagate_perceptron(p, 1.0, c0)
    assert np.max(dc) < 0.02  # the seeds leave something to test
    assert np.all(np.abs(q - orbit.length) < np.maximum(0.02 * orbit.length, 3 * dq))
    assert np.all(np.abs(c - orbit.correlation) < np.maximum(0.012, 3 * dc))
    error = np.abs(growth - np.log(orbit.gradient))[0] / p.depth
    assert error < max(0.008, 3 * dg[0] / p.depth)


# Fixed points -----------------------------------------------------------------------------------------------


def test_length_fixed_points_in_closed_form():
    assert float(edge_of_chaos.length_fixed_point(RELU, 1.5, 0.1)) == pytest.approx(0.1 / 0.25)
    assert float(edge_of_chaos.length_fixed_point(activation("linear"), 0.5, 0.1)) == pytest.approx(0.2)
    q = 0.7  # erf: choose q*, and the bias variance that belongs to it
    sb2 = q - 1.2 * 2 / np.pi * np.arcsin(2 * q / (1 + 2 * q))
    assert float(edge_of_chaos.length_fixed_point(ERF, 1.2, sb2)) == pytest.approx(q, rel=1e-10)


def test_lengths_without_a_fixed_point():
    assert edge_of_chaos.length_fixed_point(RELU, 2.5, 0.0) == np.inf
    assert edge_of_chaos.length_fixed_point(RELU, 2.0, 0.1) == np.inf
    assert edge_of_chaos.length_fixed_points(RELU, 2.5, 0.1) == ()
    assert edge_of_chaos.length_fixed_point(RELU, 2.0, 0.0, start=3.0) == 3.0  # every length is fixed
    assert edge_of_chaos.length_fixed_point(TANH, 0.8, 0.0) == 0.0


def test_fixed_points_are_where_the_iteration_ends():
    sw2, sb2 = np.meshgrid([0.5, 1.5, 3.0], [0.02, 0.5])
    for phi in (TANH, ERF, activation("sin")):
        q = np.ones_like(sw2)
        for _ in range(200):
            q = step.length_map(phi, sw2, sb2, q)
        found = edge_of_chaos.length_fixed_point(phi, sw2, sb2)
        np.testing.assert_allclose(found, q, rtol=1e-8)
        c = np.full_like(q, 0.2)
        for _ in range(1500):
            c = step.correlation_map(phi, sw2, sb2, q, c)
        np.testing.assert_allclose(
            1 - edge_of_chaos.separation_fixed_point(phi, sw2, sb2, found), c, atol=2e-4
        )


def test_several_fixed_points_are_all_found():
    """Squared ReLU, q' = 1.5 sw2 q^2 + sb2: two roots of a quadratic, the upper one repelling."""
    sw2, sb2 = 1.9, 0.01
    low, high = edge_of_chaos.length_fixed_points(activation("relu2"), sw2, sb2)
    roots = np.sort(np.roots([1.5 * sw2, -1, sb2]))
    np.testing.assert_allclose([low.length, high.length], roots, rtol=1e-9)
    assert low.slope < 1 < high.slope
    assert step.chi_1(activation("relu2"), sw2, np.inf) == np.inf


def test_chi_q_is_the_slope_of_the_length_map():
    h = 1e-4
    for phi in (TANH, GELU, RELU):
        difference = step.length_map(phi, 1.7, 0.1, 0.9 + h) - step.length_map(phi, 1.7, 0.1, 0.9 - h)
        assert float(step.chi_q(phi, 1.7, 0.9)) == pytest.approx(float(difference) / (2 * h), rel=1e-5)


def test_odd_activation_without_bias_forgets_in_the_chaotic_phase():
    found = maps.summary(Perceptron("tanh", 2.5, 0.0))
    assert found.phase == "chaotic"
    assert found.correlation_fixed_point == pytest.approx(0.0, abs=1e-6)


def test_erf_summary_in_closed_form():
    found = maps.summary(Perceptron("erf", 1.5, 0.05))
    q, c = found.length_fixed_point, found.correlation_fixed_point
    assert q == pytest.approx(1.5 * 2 / np.pi * np.arcsin(2 * q / (1 + 2 * q)) + 0.05, rel=1e-12)
    assert c * q == pytest.approx(1.5 * 2 / np.pi * np.arcsin(2 * q * c / (1 + 2 * q)) + 0.05, rel=1e-10)
    assert found.chi_1 == pytest.approx(1.5 * 4 / np.pi / np.sqrt(1 + 4 * q), rel=1e-12)
    slope = 1.5 * 4 / np.pi / np.sqrt((1 + 2 * q) ** 2 - 4 * q**2 * c**2)
    assert found.correlation_slope == pytest.approx(slope, rel=1e-10)
    assert found.depth_scale_correlation == pytest.approx(-1 / np.log(slope), rel=1e-8)
    assert found.trainable_depth == pytest.approx(
        6 * min(found.depth_scale_correlation, found.depth_scale_gradient)
    )


@pytest.mark.parametrize(("sw2", "phase"), [(1.3, "ordered"), (4.0, "chaotic")])
def test_depth_scale_is_the_rate_of_the_orbit(sw2, phase):
    found = maps.summary(Perceptron("tanh", sw2, 0.1))
    assert found.phase == phase
    orbit = drive.propagate_perceptron(
        Perceptron("tanh", sw2, 0.1, depth=60), found.length_fixed_point, c0=0.3
    )
    gap = np.abs(orbit.correlation - found.correlation_fixed_point)
    layers = slice(5, 25) if phase == "chaotic" else slice(30, 60)
    rate = np.polyfit(np.arange(61)[layers], np.log(gap[layers]), 1)[0]
    assert -1 / rate == pytest.approx(found.depth_scale_correlation, rel=0.02)
    growth = np.log(orbit.gradient[0]) / 60
    assert growth == pytest.approx(np.log(found.chi_1), rel=1e-4)
    assert found.depth_scale_gradient == pytest.approx(1 / abs(growth), rel=1e-4)


# The boundary -----------------------------------------------------------------------------------------------


def test_known_boundaries():
    assert edge_of_chaos.critical_weight_variance(TANH, 0.0) == pytest.approx(1.0, abs=1e-6)
    assert edge_of_chaos.critical_weight_variance(activation("sin"), 0.0) == pytest.approx(1.0, abs=1e-6)
    assert edge_of_chaos.critical_weight_variance(ERF, 0.0) == pytest.approx(np.pi / 4, abs=1e-6)
    assert edge_of_chaos.critical_weight_variance(RELU, 0.0) == 2.0
    assert edge_of_chaos.critical_weight_variance(activation("leaky_relu:0.2"), 0.0) == pytest.approx(
        2 / 1.04
    )
    # Published for tanh with sigma_b^2 = 0.05: sigma_w^2 = 1.76 [Pennington, Schoenholz, Ganguli 2017]
    assert edge_of_chaos.critical_weight_variance(TANH, 0.05) == pytest.approx(1.76, abs=0.005)


def test_boundary_polyline_has_chi_1_equal_to_one():
    sw2, sb2 = edge_of_chaos.boundary(ERF, 0.5)
    assert len(sw2) > 100
    assert sb2[0] == 0.0
    assert sb2[-1] == 0.5
    assert np.all(np.diff(sw2) >= 0)
    inner = slice(10, None)  # the first points are at q* = 1e-8, where sb2 = q - q is rounding
    q = edge_of_chaos.length_fixed_point(ERF, sw2[inner], sb2[inner])
    np.testing.assert_allclose(step.chi_1(ERF, sw2[inner], q), 1.0, atol=1e-5)


def test_no_boundary_is_said_so():
    """From length 1, GELU without bias goes to 0 or to infinity, and chi_1 jumps over 1."""
    assert np.isnan(edge_of_chaos.critical_weight_variance(GELU, 0.0))
    below, above = (maps.summary(Perceptron("gelu", sw2, 0.0)) for sw2 in (2.2, 2.5))
    assert (below.length_fixed_point, above.length_fixed_point) == (0.0, np.inf)
    assert below.chi_1 < 0.7
    assert above.chi_1 > 1.2
    with pytest.raises(BadInput, match="bias variance"):
        edge_of_chaos.critical_weight_variance(TANH, -1.0)


def test_summary_on_the_boundary():
    found = maps.summary(Perceptron("relu", 2.0, 0.0))
    assert found.phase == "critical"
    assert found.depth_scale_correlation == found.depth_scale_gradient == np.inf
    assert found.trainable_depth == np.inf
    sw2 = edge_of_chaos.critical_weight_variance(TANH, 0.05)
    assert maps.summary(Perceptron("tanh", sw2, 0.05)).phase == "critical"


def test_decay_on_the_boundary():
    """eps_l amplitude by the recursion itself, corrected by 1/l extrapolation of l^power eps_l."""
    sw2 = edge_of_chaos.critical_weight_variance(ERF, 0.1)
    q = float(edge_of_chaos.length_fixed_point(ERF, sw2, 0.1))
    for name, variances, start in (
        ("erf", (sw2, 0.1), q),
        ("relu", (2.0, 0.0), 1.0),
        ("leaky_relu:0.2", (2 / 1.04, 0.0), 1.0),
    ):
        decay = edge_of_chaos.boundary_decay(activation(name), variances[0], start)
        orbit = drive.propagate_perceptron(Perceptron(name, *variances, depth=4000), start, 0.5)
        amplitude = orbit.separation[-1] * 4000.0**decay.power
        assert amplitude == pytest.approx(decay.amplitude, rel=0.02), name
    assert edge_of_chaos.boundary_decay(RELU, 2.0, 1.0).amplitude == pytest.approx(4.5 * np.pi**2)
    assert edge_of_chaos.boundary_decay(TANH, 1.0, 0.0).amplitude == np.inf


# Orbits -----------------------------------------------------------------------------------------------------


def test_tiny_separations_are_carried_exactly():
    """In the ordered phase 1 - c falls by chi_1 per layer, far below the rounding of c itself."""
    p = Perceptron("erf", 0.5, 0.2, depth=400)
    found = maps.summary(p)
    orbit = drive.propagate_perceptron(p, found.length_fixed_point, c0=0.9)
    assert orbit.separation[-1] < 1e-90
    rate = orbit.separation[-1] / orbit.separation[-2]
    assert rate == pytest.approx(found.chi_1, rel=1e-9)


def test_orbit_broadcasts_and_composes():
    many = drive.propagate_perceptron(Perceptron("tanh", 1.5, 0.1, depth=8), [1.0, 2.0], [0.1, -0.4])
    assert many.length.shape == (9, 2)
    first = drive.propagate_perceptron(Perceptron("tanh", 1.5, 0.1, depth=3), 2.0, -0.4)
    rest = drive.propagate_perceptron(
        Perceptron("tanh", 1.5, 0.1, depth=5), first.length[-1], 1 - first.separation[-1]
    )
    np.testing.assert_allclose(many.separation[-1, 1], rest.separation[-1], rtol=1e-9)
    np.testing.assert_allclose(many.gradient[0, 1], first.gradient[0] * rest.gradient[0], rtol=1e-9)


def test_dead_network_and_overflow():
    dead = drive.propagate_perceptron(Perceptron("tanh", 0.0, 0.0, depth=3), 1.0, 0.2)
    assert np.all(dead.length[1:] == 0)
    assert np.all(dead.separation[1:] == 0)
    with pytest.raises(BadInput, match="exceeds 1e150 at layer"):
        drive.propagate_perceptron(Perceptron("relu", 8.0, 0.0, depth=400))
    with pytest.raises(BadInput, match="expected a finite length"):
        drive.propagate_perceptron(Perceptron("relu"), q0=-1.0)


def test_the_noun():
    p = Perceptron("tanh", 1.5, 0.05, depth=3, name="mine")
    assert p.sites() == ("input", "layer.1", "layer.2", "layer.3")
    assert Perceptron.from_dict(p.to_dict()) == p
    assert len({p, Perceptron("tanh", 1.5, 0.05, depth=3)}) == 1
    with pytest.raises(BadInput, match="weight_variance"):
        Perceptron("tanh", -1.0)
