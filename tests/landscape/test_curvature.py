"""Eigenvectors of known Hessians, planes of known paths, roughness of known surfaces."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edgewise import landscape
from edgewise.errors import BadInput
from edgewise.landscape.hessian import hessian_spectrum
from edgewise.landscape.loss_grid import roughness
from tests.support import landscape_networks as networks
from tests.support import models
from tests.support.landscape_networks import cross_entropy, own, seeded


def test_eigenvectors_of_a_quadratic() -> None:
    model = networks.Quadratic()
    found = landscape.top_directions(model, own, None, 3, tolerance=1e-10)
    values, vectors = torch.linalg.eigh(model.A)
    np.testing.assert_allclose(found.values, values.flip(0)[:3], rtol=1e-8)
    for k, direction in enumerate(found.directions):
        flat = direction.tensors["weight"].flatten()
        assert abs(float(flat @ vectors[:, -1 - k])) == pytest.approx(1.0, abs=1e-7)
    assert max(found.residuals) < 1e-6
    drawn = landscape.plane(model, own, None, found.directions[:2], points=5)
    np.testing.assert_allclose(np.diag(drawn.roughness.curvature), found.values[:2], rtol=1e-6)
    np.testing.assert_allclose(drawn.roughness.curvature[0][1], 0.0, atol=1e-6)


def test_eigenvalues_of_a_network_against_its_dense_hessian() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, 4))).double()
    x, y = networks.tokens(7, 1)
    batch = (x[:, 0].double(), y)
    shapes = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    sizes = [p.numel() for p in shapes.values()]

    def flat_loss(flat: torch.Tensor) -> torch.Tensor:
        parts = {n: f.view(p.shape) for (n, p), f in zip(shapes.items(), flat.split(sizes), strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, parts, (batch[0],)), batch[1])

    flat = torch.cat([p.detach().flatten() for p in shapes.values()])
    dense = torch.linalg.eigvalsh(torch.autograd.functional.hessian(flat_loss, flat))
    expected = sorted(dense.tolist(), key=abs, reverse=True)[:2]
    found = landscape.top_directions(model, cross_entropy, batch, tolerance=1e-8)
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)
    halves = [(batch[0][:3], y[:3]), (batch[0][3:6], y[3:6])]
    apart = landscape.top_eigenvalue(model, cross_entropy, halves, tolerance=1e-8)
    joint = landscape.top_eigenvalue(model, cross_entropy, (batch[0][:6], y[:6]), tolerance=1e-8)
    assert apart == pytest.approx(joint, rel=1e-6)


def test_eigenvectors_through_fused_attention() -> None:
    """The curvature of the plane is the eigenvalue, along queries alone."""
    model = seeded(networks.library_net).double()
    x, y = networks.tokens()
    batch = (x.double(), y)
    found = landscape.top_directions(model, cross_entropy, batch, 1, along="queries", tolerance=1e-6)
    drawn = landscape.line(model, cross_entropy, batch, found.directions[0], points=5, reach=1e-3)
    assert drawn.roughness.sharpness == pytest.approx(abs(found.values[0]), rel=1e-3)
    assert all("q_proj" in name for name in found.directions[0].tensors)


def test_a_fused_matrix_is_moved_in_its_queries_alone() -> None:
    model = models.FAMILIES["gpt2"]()
    along = landscape.Along("queries", [0])
    found = landscape.top_directions(model, None, models.batch("gpt2"), 1, along=along, tolerance=1e-2)
    tensor = found.directions[0].tensors["transformer.h.0.attn.c_attn.weight"]
    assert float(tensor[:, models.WIDTH :].abs().max()) == 0 < float(tensor[:, : models.WIDTH].abs().max())


def test_components_of_a_known_path() -> None:
    """States end + s u + t v with orthogonal u, v: coordinates and shares are known up to signs."""
    model = networks.Quadratic()
    u, v = torch.zeros(2, 3, 4, dtype=torch.float64)
    u[0, 1], v[2, 2] = 1.0, 1.0
    steps = [(3.0, 0.5), (2.0, -0.6), (1.0, 0.4), (0.2, 0.0), (0.0, 0.0)]
    end = model.weight.detach()
    states = [{"weight": end + s * u + t * v} for s, t in steps]
    path = landscape.training_path(model, states)
    gram = np.array(steps).T @ np.array(steps)
    values = np.linalg.eigvalsh(gram)[::-1]
    np.testing.assert_allclose(path.shares, values / values.sum(), rtol=1e-9)
    np.testing.assert_allclose((path.coordinates**2).sum(1), (np.array(steps) ** 2).sum(1), rtol=1e-9)
    drawn = landscape.plane(model, own, None, path, points=9)
    assert drawn.path is not None and drawn.reach == pytest.approx(path.reach)
    assert abs(drawn.path[0]).max() < drawn.reach[0]
    x, y = path.coordinates[0]
    far = x * path.directions[0].tensors["weight"] + y * path.directions[1].tensors["weight"]
    torch.testing.assert_close(end + far, states[0]["weight"])


def test_a_recorder_along_a_run() -> None:
    model = seeded(networks.library_net)
    recorder, batch = landscape.Recorder(model), networks.tokens()
    optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9)
    for _ in range(6):
        optimizer.zero_grad()
        cross_entropy(model, batch).backward()
        optimizer.step()
        recorder()
    path = landscape.training_path(model, recorder)
    assert path.coordinates.shape == (7, 2)
    np.testing.assert_allclose(path.coordinates[-1], 0.0, atol=1e-9)
    assert sum(path.shares) > 0.8
    with pytest.raises(BadInput, match="at least three"):
        landscape.training_path(model, recorder.states[:2])
    with pytest.raises(BadInput, match="on one line"):
        landscape.training_path(model, [recorder.states[0]] * 3)
    with pytest.raises(BadInput, match="another network"):
        landscape.training_path(model, [{}, {}, {}])


def test_roughness_of_known_surfaces() -> None:
    x = np.linspace(-1, 1, 41)
    X, Y = np.meshgrid(x, x)
    eggs = roughness((x, x), np.cos(3 * np.pi * X) * np.cos(3 * np.pi * Y))
    assert eggs.minima == 12  # cos cos = -1 at (odd, even) and (even, odd) thirds, inside: 2 x 3 twice
    assert eggs.range == pytest.approx(2.0)
    assert eggs.curvature[0][0] == pytest.approx(-9 * np.pi**2, rel=0.02)
    cubic = roughness((x, x), X**3)
    fitted = (
        X**3 - (np.sum(x**4) / np.sum(x**2)) * X
    )  # the best line to x^3, even powers being orthogonal to it
    assert cubic.residual == pytest.approx(np.sqrt(np.mean(fitted**2)) / 2, rel=1e-6)
    assert cubic.minima == 0
    flat = roughness((x,), np.ones(41))
    assert (flat.range, flat.residual, flat.minima, flat.sharpness) == (0, 0, 0, 0)
    holes = np.where(np.abs(X) > 0.92, np.inf, X**2)
    assert roughness((x, x), holes).finite == pytest.approx(37 / 41)
    assert "not finite" in str(roughness((x, x), holes))


def test_roughness_of_a_quadratic_is_its_matrix() -> None:
    """Another spacing along each axis, and a cross term; nothing is left over, and the one minimum is inside."""
    x, y = np.linspace(-1, 1, 5), np.linspace(-3, 3, 7)
    X, Y = np.meshgrid(x, y)
    found = roughness((x, y), 1.5 * X**2 + 0.7 * X * Y + 2.5 * Y**2)
    np.testing.assert_allclose(found.curvature, [[3.0, 0.7], [0.7, 5.0]], rtol=1e-9)
    assert found.residual == pytest.approx(0.0, abs=1e-12) and found.minima == 1
    assert roughness((x,), -2 * x**2).curvature[0][0] == pytest.approx(-4.0)
    saddle = roughness((x, y), X**2 - Y**2 + 0.01 * X)
    assert saddle.minima == 0


def test_the_spectrum_of_a_quadratic() -> None:
    """As many steps as weights give every eigenvalue; fewer give the ends, and exact moments for this vector."""
    model = networks.Quadratic()
    exact = torch.linalg.eigvalsh(model.A).numpy()
    whole = hessian_spectrum(model, own, None, steps=len(exact))
    np.testing.assert_allclose(whole.values, exact, rtol=1e-8, atol=1e-8 * abs(exact).max())
    assert whole.weights.sum() == pytest.approx(1.0)
    assert whole.condition == pytest.approx(abs(exact).max() / abs(exact).min(), rel=1e-6)
    short = hessian_spectrum(model, own, None, steps=3)
    assert (short.weights * short.values).sum() == pytest.approx((whole.weights * whole.values).sum())
    assert short.root_mean_square == pytest.approx(whole.root_mean_square)
    assert short.smallest >= exact[0] - 1e-9 and short.largest <= exact[-1] + 1e-9
    with pytest.raises(BadInput, match="steps must be between 1 and"):
        hessian_spectrum(model, own, None, steps=10**6)
