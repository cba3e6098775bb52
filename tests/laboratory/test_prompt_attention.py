"""Prompt attention: gradients, Jacobians and curvature against autograd; the descent loops on what they must do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from edgewise import BadInput
from edgewise.laboratory import descent
from edgewise.laboratory.prompt_attention import (
    PromptAttention,
    TeacherStudent,
    hessian_product,
    largest_curvature,
    log_mean_ratio,
    teacher_student,
)


def small(outputs: int = 1, seed: int = 0) -> TeacherStudent:
    return teacher_student(samples=7, tokens=5, width=4, ratio=20.0, seed=seed, outputs=outputs)


def autograd_loss(model: PromptAttention, theta: Tensor) -> Tensor:
    """The model written again, in one line, for torch to differentiate."""
    p, V = theta[: model.width], theta[model.width :].reshape(-1, model.outputs)
    s = torch.softmax(model.keys @ p, -1)
    return 0.5 * ((s[:, None] @ model.tokens)[:, 0] @ V - model.targets).square().sum()


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradient_jacobian_and_curvature_are_those_of_autograd(outputs: int) -> None:
    setting = small(outputs)
    model, theta = setting.model, setting.model.join(setting.prompt, setting.value)
    problem = model.joint()
    leaf = theta.clone().requires_grad_()
    autograd_loss(model, leaf).backward()
    torch.testing.assert_close(problem.gradient(theta), leaf.grad)
    J = torch.autograd.functional.jacobian(problem.residual, theta)
    torch.testing.assert_close(model.jacobian(theta), J)
    H = torch.autograd.functional.hessian(lambda x: autograd_loss(model, x), theta)
    u = torch.randn(len(theta), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    parts = (*model.split(theta), *model.split(u))
    torch.testing.assert_close(model.join(*hessian_product(model, *parts)), H @ u)
    top = float(torch.linalg.eigvalsh(H).abs().max())
    assert largest_curvature(model, theta, steps=3000) == pytest.approx(top, rel=1e-5)


def test_metric_is_the_fisher_information_of_the_rows() -> None:
    setting = small()
    s = setting.model.log_rows(setting.prompt).exp()
    K = setting.model.keys
    expected = sum(K[i].T @ (torch.diag(s[i]) - torch.outer(s[i], s[i])) @ K[i] for i in range(len(K)))
    torch.testing.assert_close(setting.model.metric(setting.prompt), expected)


def test_teacher_has_the_wanted_ratio_and_no_loss() -> None:
    setting = small()
    assert log_mean_ratio(setting.model, setting.teacher_prompt) == pytest.approx(math.log(20.0), abs=1e-12)
    assert setting.model.loss(setting.teacher_prompt, setting.teacher_value) == 0.0


def line(steepness: tuple[float, float] = (1.0, 10.0)) -> descent.LeastSquares:
    A = torch.diag(torch.tensor(steepness, dtype=torch.float64))
    return descent.LeastSquares(
        lambda x: A @ (x - 1), lambda x: A.T @ A @ (x - 1), lambda _: A, lambda _: A.T @ A
    )


def test_loops_on_a_quadratic() -> None:
    """Gradient descent contracts by 1 - eta lambda, the preconditioned ones arrive in one step, the flow is exp."""
    problem, start = line(), torch.zeros(2, dtype=torch.float64)
    run = descent.descend(problem, start, descent.gradient_descent(problem, 0.01), 50, keep=[50])
    rates = torch.tensor([1 - 0.01, 1 - 0.01 * 100], dtype=torch.float64)
    torch.testing.assert_close(1 - run.last, rates**50, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(run.points[50], run.last)
    one = descent.natural_gradient(problem, 1.0, damping=1e-12)(start)
    torch.testing.assert_close(one, torch.ones(2, dtype=torch.float64))
    newton = descent.descend(problem, start, descent.damped_gauss_newton(problem), 30, until=1e-20)
    assert newton.losses[-1] < 1e-20 and (newton.losses.diff() < 0).all()
    t = [0.5, 1.0]
    path = descent.flow(lambda x: -problem.gradient(x), start, t)
    exact = torch.stack(
        [1 - torch.exp(-torch.tensor([1.0, 100.0], dtype=torch.float64) * time) for time in t]
    )
    torch.testing.assert_close(path, exact, atol=1e-9, rtol=0)


def test_adam_is_that_of_torch() -> None:
    problem, start = line((1.0, 3.0)), torch.tensor([0.3, -2.0], dtype=torch.float64)
    ours = descent.descend(problem, start, descent.adam(problem, 0.05), 40).last
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], 0.05)
    for _ in range(40):
        theirs.grad = problem.gradient(theirs.detach())
        optimizer.step()
    torch.testing.assert_close(ours, theirs.detach())


def test_tuned_takes_the_best_step_and_no_divergent_one() -> None:
    problem, start = line(), torch.zeros(2, dtype=torch.float64)
    step, run = descent.tuned(
        problem, start, lambda s: descent.gradient_descent(problem, s), [1e-3, 1e-2, 1.0], 200
    )
    assert step == 1e-2
    assert run.first_below(0.5 * float(run.losses[0])) is not None
    assert run.first_below(0.0) is None


@pytest.mark.parametrize("outputs", [1, 2])
def test_gauss_newton_solves_the_teacher_with_a_frozen_value(outputs: int) -> None:
    setting = teacher_student(samples=40, tokens=6, width=5, ratio=10.0, seed=2, outputs=outputs)
    problem = setting.model.frozen(setting.teacher_value)
    run = descent.descend(problem, setting.prompt, descent.damped_gauss_newton(problem), 60, until=1e-18)
    assert run.losses[-1] < 1e-18
    torch.testing.assert_close(run.last, setting.teacher_prompt, atol=1e-8, rtol=0)


def test_what_cannot_be_is_refused() -> None:
    X = torch.zeros(3, 4, 2, dtype=torch.float64)
    with pytest.raises(BadInput, match="shapes"):
        PromptAttention(X, X, torch.zeros(4, 1))
    with pytest.raises(BadInput, match="not finite"):
        PromptAttention(X, X / 0, torch.zeros(3, 1))
    with pytest.raises(BadInput, match="ratio"):
        teacher_student(3, 4, 2, ratio=1.0)
    with pytest.raises(BadInput, match="steps"):
        descent.descend(line(), torch.zeros(2), lambda x: x, -1)


@pytest.mark.parametrize("ratio", [1.01, 1.5, 1e6])
def test_a_teacher_of_any_ratio_is_found(ratio: float) -> None:
    """From almost flat rows, whose prompt is far shorter than one, to nearly hard ones."""
    setting = teacher_student(samples=4, tokens=3, width=4, outputs=1, ratio=ratio)
    assert log_mean_ratio(setting.model, setting.teacher_prompt) == pytest.approx(math.log(ratio), abs=1e-9)
