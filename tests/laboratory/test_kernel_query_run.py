"""Theorem 2 along a run: the gradient against autograd, the descent lemma, and who stalls where."""

from __future__ import annotations

import pytest
import torch

from edgewise.errors import BadInput
from edgewise.laboratory.kernel_theorems import (
    KernelLayer,
    check_theorem2,
    descend_queries,
    jacobian,
    largest_step,
    query_gradient,
    random_layer,
)
from tests.support.recipes import neighbor

descend = neighbor("papers/song2024kernels/theorem1.py", "descent").descend

KERNELS = ("softmax", "gaussian")


def layer(kernel: str, seed: int = 0, **how: float) -> KernelLayer:
    return random_layer(3, 4, 8, 4, 5, kernel, seed=seed, **how)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_gradient_is_that_of_autograd(kernel: str) -> None:
    made = layer(kernel)
    query = made.query.clone().requires_grad_()
    loss = 0.5 * made.with_weights(query=query).residual().square().sum()
    torch.testing.assert_close(query_gradient(made), torch.autograd.grad(loss, query)[0])


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_step_keeps_the_descent_lemma_and_the_rate_of_its_own_tangent_kernel(kernel: str) -> None:
    run = descend_queries(layer(kernel, 1, query_key_scale=0.5), 60, refresh=1)
    fallen = run.losses[:-1] - run.losses[1:]
    assert bool((fallen >= run.steps * run.squared_gradients / 2 * (1 - 1e-12)).all())
    assert bool((run.squared_gradients >= 2 * run.gammas * run.losses[:-1] * (1 - 1e-9)).all())
    assert bool((run.losses <= run.path_bound * (1 + 1e-9)).all())
    assert float(run.last.loss()) == pytest.approx(float(run.losses[-1]))
    assert torch.equal(run.last.key, layer(kernel, 1, query_key_scale=0.5).key)


def test_large_values_let_the_gaussian_fit_every_target() -> None:
    run = descend_queries(layer("gaussian", query_key_scale=0.5, value_scale=3.0), 600)
    assert run.fell_to < 1e-6
    assert run.start.floor == 0


def test_softmax_ends_on_its_floor() -> None:
    run = descend_queries(layer("softmax", 3, target_scale=4.0), 400)
    assert run.start.floor <= float(run.losses[-1]) < 1.6 * run.start.floor


def test_a_dead_gaussian_rests() -> None:
    """Weights of e^-700 and below are zero in double precision: no gradient, no step, no division by zero."""
    dead = layer("gaussian", query_key_scale=1000.0)
    run = descend_queries(dead, 50)
    assert run.fell_to == 1.0 and len(run.steps) == 0
    assert torch.equal(run.rate_bound, run.losses)
    assert largest_step(dead, ("query",)) == float("inf")
    assert len(descend(dead, 50, trained=("query",)).losses) == 1


def test_the_first_step_is_that_of_the_weights_that_are_trained() -> None:
    made = layer("softmax")
    after = descend(made, 2, trained=("query",), refresh=10).losses
    eta = 1 / float(torch.linalg.eigvalsh(jacobian(made, ("query",)) @ jacobian(made, ("query",)).T)[-1])
    moved = made.with_weights(query=made.query - eta * query_gradient(made))
    assert float(after[1]) == pytest.approx(moved.loss(), rel=1e-9)


def test_refusals() -> None:
    with pytest.raises(BadInput, match="steps = 0"):
        descend_queries(layer("softmax"), 0)


def test_a_fixed_step_may_break_both_promises() -> None:
    """A step of 1/lambda_max throws a steep kernel's queries away; a tenth of a hundredth keeps the descent lemma."""
    steep = layer("softmax", query_key_scale=2.0)
    unit = check_theorem2(steep).step
    large, small = (descend_queries(steep, 40, step=share * unit) for share in (30.0, 0.01))
    assert torch.equal(large.steps, torch.full_like(large.steps, 30 * unit))
    assert large.descent_violations() > 0
    assert small.descent_violations() == 0 and small.violations == 0
    assert bool((small.slopes >= small.gammas.amin() * (1 - 1e-9)).all())


def test_the_whole_gradient_is_more_than_a_step_can_bring() -> None:
    """f = x^2/2 from x = 1: a step eta leaves (1 - eta)^2/2, above f_0 - eta |grad|^2 = 1/2 - eta, for every eta."""
    run = descend_queries(
        layer("softmax", query_key_scale=0.5), 40, step=0.1 * check_theorem2(layer("softmax")).step
    )
    assert run.descent_violations(0.5) == 0
    assert run.descent_violations(1.0) > 0
