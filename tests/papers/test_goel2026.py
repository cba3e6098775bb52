"""The baselines of structure-aware descent: Adam is torch's, and each needs more steps than the method."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.errors import BadInput
from edgewise.laboratory.regression import Parameters, StructureAware, descend, gaussian_start, random_problem
from edgewise.study import load_recipe

FOLDER = Path(__file__).parents[2] / "papers" / "goel2026preconditioning"
BASELINES = import_module(f"{load_recipe(FOLDER / 'figure2_same_start.py').module.__package__}.baselines")
Adam, GradientDescent = BASELINES.Adam, BASELINES.GradientDescent
StochasticGradientDescent = BASELINES.StochasticGradientDescent
RELATIVE = 1e-8


def iterations(condition: float, method: Any, budget: int, seed: int) -> int:
    problem = random_problem(6, 6, condition, 3.0, seed)
    population, start = problem.population(), gaussian_start(problem, 0.3, 1000 + seed)
    nothing = Parameters(0 * start.value, 0 * start.score)
    run = descend(population, start, method, budget, until=RELATIVE * population.loss(nothing))
    return run.steps[-1] if run.losses[-1] <= RELATIVE * population.loss(nothing) else budget + 1


def test_plain_descent_pays_for_the_covariance() -> None:
    """Gradient descent with the best step of a grid: at cond(Σ) = 10 more than 4 times as many steps as ours."""
    best = min(iterations(10.0, GradientDescent(step), 400, 0) for step in (0.003, 0.01, 0.03, 0.1, 0.3))
    assert best > 4 * iterations(10.0, StructureAware(), 400, 0)


def test_far_below_tuned_adam_from_a_gaussian_start() -> None:
    """n = 400, cond(Σ) = 100, cond(M) = 10, 60 steps each, Adam's step the best of four; 200 steps in papers/."""
    problem = random_problem(4, 4, 100.0, 10.0, seed=0)
    sample, start = problem.sample(400, seed=100), gaussian_start(problem, 1.0, seed=200)
    ours = descend(sample, start, StructureAware(), 60, every=60).losses[-1]
    adam = min(descend(sample, start, Adam(step), 60, every=60).losses[-1] for step in (0.03, 0.1, 0.3, 1.0))
    assert ours < adam / 20


def test_stochastic_descent_goes_down_and_refuses_the_limit() -> None:
    problem = random_problem(3, 3, 2.0, 2.0, seed=7)
    sample, start = problem.sample(60, seed=8), gaussian_start(problem, 0.3, seed=9)
    run = descend(sample, start, StochasticGradientDescent(0.05, batch=16), 300, every=100)
    assert run.losses[-1] < 0.5 * run.losses[0]
    with pytest.raises(BadInput, match="finite data"):
        descend(problem.population(), start, StochasticGradientDescent(0.05), 3)


def test_adam_is_torch_adam() -> None:
    problem = random_problem(3, 2, 4.0, 2.0, seed=10)
    population, start = problem.population(), gaussian_start(problem, 0.5, seed=11)
    theirs = [torch.tensor(p, requires_grad=True) for p in start]
    optimizer = torch.optim.Adam(theirs, lr=0.05)
    for _ in range(20):
        slope = population.gradient(Parameters(*(p.detach().numpy() for p in theirs)))
        for p, g in zip(theirs, slope, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
    ours = descend(population, start, Adam(0.05), 20).end
    for p, q in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(p, q.detach().numpy(), atol=1e-10)


def test_the_tightest_bound_covers_what_it_was_made_from() -> None:
    """Draws around a known law: 95 % of them below the bound, and the bound within the draws' scatter of the law."""
    law = load_recipe(FOLDER / "scaling_law.py").module
    rng = np.random.default_rng(0)
    t, n = (x.ravel() for x in np.meshgrid(np.arange(20.0), [50.0, 100.0, 200.0]))
    t, n = np.tile(t, 8), np.tile(n, 8)
    true = 5 * np.exp(-0.7 * t) + 3 / n
    error = true * np.exp(0.2 * rng.standard_normal(len(t)))
    bound = np.exp(law._log_law(law._tightest((t, n, error)), t, n))
    assert np.mean(error > bound) == pytest.approx(0.05, abs=0.005)
    assert 1.1 < np.median(bound / true) < 1.7
