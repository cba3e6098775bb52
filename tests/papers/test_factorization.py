"""The regularized loss: its gradient by autograd, its curvatures by differences, its points by their closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgewise.errors import BadInput
from edgewise.laboratory.regression import Parameters, StructureAware, gaussian_start, random_problem
from tests.support.recipes import neighbor

_module = neighbor("papers/goel2026preconditioning/theorem1_stationary.py", "factorization")
Factorization, nearest_stationary = _module.Factorization, _module.nearest_stationary
flat, unflat, whitened = _module.flat, _module.unflat, _module.whitened
PROBLEM = random_problem(4, 3, 10.0, 3.0, seed=1)
Q = Factorization.of(PROBLEM, 0.3)


def point(seed: int = 0, size: float = 0.7) -> Parameters:
    rng = np.random.default_rng(seed)
    return Parameters(size * rng.standard_normal((3, 4)), size * rng.standard_normal((4, 4)))


def test_the_gradient_is_that_of_autograd() -> None:
    at = point()
    v, a = (torch.tensor(part, requires_grad=True) for part in at)
    gram = v.T @ v - a.T @ a
    value = 0.5 * (v @ a.T - torch.tensor(Q.target)).square().sum() + 0.25 * 0.3 * gram.square().sum()
    value.backward()
    assert Q.value(at) == pytest.approx(value.item(), rel=1e-12)
    np.testing.assert_allclose(Q.gradient(at).value, v.grad, rtol=1e-12)
    np.testing.assert_allclose(Q.gradient(at).score, a.grad, rtol=1e-12)


def test_curvatures_are_those_of_differences() -> None:
    at, step = point(3), 1e-5
    rows = []
    for unit in np.eye(flat(at).size):
        ends = [flat(Q.gradient(unflat(flat(at) + sign * step * unit, at))) for sign in (1, -1)]
        rows.append((ends[0] - ends[1]) / (2 * step))
    np.testing.assert_allclose(Q.curvatures(at), np.linalg.eigvalsh(np.array(rows)), atol=1e-7)


def test_without_balancing_it_is_the_population_loss() -> None:
    start = gaussian_start(PROBLEM, 0.5, 2)
    bare = Factorization.of(PROBLEM, 0.0)
    assert bare.value(whitened(PROBLEM, start)) == pytest.approx(
        PROBLEM.population().excess(start), rel=1e-12
    )


def test_one_step_of_the_first_version_is_a_gradient_step_on_it() -> None:
    """The method of `regression`, in its plain form, goes down this very function."""
    start = gaussian_start(PROBLEM, 0.5, 2)
    path = StructureAware(step=0.05, balancing=0.3, radius=None, invariant=False).path(
        PROBLEM.population(), start
    )
    before, after = (whitened(PROBLEM, next(path)) for _ in range(2))
    eta = 0.05 / np.linalg.norm(Q.target, 2)
    np.testing.assert_allclose(
        flat(after), flat(before) - eta * flat(Q.gradient(before)), rtol=1e-9, atol=1e-12
    )


def test_kinds_of_points() -> None:
    sizes = np.linalg.svd(Q.target, compute_uv=False)
    rotation = np.linalg.qr(np.random.default_rng(5).standard_normal((4, 4)))[0]
    assert Q.kind(Q.stationary([0, 1, 2], rotation)) == "global minimum"
    assert Q.kind(point()) == "moving"
    for triples, left_out in (((), 0), ((0,), 1), ((0, 1), 2), ((1, 2), 0)):
        at = Q.stationary(triples, rotation)
        assert Q.kind(at) == "strict saddle"
        assert Q.curvatures(at)[0] == pytest.approx(-sizes[left_out], rel=1e-9)
    assert Q.value(Q.stationary([0, 1], rotation)) == pytest.approx(Q.lowest_saddle(), rel=1e-12)


def test_a_search_ends_at_a_stationary_point_that_is_balanced() -> None:
    at = nearest_stationary(Q, point(7), steps=60)
    assert Q.kind(at) in ("global minimum", "strict saddle")
    np.testing.assert_allclose(at.value.T @ at.value, at.score.T @ at.score, atol=1e-6)


def test_the_search_goes_on_where_the_hessian_is_singular() -> None:
    """Turning both factors against each other changes nothing, so stationary points are not isolated."""
    at = nearest_stationary(Q, point(7), steps=500)
    assert np.linalg.norm(flat(Q.gradient(at))) < 1e-10


def test_a_flat_point_that_is_no_minimum_would_be_called_spurious() -> None:
    """The word exists: at the origin of a target of zero apart from one entry too small to see, nothing goes down."""
    tiny = Factorization(np.diag([1.0, 1e-9]), 0.1)
    assert tiny.kind(tiny.stationary([0])) == "spurious"


def test_bad_input_is_refused() -> None:
    with pytest.raises(BadInput, match="finite matrix"):
        Factorization(np.array([1.0, 2.0]))
    with pytest.raises(BadInput, match="zero or more"):
        Factorization(np.eye(2), -1.0)
    with pytest.raises(BadInput, match="not all among 0 to 2"):
        Q.stationary([3])
