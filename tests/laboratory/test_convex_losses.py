"""Losses other than the square: gradients against autograd, and the certificate of a strongly convex one."""

from __future__ import annotations

import pytest
import torch

from edgewise.laboratory.prompt_attention import (
    LOSSES,
    SQUARED,
    PromptAttention,
    certificate,
    fitted,
    risk,
    risk_gradients,
    row_slope,
    teacher_student,
)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_autograd_and_a_perfect_fit_is_zero(name: str) -> None:
    loss, made = LOSSES[name], teacher_student(7, 5, 6, 50.0)
    model = fitted(made.model, loss)
    assert risk(model, loss, made.teacher_prompt, made.teacher_value) == pytest.approx(0.0, abs=1e-12)
    p, V = made.prompt.clone().requires_grad_(), made.value.clone().requires_grad_()
    value = loss.value(model.predictions(p, V), model.targets).sum()
    expected = torch.autograd.grad(value, (p, V))
    torch.testing.assert_close(risk_gradients(model, loss, made.prompt, made.value), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_curvatures_bound_the_second_derivative(name: str) -> None:
    loss = LOSSES[name]
    f = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    slope = loss.slope(f, torch.full_like(f, 0.3))
    second = (slope[1:] - slope[:-1]) / (f[1] - f[0])
    assert float(second.min()) >= loss.curvatures[0] - 1e-9
    assert float(second.max()) <= loss.curvatures[1] + 1e-9


def test_the_rows_pull_as_the_square_does() -> None:
    from edgewise.laboratory.replicator import output_slope

    made = teacher_student(4, 5, 6, 50.0)
    s = made.model.log_rows(made.prompt).exp()
    ours, theirs = row_slope(made.model, SQUARED, made.value)(s), output_slope(made.model, made.value)(s)
    torch.testing.assert_close(ours, theirs)


def test_a_strongly_convex_loss_is_certified_and_keeps_its_rate() -> None:
    loss, made = LOSSES["tempered"], teacher_student(4, 4, 40, 1e3)
    model = PromptAttention(made.model.tokens, 1e-4 * made.model.keys, made.model.targets)
    promise = certificate(model, made.prompt, made.value, loss)
    assert promise.applies
    p, V = made.prompt, made.value
    for _ in range(40):
        before = risk(model, loss, p, V)
        first, second = risk_gradients(model, loss, p, V)
        p, V = p - promise.step * first, V - promise.step * second
        assert risk(model, loss, p, V) <= promise.rate * before
    assert not certificate(model, made.prompt, made.value, LOSSES["huber"]).applies
