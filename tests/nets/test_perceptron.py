"""Random perceptrons: drawn as described, and circles that are circles, with exact derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import edgewise
from edgewise.nets import RandomPerceptron, circle, circle_derivatives

ANGLES = torch.linspace(0, 2 * math.pi, 9, dtype=torch.float64)[:-1]


@torch.no_grad()
def test_weights_have_the_described_variances_and_a_seed_names_them():
    net = RandomPerceptron(
        edgewise.Perceptron("tanh", 2.5, 0.3, depth=2, width=400), inputs=64, outputs=10, seed=3
    )
    assert float(net.layers[1].weight.var()) * 400 == pytest.approx(2.5, rel=0.02)
    assert float(net.entrance.weight.var()) * 64 == pytest.approx(2.5, rel=0.03)
    assert float(net.layers[0].bias.square().mean()) == pytest.approx(0.3, rel=0.25)
    assert float(net.readout.weight.var()) * 400 == pytest.approx(1.0, rel=0.06)
    again = RandomPerceptron(net.perceptron, inputs=64, outputs=10, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    assert net(torch.randn(5, 64)).shape == (5, 10)


def test_preactivations_follow_the_equation():
    net = RandomPerceptron(edgewise.Perceptron("erf", 1.5, 0.1, depth=3, width=7), seed=1).double()
    h = circle(ANGLES, 7)
    rows = [h]
    for layer in net.layers:
        rows.append(torch.erf(rows[-1]) @ layer.weight.T + layer.bias)
    torch.testing.assert_close(net.preactivations(h), torch.stack(rows))
    torch.testing.assert_close(net(h), rows[-1])


def test_a_circle_has_the_length_and_overlaps_asked_for():
    h = circle(ANGLES, width=50, length=0.7, seed=2)
    gram = h @ h.T / 50
    expected = 0.7 * torch.cos(ANGLES[:, None] - ANGLES[None, :])
    torch.testing.assert_close(gram, expected)
    with pytest.raises(edgewise.BadInput, match="width >= 2"):
        circle(ANGLES, width=1)


def test_derivatives_of_the_circle_are_those_of_differences():
    net = RandomPerceptron(edgewise.Perceptron("tanh", 4.0, 0.1, depth=4, width=30), seed=5).double()
    h, v, a = circle_derivatives(net, ANGLES, 1.3, seed=2)
    step = 1e-4
    with torch.no_grad():
        before, after = (net.preactivations(circle(ANGLES + s, 30, 1.3, seed=2)) for s in (-step, step))
    np.testing.assert_allclose((after - before) / (2 * step), v, atol=1e-6 * float(v.abs().max()))
    np.testing.assert_allclose((after + before - 2 * h) / step**2, a, atol=1e-5 * float(a.abs().max()))
    torch.testing.assert_close(a[0], -h[0])


def test_the_maps_at_the_door_are_one_layer_of_the_orbit():
    maps = edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", 2.5, 0.1, depth=3))
    orbit = maps.orbit([0.5, 2.0], 0.3)
    np.testing.assert_allclose(maps.length(orbit.length[1]), orbit.length[2])
    at_rest = maps.orbit(maps.limits.length_fixed_point, [-0.4, 0.3])
    np.testing.assert_allclose(maps.correlation(at_rest.correlation[1]), at_rest.correlation[2], rtol=1e-6)
    (only,) = maps.length_fixed_points()
    assert only.length == pytest.approx(maps.limits.length_fixed_point)
    with pytest.raises(edgewise.BadInput, match="takes a perceptron"):
        edgewise.critical.perceptron_maps("gpt2")


def test_the_edge_of_chaos_at_the_door_has_growth_one():
    sw2, sb2 = edgewise.critical.perceptron_maps("mlp:tanh").edge_of_chaos(0.5)
    for k in (len(sw2) // 2, -1):
        found = edgewise.critical.perceptron_maps(
            {"activation": "tanh", "weight_variance": sw2[k], "bias_variance": sb2[k]}
        )
        assert found.limits.chi_1 == pytest.approx(1.0, abs=1e-5)


def test_a_circle_fits_into_a_plane() -> None:
    """Width 2 is the least: mean squares q and overlaps q cos(t - t')."""
    points = circle([0.0, 0.5, 2.0], 2, length=3.0)
    angles = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(points @ points.T / 2, 3.0 * torch.cos(angles[:, None] - angles))
    with pytest.raises(edgewise.BadInput, match="width >= 2"):
        circle([0.0], 1)
