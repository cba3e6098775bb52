"""The over-parametrized theorem: every constant is a bound by simulation, and certified runs keep every promise."""

from __future__ import annotations

import math

import pytest
import torch

from edgewise import BadInput
from edgewise.laboratory.descent import descend, gradient_descent
from edgewise.laboratory.prompt_attention import (
    PromptAttention,
    TeacherStudent,
    attention_slopes,
    certificate,
    diameters,
    largest_curvature,
    log_ratios,
    output_curvatures,
    teacher_student,
)


def weak_keys(scale: float, seed: int = 0, samples: int = 6) -> TeacherStudent:
    """An over-parametrized problem whose logits are scaled down, so that the theorem can apply."""
    made = teacher_student(samples, 5, 24, ratio=1e3, seed=seed)
    model = PromptAttention(made.model.tokens, scale * made.model.keys, made.model.targets)
    return TeacherStudent(model, made.teacher_prompt, made.teacher_value, made.prompt, made.value)


def test_constants_bound_what_they_say() -> None:
    made = weak_keys(1.0)
    model, generator = made.model, torch.Generator().manual_seed(1)
    gamma, h = attention_slopes(model), output_curvatures(model, 2.0)
    promise = certificate(model, made.prompt, made.value)
    for _ in range(40):
        p, q = (2 * torch.randn(24, generator=generator, dtype=torch.float64) for _ in range(2))
        v = torch.randn(24, 1, generator=generator, dtype=torch.float64)
        v = 2 * v / v.norm()
        s = model.log_rows(p).exp()
        J = torch.diag_embed(s) - s[:, :, None] * s[:, None]
        slope = torch.linalg.matrix_norm(model.tokens.transpose(1, 2) @ J @ model.keys, 2)
        assert (slope <= gamma * (1 + 1e-12)).all()
        assert float(model.features(p).norm()) <= promise.feature_bound
        apart = float((model.features(p) - model.features(q)).norm())
        assert apart <= promise.attention_lipschitz * float((p - q).norm())
        i = int(torch.randint(len(s), (1,), generator=generator))

        def output(theta: torch.Tensor, i: int = i) -> torch.Tensor:
            return theta[24:] @ (torch.softmax(model.keys[i] @ theta[:24], -1) @ model.tokens[i])

        H = torch.autograd.functional.hessian(output, torch.cat([p, v[:, 0]]))
        assert float(torch.linalg.matrix_norm(H, 2)) <= float(h[i])


@pytest.mark.parametrize("seed", range(5))
def test_certified_runs_keep_every_promise(seed: int) -> None:
    made = weak_keys(5e-4, seed)
    model, promise = made.model, certificate(made.model, made.prompt, made.value)
    assert promise.applies and "certified: the loss" in str(promise)
    problem = model.joint()
    start = model.join(made.prompt, made.value)
    run = descend(problem, start, gradient_descent(problem, promise.step), 300, keep=range(0, 301, 20))
    assert (run.losses[1:] <= promise.rate * run.losses[:-1]).all()
    for theta in run.points.values():
        p, v = model.split(theta)
        assert float((p - made.prompt).norm()) <= promise.prompt_path <= promise.radius
        assert float(v.norm()) <= promise.value_bound
        assert float(log_ratios(model, p).amax()) <= promise.largest_log_ratio


def test_larger_steps_below_two_over_smoothness_descend_too() -> None:
    made = weak_keys(5e-4)
    promise = certificate(made.model, made.prompt, made.value)
    problem = made.model.joint()
    update = gradient_descent(problem, 1.9 * promise.step)
    run = descend(problem, made.model.join(made.prompt, made.value), update, 200)
    assert (run.losses.diff() < 0).all()


def test_ordinary_keys_are_not_certified_and_converge_all_the_same() -> None:
    made = weak_keys(1.0)
    promise = certificate(made.model, made.prompt, made.value)
    assert not promise.applies and str(promise).startswith("not certified")
    problem, start = made.model.joint(), made.model.join(made.prompt, made.value)
    run = descend(problem, start, gradient_descent(problem, 0.01), 400)
    assert float(run.losses[-1]) < 1e-2 * float(run.losses[0])
    assert largest_curvature(made.model, run.last) < promise.smoothness


def test_more_samples_than_coordinates_give_no_constant() -> None:
    made = teacher_student(samples=9, tokens=4, width=5, ratio=10.0)
    promise = certificate(made.model, made.prompt, made.value)
    assert promise.smallest_feature == promise.polyak_lojasiewicz == 0.0
    assert not promise.applies and math.isinf(promise.smoothness)
    many = teacher_student(4, 3, 6, ratio=10.0, outputs=2)
    with pytest.raises(BadInput, match="one output"):
        certificate(many.model, many.prompt, many.value)


def test_diameters_of_a_square() -> None:
    square = torch.tensor([[[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]]])
    assert diameters(square).item() == pytest.approx(5.0)
    assert diameters(square[:, :1]).item() == 0.0


def test_the_constants_are_those_that_the_proof_needs() -> None:
    """|grad_v loss|^2 >= sigma_min(Phi)^2 |r|^2 >= 2 (sigma_0/2)^2 loss in the ball, and the rate is that of step 1/L.

    A run cannot tell: a rate or a step that is not proven may be kept all the same.
    """
    made = weak_keys(5e-4)
    promise = certificate(made.model, made.prompt, made.value)
    sigma = float(torch.linalg.svdvals(made.model.features(made.prompt))[-1])
    assert promise.smallest_feature == pytest.approx(sigma)
    assert promise.polyak_lojasiewicz == pytest.approx((sigma / 2) ** 2)
    assert promise.step * promise.smoothness == pytest.approx(1.0)
    assert promise.rate == pytest.approx(1 - promise.step * (sigma / 2) ** 2)
    assert promise.radius == pytest.approx(sigma / 2 / promise.attention_lipschitz)
