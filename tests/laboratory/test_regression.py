"""Softmax regression: gradients by autograd, the limit by sampling, and the numbers the issue asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edgewise.errors import BadInput
from edgewise.laboratory.regression import (
    FiniteSample,
    Parameters,
    Population,
    SoftmaxRegression,
    StructureAware,
    descend,
    gaussian_start,
    random_problem,
    spectral_start,
)

RELATIVE = 1e-8


def by_autograd(sample: FiniteSample, at: Parameters) -> tuple[float, list[np.ndarray]]:
    """The loss written as the definition says, with torch's own softmax and gradient."""
    x, y = torch.tensor(sample.inputs), torch.tensor(sample.targets)
    v, a = (torch.tensor(p, requires_grad=True) for p in at)
    loss = 0.5 * (((x @ a @ x.T).softmax(-1) @ x @ v.T - y) ** 2).sum(-1).mean()
    loss.backward()
    return float(loss.detach()), [v.grad.numpy(), a.grad.numpy()]


def test_loss_and_gradient_of_a_sample() -> None:
    problem = random_problem(5, 3, 50.0, 4.0, seed=0, noise=0.2)
    sample, at = problem.sample(40, seed=1), gaussian_start(problem, 0.7, seed=2)
    loss, slopes = by_autograd(sample, at)
    assert sample.loss(at) == pytest.approx(loss, rel=1e-12)
    for ours, theirs in zip(sample.gradient(at), slopes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_gradients_of_queries_average_to_the_whole() -> None:
    problem = random_problem(4, 2, 10.0, 2.0, seed=3)
    sample, at = problem.sample(30, seed=4), gaussian_start(problem, 0.5, seed=5)
    each = [sample.gradient(at, np.array([i])) for i in range(30)]
    for side in (0, 1):
        np.testing.assert_allclose(
            np.mean([g[side] for g in each], axis=0), sample.gradient(at)[side], atol=1e-12
        )


def test_gradient_of_the_population_by_differences() -> None:
    problem = random_problem(4, 3, 20.0, 3.0, seed=6, noise=0.1)
    population, at = problem.population(), gaussian_start(problem, 0.5, seed=7)
    for side, slope in enumerate(population.gradient(at)):
        bump = np.random.default_rng(8).standard_normal(slope.shape)
        moved = [
            Parameters(*(p + s * 1e-5 * bump if i == side else p for i, p in enumerate(at))) for s in (1, -1)
        ]
        measured = (population.loss(moved[0]) - population.loss(moved[1])) / 2e-5
        assert measured == pytest.approx(float(np.sum(slope * bump)), rel=1e-6)


def test_many_tokens_reach_the_population() -> None:
    """The softmax average tends to Σ Aᵀ x at rate n^(-1/2), so the loss does as well."""
    problem = random_problem(3, 2, 4.0, 2.0, seed=9, noise=0.3)
    at = Parameters(gaussian_start(problem, 0.6, seed=10).value, 0.3 * np.eye(3))
    limit = problem.population().loss(at)
    gaps = {
        n: np.mean([abs(problem.sample(n, seed=s).loss(at) - limit) for s in range(12)]) for n in (50, 1250)
    }
    assert gaps[1250] < 0.1 * limit
    assert gaps[1250] < gaps[50] / 2.5  # 5 in the mean


def test_whitened_descent_is_the_preconditioned_step() -> None:
    """One step of the first version without balancing: V − η ∇_V Σ⁻¹, A − η Σ⁻¹ ∇_A Σ⁻¹, η = step/‖M Σ^{1/2}‖."""
    problem = random_problem(4, 3, 30.0, 3.0, seed=11)
    population, at = problem.population(), gaussian_start(problem, 0.4, seed=12)
    method = StructureAware(step=0.1, balancing=0.0, radius=None, invariant=False)
    stepped = descend(population, at, method, 1).end
    sigma, slope = problem.covariance, population.gradient(at)
    sizes, basis = np.linalg.eigh(sigma)
    η = 0.1 / np.linalg.norm(problem.target @ (basis * np.sqrt(sizes)) @ basis.T, 2)
    np.testing.assert_allclose(stepped.value, at.value - η * slope.value @ np.linalg.inv(sigma), atol=1e-10)
    there = at.score - η * np.linalg.solve(sigma, slope.score) @ np.linalg.inv(sigma)
    np.testing.assert_allclose(stepped.score, there, atol=1e-10)


def test_renormalization_keeps_the_limit() -> None:
    problem = random_problem(4, 4, 30.0, 3.0, seed=13)
    at = gaussian_start(problem, 2.0, seed=14)
    changed = descend(problem.population(), at, StructureAware(radius=0.5), 0).end
    root = np.linalg.cholesky(problem.covariance)
    assert np.linalg.norm(root.T @ changed.score @ root, 2) == pytest.approx(0.5, rel=1e-9)
    assert problem.population().loss(changed) == pytest.approx(problem.population().loss(at), rel=1e-10)


def iterations(condition: float, method: Any, budget: int, seed: int) -> int:
    problem = random_problem(6, 6, condition, 3.0, seed)
    population, start = problem.population(), gaussian_start(problem, 0.3, 1000 + seed)
    nothing = Parameters(0 * start.value, 0 * start.score)
    run = descend(population, start, method, budget, until=RELATIVE * population.loss(nothing))
    return run.steps[-1] if run.losses[-1] <= RELATIVE * population.loss(nothing) else budget + 1


@pytest.mark.parametrize("condition, most", [(1, 50), (10, 50), (100, 150), (1000, 300)])
def test_iterations_hardly_depend_on_the_covariance(condition: float, most: int) -> None:
    counts = [iterations(condition, StructureAware(), 1000, seed) for seed in range(5)]
    assert np.median(counts) <= most


def test_geometric_rate_of_the_population_problem() -> None:
    """log loss is a straight line: the rate of the first and the second half of the way agree."""
    problem = random_problem(6, 6, 100.0, 3.0, seed=2)
    population, start = problem.population(), gaussian_start(problem, 0.3, seed=3)
    run = descend(population, start, StructureAware(), 400, until=1e-20)
    tail = [np.log(value) for value in run.losses[len(run.losses) // 2 :]]
    t = np.arange(len(tail))
    line = np.polyfit(t, tail, 1)
    assert np.corrcoef(t, tail)[0, 1] < -0.999
    assert 0.5 < np.exp(line[0]) < 0.99


def test_scaled_descent_forgets_the_target() -> None:
    """From the spectral direction with a wrong length, ScaledGD needs as many steps for cond(M) = 300 as for 3."""
    counts = []
    for condition in (3.0, 300.0):
        problem = random_problem(5, 5, 10.0, condition, seed=4)
        population = problem.population()
        start = Parameters(*(0.7 * p for p in spectral_start(population, radius=None)))
        method = StructureAware(scaled=True, step=0.5, balancing=0.0, radius=None)
        counts.append(descend(population, start, method, 500, until=1e-10).steps[-1])
    assert counts[0] < 60
    assert abs(counts[1] - counts[0]) <= 10


def test_scaled_descent_needs_a_good_start() -> None:
    problem = random_problem(4, 4, 100.0, 10.0, seed=0)
    sample, start = problem.sample(100, seed=100), gaussian_start(problem, 1.0, seed=200)
    run = descend(sample, start, StructureAware(scaled=True, step=0.5), 100)
    assert run.losses[-1] == np.inf  # a negative result, kept


def test_spectral_start_solves_the_population_and_sits_at_the_floor() -> None:
    problem = random_problem(4, 4, 100.0, 10.0, seed=5)
    population = problem.population()
    zero = population.loss(Parameters(np.zeros((4, 4)), np.zeros((4, 4))))
    assert population.loss(spectral_start(population)) < 1e-20 * zero
    sample = problem.sample(400, seed=6)
    begun = spectral_start(sample)
    ended = descend(sample, begun, StructureAware(), 100, every=100).end
    assert sample.loss(ended) < sample.loss(begun)  # the sample is fitted better,
    assert population.loss(ended) > population.loss(begun) / 10  # the population hardly is


@pytest.mark.parametrize(
    "make",
    [
        lambda: SoftmaxRegression(np.eye(3), np.eye(4)),
        lambda: SoftmaxRegression(np.diag([1.0, -1.0]), np.eye(2)),
        lambda: SoftmaxRegression(np.eye(2), np.eye(2), noise=float("nan")),
        lambda: random_problem(3, 3, 0.5, 2.0, seed=0),
        lambda: random_problem(3, 3, 2.0, 2.0, seed=0).sample(1, seed=0),
        lambda: StructureAware(step=0.0),
        lambda: spectral_start(random_problem(5, 5, 2.0, 2.0, seed=0).sample(3, seed=0)),
    ],
)
def test_refusals(make: Any) -> None:
    with pytest.raises(BadInput):
        make()


def test_noise_is_the_floor() -> None:
    population = random_problem(3, 2, 2.0, 2.0, seed=0, noise=0.5).population()
    assert isinstance(population, Population)
    assert population.loss(spectral_start(population)) == pytest.approx(0.5 * 2 * 0.25, rel=1e-12)


@pytest.mark.parametrize("width", [1, 4])
def test_a_random_problem_has_the_conditions_asked_for(width: int) -> None:
    problem = random_problem(width, 3, 100.0, 9.0, seed=0)
    spread = np.linalg.eigvalsh(problem.covariance)
    assert np.prod(spread) == pytest.approx(1.0)
    assert spread[-1] / spread[0] == pytest.approx(100.0 if width > 1 else 1.0)
    singular = np.linalg.svd(problem.target, compute_uv=False)[: min(width, 3)]
    assert singular[0] == pytest.approx(1.0) and singular[-1] == pytest.approx(1 / 9 if width > 1 else 1.0)
    assert np.diff(np.log(spread)) == pytest.approx(np.diff(np.log(spread))[:1].repeat(width - 1))
