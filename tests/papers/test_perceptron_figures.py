"""What the perceptron recipes measure and fit, against cases with a known answer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgewise
from edgewise.study import Result, load_recipe

PAPERS = Path(__file__).parents[2] / "papers"


def recipe(name: str) -> Any:
    return load_recipe(PAPERS / f"{name}.py").module


def test_a_circle_that_went_nowhere_is_a_plane_circle():
    """Layer 0 of the recipes: two equal components, curvature 1/sqrt(q), a tangent that turns once around."""
    case = {"strength": 2.5, "bias": 0.3, "width": 60, "depth": 10, "seed": 0}
    found = recipe("poole2016exponential/figure3_circle").measure(case)
    np.testing.assert_allclose(found["shares"][0][:3], [0.5, 0.5, 0.0], atol=1e-3)
    np.testing.assert_allclose(found["autocorrelation"][0], np.cos(np.linspace(0, math.pi, 65)), atol=1e-3)
    assert np.shape(found["curves"]) == (2, 2, 900)
    found = recipe("poole2016exponential/figure4_curvature").measure({**case, "depth": 1})
    q = edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", 6.25, 0.09)).limits.length_fixed_point
    assert found["euclidean"][0] == pytest.approx(2 * math.pi * math.sqrt(q), rel=1e-4)
    assert found["curvature"][0] == pytest.approx(1 / math.sqrt(q), rel=1e-4)
    assert found["grassmannian"][0] == pytest.approx(2 * math.pi, rel=1e-4)


def test_shares_of_theory_are_all_of_the_variance():
    """A flat circle has its two harmonics and nothing else; deeper shares are positive, ordered, at most one."""
    _, shares = recipe("poole2016exponential/figure3_circle")._theory(4.0)
    np.testing.assert_allclose(shares[0], [0.5, 0.5, *[0.0] * 14], atol=1e-12)
    assert np.all(np.diff(shares, axis=1) <= 1e-12)
    assert np.all((shares > -1e-12) & (shares.sum(axis=1, keepdims=True) <= 1 + 1e-12))


def test_one_sharp_hidden_layer_reaches_the_bound_and_a_soft_one_the_mean_field():
    module = recipe("poole2016exponential/theorem1_shallow_bound")
    case = {"kind": "shallow", "bias": 0.0, "width": 20, "depth": 1, "seed": 1}
    sharp = module.measure({**case, "strength": 1e6})["length"]
    assert 0.8 * 80 < sharp <= 80
    soft = module.measure({**case, "strength": 1e-3, "width": 2000})[
        "length"
    ]  # linear: an ellipse near a circle
    assert soft == pytest.approx(2 * math.pi * 1e-3 * math.sqrt(2000), rel=0.02)


def test_the_plane_reads_the_variance_of_a_linear_network():
    """Weights so small that tanh is linear: both growths are log sigma_w^2, up to three times
    the scatter of ten layers, sqrt(2 / width / 10) = 0.03."""
    module = recipe("poole2016exponential/figure2_phase_plane")
    found = module.measure(
        {"weight_variance": 0.25, "bias_variance": 0.0, "width": 200, "depth": 10, "seed": 0}
    )
    assert found["forward"] == pytest.approx(math.log(0.25), abs=0.1)
    assert found["backward"] == pytest.approx(math.log(0.25), abs=0.1)


def test_depth_scales_fitted_to_theory_are_those_of_theory():
    module = recipe("schoenholz2017deep/figure2_depth_scales")
    results = []
    for w in (1.3, 2.3):
        maps = edgewise.critical.perceptron_maps(edgewise.Perceptron("tanh", w, 0.05, 40))
        orbit = maps.orbit(maps.limits.length_fixed_point, module.START)
        value = {"separation": orbit.separation.tolist(), "gradient": np.log(orbit.gradient).tolist()}
        results.append(Result({"weight_variance": w, "seed": 0, "depth": 40, "width": 100}, value))
        theory, fitted = module._forward_scales(results, w)
        assert fitted == pytest.approx(theory, rel=1e-9)
        limit = maps.limits.depth_scale_correlation
        slowest = 1.05 if w == 1.3 else 2.5  # in chaos a pair leaves c = 1 slowly: 40 layers are not infinity
        assert 0.9 * limit < fitted < slowest * limit
        assert module._backward_scale(results, w)[0] == pytest.approx(
            maps.limits.depth_scale_gradient, rel=1e-3
        )


def test_the_gradient_of_a_recipe_is_that_of_autograd():
    import torch

    module = recipe("schoenholz2017deep/figure2_depth_scales")
    network = edgewise.nets.RandomPerceptron(edgewise.Perceptron("tanh", 2.0, 0.1, 3, 12), seed=2).double()
    start = edgewise.nets.circle([0.0, 1.0], 12).requires_grad_()
    h = network.preactivations(start)
    out = torch.randn(2, 12, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    (g,) = torch.autograd.grad(network(start), start, out)
    expected = float((g.square().sum(dim=1) / out.square().sum(dim=1)).log().mean())
    with torch.no_grad():
        found = module._gradients(network, h.detach(), 7)
    assert found[0] == pytest.approx(expected, rel=1e-10)


def losses(by_depth: dict[int, float | None], chance: float = 2.0) -> list[Result]:
    """One weight variance in the ordered phase, one seed, the same loss at every mark."""
    case = {"weight_variance": 1.2, "seed": 0, "steps": [50, 100]}
    return [Result({**case, "depth": d}, {"loss": [x, x], "chance": chance}) for d, x in by_depth.items()]


def test_trainable_depth_is_where_the_loss_passes_half_of_chance():
    module = recipe("schoenholz2017deep/figure5_trainable_depth")
    half = losses({10: 0.5, 40: 2.0, 160: 2.0})  # log(loss): -log 2, +log 2 around half of chance = 1
    assert module._trainable(half, 1.2) == pytest.approx(20.0)  # the middle of 10 and 40 in logarithm
    ((w, constant),) = module._constants(half, "correlation")
    xi = edgewise.critical.perceptron_maps(
        edgewise.Perceptron("tanh", 1.2, 0.05)
    ).limits.depth_scale_correlation
    assert (w, constant) == (1.2, pytest.approx(20 / xi))
    assert math.isnan(
        module._trainable(losses({10: 0.5, 40: 0.6}), 1.2)
    )  # never fails: unknown, not the deepest
    assert math.isnan(module._trainable(losses({10: 1.9, 40: 2.0}), 1.2))
    assert module._trainable(losses({10: 0.5, 40: None}), 1.2) == pytest.approx(
        20.0
    )  # diverged counts as guessing


def test_images_that_are_not_there_are_said_to_be_missing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEWISE_IMAGES", "cifar10")
    module = recipe("schoenholz2017deep/figure5_trainable_depth")
    with pytest.raises(edgewise.BadInput, match="CIFAR-10 is not in"):
        module.measure(module.cases("small")[0])


def test_two_edges_meet_where_their_lines_cross() -> None:
    boundaries, x = recipe("cowsik2024geometry/boundaries"), np.array([0.0, 1.0, 2.0])
    met = boundaries.crossing(x, np.array([0.0, 1.0, 2.0]), np.array([1.5, 1.5, 1.5]))
    assert met == pytest.approx((1.5, 1.5))
    assert boundaries.crossing(x, x, x + 1) is None
    assert boundaries.crossing(x, np.array([np.nan, 1.0, 2.0]), x + 1) is None


def test_batch_norm_makes_the_weights_invisible() -> None:
    normalized = recipe("poole2016exponential/normalized")
    case = {"norm": "batch", "seed": 0, "width": 40, "depth": 6, "batch": 12}
    start = normalized.torch.randn(12, 40, dtype=normalized.torch.float64)
    layers = normalized._layers(case | {"knob": 1.0})(start)[1:]
    for layer in layers:
        np.testing.assert_allclose(layer.mean(0), 0, atol=1e-12)
        np.testing.assert_allclose(layer.square().mean(0), 1, atol=1e-12)
    spectral = normalized.expected({"norm": "spectral", "knob": 2.0, "depth": 16})
    assert spectral < 0 < normalized.expected({"norm": "spectral", "knob": 4.0, "depth": 16})
