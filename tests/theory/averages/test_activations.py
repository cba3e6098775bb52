"""Gaussian averages against closed forms, against independent quadrature, against sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from edgewise.errors import BadInput
from edgewise.nouns.knobs import ACTIVATIONS
from edgewise.theory.averages.activation_averages import activation
from edgewise.theory.averages.functions import Pointwise
from edgewise.theory.averages.quadrature import Quadrature

TORCH = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "relu2": lambda x: torch.relu(x) ** 2,
    "softplus": torch.nn.functional.softplus,
    "sin": torch.sin,
}
SMOOTH = [name for name in ACTIVATIONS if name not in ("relu", "leaky_relu")]


def hermite_pair(function, q, c, nodes=180):
    """E f(u) f(u') by a product Gauss-Hermite rule in (z1, z2): nothing in common with the library's panels."""
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    u = np.sqrt(q) * z
    v = np.sqrt(q) * (c * z[:, None] + np.sqrt(1 - c**2) * z)
    return float(np.sum(w[:, None] * w * function(u)[:, None] * function(v)))


def gelu_product(q, c):
    """Closed form by Stein's lemma from E Phi(u) Phi(u') = 1/4 + arcsin(qc/(1+q)) / 2 pi [own derivation]."""
    p = q * c
    root = np.sqrt((1 + q) ** 2 - p**2)
    angle = 0.25 + np.arcsin(p / (1 + q)) / (2 * np.pi)
    return p * angle + (q**2 + p**2 * (1 - q) / (1 + q)) / (2 * np.pi * root)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_function_and_derivative_are_torchs(name):
    x = np.linspace(-6, 6, 241) + 1e-3
    t = torch.tensor(x, requires_grad=True)
    y = TORCH[name](t)
    (slope,) = torch.autograd.grad(y.sum(), t)
    phi = activation(name)
    np.testing.assert_allclose(phi.function(x), y.detach().numpy(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(phi.derivative(x), slope.numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_single_averages_against_sampling(name):
    phi, q = activation(name), 1.7
    u = np.sqrt(q) * np.random.default_rng(1).standard_normal(400_000)
    for average, sample in (
        (phi.square(q), phi.function(u) ** 2),
        (phi.slope_square(q), phi.derivative(u) ** 2),
        (phi.mean(q), phi.function(u)),
    ):
        assert abs(average - sample.mean()) < 4.5 * sample.std() / np.sqrt(u.size) + 1e-12


@pytest.mark.parametrize(
    "name", [name for name in SMOOTH if name != "relu2"]
)  # a corner defeats Gauss-Hermite
def test_pair_averages_against_product_quadrature(name):
    phi, tolerance = activation(name), 1e-6  # the table's
    for q, c in ((0.3, 0.5), (1.0, -0.7), (2.0, 0.95), (1.5, 0.0)):
        scale, slope_scale = float(phi.square(q)), float(phi.slope_square(q))
        assert abs(phi.product(q, c) - hermite_pair(phi.function, q, c)) < tolerance * scale
        assert abs(phi.slope_product(q, c) - hermite_pair(phi.derivative, q, c)) < tolerance * slope_scale


def test_rectifiers_against_sampling_of_pairs():
    z = np.random.default_rng(2).standard_normal((2, 400_000))
    for name in ("relu", "leaky_relu:0.2", "relu2"):
        phi = activation(name)
        for c in (0.6, -0.8):
            u, v = z[0], c * z[0] + np.sqrt(1 - c**2) * z[1]
            for average, f in ((phi.product, phi.function), (phi.slope_product, phi.derivative)):
                sample = f(u) * f(v)
                assert abs(average(1.0, c) - sample.mean()) < 4.5 * sample.std() / np.sqrt(sample.size)


def test_arc_cosine_and_arcsine_kernels():
    q, c = np.array([0.1, 1.0, 30.0])[:, None], np.linspace(-1, 1, 41)
    theta = np.arccos(c)
    arc = (np.sin(theta) + (np.pi - theta) * np.cos(theta)) / (2 * np.pi)
    second = (3 * np.sin(theta) * c + (np.pi - theta) * (1 + 2 * c**2)) / (2 * np.pi)
    np.testing.assert_allclose(activation("relu").product(q, c), q * arc, atol=1e-14 * 30)
    np.testing.assert_allclose(activation("relu2").product(q, c), q**2 * second, rtol=1e-9, atol=1e-12 * 900)
    np.testing.assert_allclose(
        activation("erf").product(q, c), 2 / np.pi * np.arcsin(2 * q * c / (1 + 2 * q)), atol=1e-14
    )


def test_gelu_against_its_closed_form():
    q, c = np.logspace(-3, 3, 25)[:, None], np.linspace(-0.999, 1, 81)
    phi = activation("gelu")
    error = np.abs(phi.product(q, c) - gelu_product(q, c)) / gelu_product(q, 1.0)
    assert error.max() < 2e-7
    assert np.allclose(phi.mean(q), q / np.sqrt(2 * np.pi * (1 + q)), rtol=1e-9)  # Stein: q E Phi'
    assert np.allclose(phi.function(np.array([1.0])), ndtr(1.0))


@pytest.mark.parametrize(
    ("function", "name"), [(torch.erf, "erf"), (lambda x: np.where(x > 0, x, 0.2 * x), "leaky")]
)
def test_table_against_closed_form_over_its_whole_range(function, name):
    """A callable goes through derivatives, panels and table; the closed form through none of them.

    1e-6 is the spline's; 2e-6 is left by the central differences of the kinked one at q = 1e-8.
    """
    table, exact = activation(function), activation("erf" if name == "erf" else "leaky_relu:0.2")
    rng = np.random.default_rng(3)
    q = 10 ** rng.uniform(-8, 8, 3000)
    near = 10 ** rng.uniform(-15, 0, 3000)
    e = np.select([rng.random(3000) < 0.5, rng.random(3000) < 0.5], [near, 2 - near], rng.uniform(0, 2, 3000))
    scale = exact.slope_product_apart(q, np.minimum(e, 2 - e))
    assert np.max(np.abs(table.slope_product_apart(q, e) - exact.slope_product_apart(q, e)) / scale) < 3e-6
    assert np.max(np.abs(table.chord(q, e) / exact.chord(q, e) - 1)) < 3e-6
    assert np.max(np.abs(table.square(q) / exact.square(q) - 1)) < 1e-6


@pytest.mark.parametrize("name", ["tanh", "silu"])
def test_table_against_direct_quadrature(name):
    phi = activation(name)
    direct = Quadrature(phi._averages.pointwise)
    rng = np.random.default_rng(4)
    q, e = 10 ** rng.uniform(-6, 6, 60), 2 * rng.uniform(0, 1, 60) ** 3
    exact = direct.slope_product_directly(q, e)
    scale = direct.slope_product_directly(q, np.minimum(e, 2 - e))
    assert np.max(np.abs(phi.slope_product_apart(q, e) - exact) / scale) < 1e-6
    exact = direct.chord_directly(q[:6], e[:6])
    np.testing.assert_allclose(phi.chord(q[:6], e[:6]), exact, rtol=1e-6)


@pytest.mark.parametrize("name", ["relu", "relu2", "erf", "sin"])
def test_closed_chords_against_direct_quadrature(name):
    phi = activation(name)
    kinks = (0.0,) if name.startswith("relu") else ()
    direct = Quadrature(Pointwise(phi.function, phi.derivative, None, kinks))
    q = np.full(7, 1.3)
    e = np.array([1e-14, 1e-6, 0.01, 0.4, 1.0, 1.7, 2.0])
    np.testing.assert_allclose(phi.chord(q, e), direct.chord_directly(q, e), rtol=1e-7)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_chord_is_right_where_the_subtraction_fails(name):
    phi, q = activation(name), np.array([1e-6, 0.5, 1.0, 40.0])
    start = phi.slope_square(q)
    np.testing.assert_allclose(phi.chord(q, 1e-300), start, rtol=1e-6)
    np.testing.assert_allclose(phi.chord(q, 0.0), start, rtol=1e-6)
    slope = phi.slope_product_apart(q, 1e-12)
    assert np.all(np.abs(phi.chord(q, 1e-12) / start - 1) < 1e-5)
    assert np.all(
        phi.chord(q, 1e-12) >= slope * (1 - 1e-6)
    )  # a mean over [1 - e, 1] of an increasing function
    plain = (phi.square(q) - phi.product(q, 0.5)) / (0.5 * q)
    np.testing.assert_allclose(phi.chord(q, 0.5), plain, rtol=1e-9)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_price_theorem_and_length_slope_by_differences(name):
    phi, q, c, h = activation(name), 0.8, 0.3, 1e-3
    by_difference = (phi.product(q, c + h) - phi.product(q, c - h)) / (2 * h * q)
    assert abs(by_difference - phi.slope_product(q, c)) < 2e-5 * phi.slope_square(q)
    by_difference = (phi.square(q + h) - phi.square(q - h)) / (2 * h)
    assert abs(by_difference - phi.length_slope(q)) < 2e-5 * phi.slope_square(q)


@pytest.mark.parametrize("name", SMOOTH)
def test_curvature_is_the_next_price_derivative(name):
    """d/dc E phi' phi' = q E phi'' phi'' at c = 1, by a one-sided difference."""
    phi, q, e = activation(name), 0.8, 1e-3
    first, second = (float(phi.slope_square(q) - phi.slope_product_apart(q, x)) / (q * x) for x in (e, e / 2))
    tolerance = 0.03 if name == "relu2" else 2e-3  # relu2: phi'' jumps, and the slope goes as the angle cubed
    assert abs(2 * second - first - phi.curvature_square(q)) < tolerance * phi.curvature_square(q) + 1e-9


def test_kinks_are_found_and_their_curvature_refused():
    hard_tanh = activation(lambda x: np.clip(x, -1, 1))
    assert hard_tanh.kinks == (-1.0, 1.0)
    assert float(hard_tanh.slope_square(1.0)) == pytest.approx(ndtr(1) - ndtr(-1), rel=1e-9)
    elu = activation(torch.nn.functional.elu)
    assert elu.is_smooth
    assert elu._averages.pointwise.creases == (0.0,)
    for kinked in (hard_tanh, activation("relu")):
        with pytest.raises(BadInput, match="kinks at"):
            kinked.curvature_square(1.0)


def test_far_outside_the_table():
    phi = activation("gelu")
    assert float(phi.chord(1e20, 0.5)) == pytest.approx(float(activation("relu").chord(1e20, 0.5)), rel=1e-6)
    tanh = activation("tanh")
    assert float(tanh.chord(1e-40, 0.5)) == pytest.approx(1.0, rel=1e-6)
    assert np.isnan(tanh.chord(np.inf, 0.5))
    c = np.array([0.5, 0.2, 0.0, -0.3, -0.9])
    np.testing.assert_allclose(
        tanh.slope_product(1e9, c), 4 / (2 * np.pi * 1e9 * np.sqrt(1 - c**2)), rtol=1e-4
    )  # a step of height 2: 4 times the density of (u, u') at zero


def test_refusals():
    with pytest.raises(BadInput, match=r"unknown activation 'tahn'.*tanh"):
        activation("tahn")
    with pytest.raises(BadInput, match="number after the colon"):
        activation("leaky_relu:steep")
    with pytest.raises(BadInput, match="jumps at x = 0"):
        activation(lambda x: np.where(x > 0, 1.0, 0.0))
    with pytest.raises(BadInput, match="elementwise"):
        activation(lambda x: x - np.mean(x))
    with pytest.raises(BadInput, match="resolved only up to"):
        activation(lambda x: np.sin(3 * x)).square(1e6)
    with pytest.raises(BadInput, match="expected q >= 0"):
        activation("tanh").square(-1.0)
    with pytest.raises(BadInput, match="correlation"):
        activation("tanh").product(1.0, 1.1)
    with pytest.raises(BadInput, match="0 <= e <= 2"):
        activation("tanh").chord(1.0, -0.1)


def test_an_activation_that_grows_too_fast_is_averaged_up_to_its_limit() -> None:
    """E exp(2x) = e^(2q), the limit itself included; nothing is said beyond it."""
    exponential = activation(np.exp)
    assert exponential.slope_square(np.array([0.1, 0.5, 1.0])) == pytest.approx(
        np.exp([0.2, 1.0, 2.0]), rel=1e-8
    )
    with pytest.raises(BadInput, match="resolved only up to q = 1"):
        exponential.slope_square(np.array([1.01]))


@pytest.mark.parametrize("name", ["gelu", "tanh", "silu"])
def test_below_the_table_a_slope_is_that_at_zero(name: str) -> None:
    """Answered from the edge of the table, without an integral."""
    phi = activation(name)
    averages = phi._averages
    assert averages._flat_at_zero
    q = averages.table.low * np.array([1e-3, 1e-6])
    at_zero = float(phi.derivative(np.zeros(1))[0]) ** 2
    assert phi.slope_product(q, np.full(2, 0.5)) == pytest.approx([at_zero] * 2, rel=1e-5, abs=1e-5)
