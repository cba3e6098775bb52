"""A circle through random perceptrons: recursions against finite networks and against exact facts."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.errors import BadInput
from edgewise.nouns.architecture import Perceptron
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.perceptron import drive
from edgewise.theory.perceptron.edge_of_chaos import length_fixed_point
from edgewise.theory.perceptron.maps import summary


def simulate_circle(sw2, sb2, depth, q, points, width=1000, seed=0):
    """One random tanh network on a sampled circle: autocorrelation, length and tangent length, per layer."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((width, 2)))[0].T
    t = 2 * np.pi * np.arange(points) / points
    h = np.sqrt(width * q) * np.stack([np.cos(t), np.sin(t)], axis=1) @ basis
    rows = [measure_curve(h)]
    for _ in range(depth):
        w = rng.standard_normal((width, width)) * np.sqrt(sw2 / width)
        h = np.tanh(h) @ w.T + np.sqrt(sb2) * rng.standard_normal(width)
        rows.append(measure_curve(h))
    return [np.array(column) for column in zip(*rows, strict=True)]


def measure_curve(h):
    """Chords stand for arcs: both lengths are short by O(1/points^2), a correction added from half the points."""
    fine, coarse = lengths(h), lengths(h[::2])
    euclidean, tangent = (f + (f - c) / 3 for f, c in zip(fine, coarse, strict=True))
    quarter = np.mean(np.sum(h * np.roll(h, len(h) // 4, axis=0), axis=1)) / np.mean(np.sum(h * h, axis=1))
    return quarter, euclidean, tangent


def lengths(h):
    steps = np.roll(h, -1, axis=0) - h
    size = np.linalg.norm(steps, axis=1)
    unit = steps / size[:, None]
    cosine = np.clip(np.sum(unit * np.roll(unit, -1, axis=0), axis=1), -1, 1)
    return size.sum(), np.arccos(cosine).sum()


def test_circle_against_random_networks():
    """Width 1000, 4 seeds, 6 chaotic layers. One layer's log-length scatters by about 1/sqrt(2 width) = 2 %; a
    circle averages over its own angles and the seeds halve it, hence 2 % at the last layer and 0.8 % on average."""
    sw2, sb2, depth = 4.0, 0.1, 6
    p = Perceptron("tanh", sw2, sb2, depth=depth, width=1000)
    orbit = drive.propagate_circle(p, angles=np.array([0.0, np.pi / 2]))
    runs = [simulate_circle(sw2, sb2, depth, orbit.length[0], 1024, seed=seed) for seed in range(4)]
    quarter, euclidean, tangent = (np.mean([run[k] for run in runs], axis=0) for k in range(3))
    np.testing.assert_allclose(quarter, orbit.autocorrelation[:, 1], atol=0.03)
    for measured, predicted in ((euclidean, orbit.euclidean_length), (tangent, orbit.grassmannian_length)):
        error = measured / predicted - 1
        assert np.max(np.abs(error)) < 0.02
        assert np.mean(np.abs(error)) < 0.008


def test_input_is_a_plane_circle():
    orbit = drive.propagate_circle(Perceptron("tanh", 3.0, 0.2, depth=2, width=500), start_length=0.9)
    assert orbit.grassmannian_length[0] == pytest.approx(2 * np.pi)
    assert orbit.euclidean_length[0] == pytest.approx(2 * np.pi * np.sqrt(500 * 0.9))
    np.testing.assert_allclose(orbit.autocorrelation[0], np.cos(orbit.angles), atol=1e-15)


def test_metric_and_curvature_are_derivatives_of_the_autocorrelation():
    """q c(t) = q - g t^2/2 + g^2 k t^4/24 for any stationary curve; so no recursion is needed to get g and k.

    Away from q*, where the recursion of k is less obvious."""
    t = np.array([0.0, 0.02, 0.04])
    p = Perceptron("erf", 2.5, 0.1, depth=4)
    orbit = drive.propagate_circle(p, angles=t, start_length=0.3)
    ratio = orbit.length[:, None] * orbit.separation[:, 1:] / (t[1:] ** 2 / 2)  # g - g^2 k t^2/12 + ...
    g = (4 * ratio[:, 0] - ratio[:, 1]) / 3
    k = 12 * (ratio[:, 0] - ratio[:, 1]) / (t[2] ** 2 - t[1] ** 2) / g**2
    np.testing.assert_allclose(orbit.metric, g, rtol=1e-4)
    np.testing.assert_allclose(orbit.curvature, k, rtol=0.02)


def test_chaotic_curvature_tends_to_its_limit_and_lengths_grow_together():
    p = Perceptron("tanh", 4.0, 0.1, depth=60)
    orbit = drive.propagate_circle(p)
    limits, phi = summary(p), activation("tanh")
    chi_2 = p.weight_variance * float(phi.curvature_square(limits.length_fixed_point))
    assert orbit.curvature[-1] == pytest.approx(3 * chi_2 / (limits.chi_1 * (limits.chi_1 - 1)), rel=1e-6)
    growth = np.sqrt(limits.chi_1)
    for length in (orbit.euclidean_length, orbit.grassmannian_length):
        assert length[-1] / length[-2] == pytest.approx(growth, rel=1e-6)


def test_ordered_lengths_shrink_while_curvature_grows():
    orbit = drive.propagate_circle(Perceptron("tanh", 1.0, 0.1, depth=60))
    assert np.all(np.diff(orbit.euclidean_length) < 0)
    assert orbit.curvature[-1] > 1e4 * orbit.curvature[0]
    assert orbit.grassmannian_length[-1] == pytest.approx(orbit.grassmannian_length[-10], rel=1e-3)


def test_a_kink_bends_without_bound():
    orbit = drive.propagate_circle(Perceptron("relu", 1.5, 0.1, depth=2))
    assert np.all(np.isinf(orbit.curvature[1:]))
    assert np.all(np.isfinite(orbit.euclidean_length))


def test_shallow_bound_holds_for_shallow_networks_and_fails_for_deep_ones():
    assert drive.shallow_length_bound("tanh", 300) == pytest.approx(4 * 300)
    assert drive.shallow_length_bound("sigmoid", 10) == pytest.approx(2 * 10)
    rng = np.random.default_rng(0)
    t = np.linspace(0, 2 * np.pi, 4001)
    circle = np.stack([np.cos(t), np.sin(t)], axis=1)
    for gain in (1.0, 30.0, 1000.0):  # however steep, one layer cannot pass the bound
        hidden = np.tanh(circle @ (gain * rng.standard_normal((2, 300))) + rng.standard_normal(300))
        assert np.linalg.norm(np.diff(hidden, axis=0), axis=1).sum() <= 1200
    p = Perceptron("tanh", 6.0, 0.05, depth=40, width=300)
    depth = drive.depth_beyond_shallow(p, 300)
    q = float(length_fixed_point(activation("tanh"), 6.0, 0.05))
    orbit = drive.propagate_circle(p, start_length=q)
    activations = orbit.euclidean_length * np.sqrt(float(activation("tanh").slope_square(q)))
    assert depth == np.argmax(activations > 1200)
    assert 0 < depth < 40
    assert drive.depth_beyond_shallow(Perceptron("tanh", 1.0, 0.1, width=300), 300) == np.inf


def test_refusals():
    for name in ("relu", "gelu"):
        with pytest.raises(BadInput, match="not monotone and bounded"):
            drive.shallow_length_bound(name, 10)
    with pytest.raises(BadInput, match=r"go to 0\.0"):
        drive.propagate_circle(Perceptron("tanh", 0.5, 0.0))


def test_weights_that_are_nearly_none_bend_the_circle_without_bound():
    """The square of chi_1 underflows here, which raised; chi_1 itself does not."""
    network = Perceptron(depth=2, width=100, activation="tanh", weight_variance=1e-200, bias_variance=0.5)
    orbit = drive.propagate_circle(network, np.zeros(1), 2.6)
    assert np.isfinite(orbit.length).all() and orbit.curvature[-1] > 1e150
